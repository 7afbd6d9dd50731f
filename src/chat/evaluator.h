#pragma once
// The values of a template's expressions.

#include <string>
#include <utility>
#include <vector>

#include "chat/library.h"
#include "chat/scopes.h"
#include "chat/syntax.h"

namespace pith::chat {

/// a op b, for every operator of two sides but `and` and `or`.
Value apply_operator(Runtime& rt, Operator op, const Value& a, const Value& b);
/// -a and +a.
Value apply_sign(Runtime& rt, Operator op, const Value& a);

/// The arguments of a call.
struct Given {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Bodies that the template has and a call runs.
class Bodies {
 public:
  virtual ~Bodies() = default;
  virtual Value run_macro(const Function& macro, Given given) = 0;
  /// A recursive loop's, over other items.
  virtual Value run_loop(const Loop& loop, Values items) = 0;
};

class Evaluator {
 public:
  Evaluator(Runtime& rt, const Scopes& scopes, Bodies& bodies)
      : rt_(rt), scopes_(scopes), bodies_(bodies) {}

  Value evaluate(const Expression& e);
  /// `caller`: what the tag `call` gives its macro.
  Value evaluate_call(const Expression& e, const Value* caller = nullptr);
  /// A body's output through filters.
  Value filter_body(const Expression& filters, Value body);

 private:
  Value evaluate_list(const Expression& e);
  Value evaluate_dict(const Expression& e);
  Value evaluate_logic(const Expression& e);
  Value evaluate_compare(const Expression& e);
  Value evaluate_slice(const Expression& e);
  Value evaluate_filter(const Expression& e);
  Value call_function(const Value& function, const Expression& e, Given given);
  Given given_of(const Expression& e);
  void spread(Given& given, const Value& value);

  Runtime& rt_;
  const Scopes& scopes_;
  Bodies& bodies_;
  Value body_;  // what the name "" stands for in a body's filters
};

}  // namespace pith::chat
