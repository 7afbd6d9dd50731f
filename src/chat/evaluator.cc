#include "chat/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pith::chat {

using Kind = Expression::Kind;

Value Evaluator::evaluate(const Expression& e) {
  const Runtime::Level level(rt_);
  rt_.charge(1);
  rt_.line = e.line;
  switch (e.kind) {
    case Kind::kConstant: return e.constant;
    case Kind::kName: return e.name.empty() ? body_ : scopes_.look_up(e.name);
    case Kind::kList:
    case Kind::kTuple: return evaluate_list(e);
    case Kind::kDict: return evaluate_dict(e);
    case Kind::kUnary: return apply_sign(rt_, e.operators[0], evaluate(*e.children[0]));
    case Kind::kBinary: {
      const Value a = evaluate(*e.children[0]);
      const Value b = evaluate(*e.children[1]);
      rt_.line = e.line;
      return apply_operator(rt_, e.operators[0], a, b);
    }
    case Kind::kLogic: return evaluate_logic(e);
    case Kind::kCompare: return evaluate_compare(e);
    case Kind::kConditional:
      if (truth(evaluate(*e.children[1]))) return evaluate(*e.children[0]);
      return e.children[2] == nullptr ? Value() : evaluate(*e.children[2]);
    case Kind::kAttribute: return attribute(rt_, evaluate(*e.children[0]), e.name);
    case Kind::kIndex: {
      const Value object = evaluate(*e.children[0]);
      return item(rt_, object, evaluate(*e.children[1]));
    }
    case Kind::kSlice: return evaluate_slice(e);
    case Kind::kCall: return evaluate_call(e);
    case Kind::kFilter:
    case Kind::kTest: return evaluate_filter(e);
  }
  return {};
}

Value Evaluator::evaluate_list(const Expression& e) {
  Values items;
  items.reserve(e.children.size());
  for (const auto& child : e.children) items.push_back(evaluate(*child));
  return rt_.list(std::move(items),
                  e.kind == Kind::kTuple ? List::Kind::kTuple : List::Kind::kList);
}

Value Evaluator::evaluate_dict(const Expression& e) {
  Dict dict;
  for (size_t i = 0; i < e.children.size(); i += 2) {
    const Value key = evaluate(*e.children[i]);
    if (!dict.set(key, evaluate(*e.children[i + 1]))) {
      rt_.fail(fmt::format("a dict with {} as a key; strings and integers are supported",
                           describe_type(key)),
               ErrorCode::kUnsupported);
    }
  }
  return rt_.dict(std::move(dict));
}

Value Evaluator::evaluate_logic(const Expression& e) {
  Value first = evaluate(*e.children[0]);
  const bool holds = truth(first);
  if (e.operators[0] == Operator::kNot) return Value(!holds);
  if (holds == (e.operators[0] == Operator::kOr)) return first;
  return evaluate(*e.children[1]);
}

