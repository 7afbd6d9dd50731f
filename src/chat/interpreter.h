#pragma once
// Walks a template's tree: statements (interpreter.cc), expressions (evaluate.cc) and operators
// (operators.cc).

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "chat/library.h"
#include "chat/syntax.h"

namespace pith::chat {

/// a op b, for every operator of two sides but `and` and `or`.
Value apply_operator(Runtime& rt, Operator op, const Value& a, const Value& b);
/// -a and +a.
Value apply_sign(Runtime& rt, Operator op, const Value& a);

class Interpreter {
 public:
  using Scope = std::map<std::string, Value, std::less<>>;

  Interpreter(Runtime& rt, Scope variables) : rt_(rt) { scopes_.push_back(std::move(variables)); }

  Text run(const Nodes& nodes);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // Statements.
  Flow execute(const Nodes& nodes);
  Flow execute(const Node& node);
  void loop(const Node& node, Values items, int64_t depth);
  Flow turn(const Node& node, const std::shared_ptr<const Loop>& loop);
  void assign(const std::vector<Target>& targets, const Value& value);
  void assign(const Target& target, const Value& value);
  void call_with_caller(const Node& node);
  void with(const Node& node);
  /// A macro that sees what is seen where it stands.
  Value macro(const Node& node) const;
  void set(const Node& node, Value value);
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

  // Expressions.
  Value evaluate(const Expression& e);
  Value evaluate_list(const Expression& e);
  Value evaluate_dict(const Expression& e);
  Value evaluate_logic(const Expression& e);
  Value evaluate_compare(const Expression& e);
  Value evaluate_slice(const Expression& e);
  /// `caller`: what the tag `call` gives its macro.
  Value evaluate_call(const Expression& e, const Value* caller = nullptr);
  Value call_function(const Value& function, const Expression& e, Values positional,
                      std::vector<std::pair<std::string, Value>> named);
  Value evaluate_filter(const Expression& e);
  Value call_macro(const Function& macro, Values positional,
                   std::vector<std::pair<std::string, Value>> named);
  void bind_parameters(const Node& macro, Values positional,
                       std::vector<std::pair<std::string, Value>> named);
  Values arguments_of(const Expression& e);
  std::vector<std::pair<std::string, Value>> named_of(const Expression& e);
  Value look_up(const std::string& name);

  /// Counts levels of recursion while it lives: the machine's stack ends somewhere.
  class Level;

  Runtime& rt_;
  std::vector<Scope> scopes_;  // [0]: the template's
  size_t frame_ = 0;           // the running macro sees scopes from here, then those of outer_
  std::shared_ptr<const ScopeRanges> outer_ = std::make_shared<const ScopeRanges>();
  Text* out_ = nullptr;
  Value body_;  // what the name "" stands for in a body's filters
  int levels_ = 0, macros_ = 0;
};

}  // namespace pith::chat
