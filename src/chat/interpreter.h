#pragma once
// Walks a template's tree: runs its statements and macros, whose expressions an Evaluator reads.

#include <utility>
#include <vector>

#include "chat/evaluator.h"

namespace pith::chat {

class Interpreter : private Bodies {
 public:
  Interpreter(Runtime& rt, Scope variables) : rt_(rt), scopes_(std::move(variables)) {}

  Text run(const Nodes& nodes);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  Flow execute(const Nodes& nodes);
  Flow execute(const Node& node);
  /// In a scope of its own.
  Flow execute_inside(const Nodes& nodes);
  void loop(const Node& node, Values items, int64_t depth);
  Flow turn(const Node& node, const std::shared_ptr<const Loop>& loop);
  void assign(const std::vector<Target>& targets, const Value& value);
  void assign(const Target& target, const Value& value);
  void call_with_caller(const Node& node);
  void with(const Node& node);
  /// A macro that sees what is seen where it stands.
  Value macro(const Node& node) const;
  void set(const Node& node, Value value);
  Value run_macro(const Function& macro, Given given) override;
  Value run_loop(const Loop& loop, Values items) override;
  /// The output of `write`, which does not go to the template's output.
  template <class Write>
  Text captured(const Write& write) {
    Text text;
    Text* const outer = std::exchange(out_, &text);
    write();
    out_ = outer;
    return text;
  }
  /// The output of a body, through filters if there are any.
  Value body_text(const Node& node);
  void print(const Value& value);
  Value evaluate(const Expression& e) { return expressions_.evaluate(e); }

  Runtime& rt_;
  Scopes scopes_;
  Evaluator expressions_{rt_, scopes_, *this};
  Text* out_ = nullptr;
  int macros_ = 0;  // that run
};

}  // namespace pith::chat