Value Evaluator::evaluate_compare(const Expression& e) {
  Value left = evaluate(*e.children[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.children[i + 1]);
    rt_.line = e.line;
    if (!truth(apply_operator(rt_, e.operators[i], left, right))) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

namespace {

/// Python's slice of `count` elements: first, one past the last, step.
struct Range {
  int64_t first, end, step;
};

Range resolve(int64_t count, const std::optional<int64_t>& start,
              const std::optional<int64_t>& stop, int64_t step) {
  const auto place = [&](int64_t at, int64_t low, int64_t high) {
    if (at < 0) at += count;
    return std::clamp(at, low, high);
  };
  if (step > 0)
    return {start ? place(*start, 0, count) : 0, stop ? place(*stop, 0, count) : count, step};
  return {start ? place(*start, -1, count - 1) : count - 1, stop ? place(*stop, -1, count - 1) : -1,
          step};
}

}  // namespace

Value Evaluator::evaluate_slice(const Expression& e) {
  const Value object = evaluate(*e.children[0]);
  std::optional<int64_t> parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (e.children[i + 1] == nullptr) continue;
    const Value part = evaluate(*e.children[i + 1]);
    if (part.is_none()) continue;
    if (!part.is_integer())
      rt_.fail(fmt::format("{} as the border of a slice", describe_type(part)));
    // Borders beyond 2^61 mean what 2^61 means, and can be added to.
    constexpr int64_t kFar = int64_t{1} << 61;
    parts[i] = std::clamp(part.integer(), -kFar, kFar);
  }
  const int64_t step = parts[2].value_or(1);
  if (step == 0) rt_.fail("a slice with step 0");
  const Text* text = object.text();
  const List* list = object.list();
  if (object.is_undefined()) rt_.fail(fmt::format("a slice of {}", describe_type(object)));
  if (text == nullptr &&
      (list == nullptr || list->kind == List::Kind::kView || list->kind == List::Kind::kIterator))
    return Value();  // Jinja: no such item, so undefined
  rt_.charge_walk(object);
  const size_t count = text != nullptr ? count_characters(text->bytes()) : list->items.size();
  const Range range = resolve(static_cast<int64_t>(count), parts[0], parts[1], step);
  const auto inside = [&](int64_t i) { return step > 0 ? i < range.end : i > range.end; };
  if (text != nullptr && step == 1) {
    if (!inside(range.first)) return Value(Text());
    const size_t begin = offset_of(text->bytes(), static_cast<size_t>(range.first));
    const auto rest = std::string_view(text->bytes()).substr(begin);
    const size_t end = begin + offset_of(rest, static_cast<size_t>(range.end - range.first));
    return rt_.text(text->slice(begin, end));
  }
  Values items;
  const Values all = elements(rt_, object);
  for (int64_t i = range.first; inside(i); i += step) items.push_back(all[static_cast<size_t>(i)]);
  if (text == nullptr) return rt_.list(std::move(items), list->kind);
  Text out;
  for (const Value& character : items) out.append(*character.text());
  return rt_.text(std::move(out));
}

/// The arguments behind a "**".
void Evaluator::spread(Given& given, const Value& value) {
  if (value.dict() == nullptr)
    rt_.fail(fmt::format("** of {}; a dict is needed", describe_type(value)));
  rt_.charge(value.dict()->items.size());
  for (const auto& [key, more] : value.dict()->items)
    given.named.emplace_back(to_text(key).bytes(), more);
}

Given Evaluator::given_of(const Expression& e) {
  Given given;
  for (size_t i = 1; i < e.children.size(); ++i)
    given.positional.push_back(evaluate(*e.children[i]));
  for (const auto& [name, value] : e.named) {
    if (name != "*") continue;
    const Values more = elements(rt_, evaluate(*value));
    given.positional.insert(given.positional.end(), more.begin(), more.end());
  }
  for (const auto& [name, value] : e.named) {
    if (name == "*") continue;
    Value one = evaluate(*value);
    if (name == "**")
      spread(given, one);
    else
      given.named.emplace_back(name, std::move(one));
  }
  return given;
}

namespace {

[[noreturn]] void refuse(Runtime& rt, const char* what, const std::string& name,
                         const std::string& supported) {
  rt.fail(fmt::format("not supported: {} '{}'; supported: {}", what, name, supported),
          ErrorCode::kUnsupported);
}

}  // namespace

Value Evaluator::evaluate_call(const Expression& e, const Value* caller) {
  const Expression& callee = *e.children[0];
  Value self;
  Value function;
  const bool method = callee.kind == Kind::kAttribute;
  if (method) {
    self = evaluate(*callee.children[0]);
    // A macro may lie in a namespace or a dict.
    if (self.space() != nullptr || (self.dict() != nullptr && find_method(callee.name) == nullptr))
      function = attribute(rt_, self, callee.name);
  } else {
    function = evaluate(callee);
  }
  Given given = given_of(e);
  if (caller != nullptr) given.named.emplace_back("caller", *caller);
  rt_.line = e.line;
  if (!method || function.function() != nullptr)
    return call_function(function, e, std::move(given));
  if (self.is_undefined())
    rt_.fail(fmt::format("the method '{}' of {}", callee.name, describe_type(self)));
  const Entry* entry = find_method(callee.name);
  if (entry == nullptr) refuse(rt_, "the method", callee.name, method_names());
  return call(rt_, *entry, self, std::move(given.positional), std::move(given.named));
}

Value Evaluator::call_function(const Value& function, const Expression& e, Given given) {
  if (const Loop* loop = function.loop(); loop != nullptr && loop->node != nullptr) {
    if (given.positional.size() != 1 || !given.named.empty())
      rt_.fail("the loop takes one argument");
    return bodies_.run_loop(*loop, elements(rt_, given.positional[0]));
  }
  const Function* target = function.function();
  if (target == nullptr && function.is_undefined() && e.children[0]->kind == Kind::kName)
    refuse(rt_, "the function", e.name, global_names() + ", and the template's own macros");
  if (target == nullptr) rt_.fail(fmt::format("a call of {}", describe_type(function)));
  if (target->macro != nullptr) return bodies_.run_macro(*target, std::move(given));
  if (target->self != nullptr)
    return call(rt_, *find_method(target->name), *target->self, std::move(given.positional),
                std::move(given.named));
  return call(rt_, *find_global(target->name), Value(), std::move(given.positional),
              std::move(given.named));
}

Value Evaluator::evaluate_filter(const Expression& e) {
  const Value self = evaluate(*e.children[0]);
  Given given = given_of(e);
  rt_.line = e.line;
  const bool filter = e.kind == Kind::kFilter;
  const Entry* entry = filter ? find_filter(e.name) : find_test(e.name);
  if (entry == nullptr)
    refuse(rt_, filter ? "the filter" : "the test", e.name, filter ? filter_names() : test_names());
  return call(rt_, *entry, self, std::move(given.positional), std::move(given.named));
}

Value Evaluator::filter_body(const Expression& filters, Value body) {
  Value hidden = std::exchange(body_, std::move(body));
  Value value = evaluate(filters);
  body_ = std::move(hidden);
  return value;
}

}  // namespace pith::chat
