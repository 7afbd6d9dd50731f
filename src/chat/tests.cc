// Tests: what stands behind `is`.

#include <fmt/format.h>

#include <algorithm>

#include "chat/evaluator.h"
#include "chat/filters.h"

namespace pith::chat {
namespace {

template <Operator kOperator>
Value compared(Runtime& rt, const Value& self, const Arguments& a) {
  return apply_operator(rt, kOperator, self, a.at(0));
}

Value is_boolean(Runtime&, const Value& self, const Arguments&) { return Value(self.is_bool()); }
Value is_callable(Runtime&, const Value& self, const Arguments&) {
  return Value(self.function() != nullptr);
}
Value is_defined(Runtime&, const Value& self, const Arguments&) {
  return Value(!self.is_undefined());
}
Value is_undefined(Runtime&, const Value& self, const Arguments&) {
  return Value(self.is_undefined());
}
Value is_none(Runtime&, const Value& self, const Arguments&) { return Value(self.is_none()); }
Value is_true(Runtime&, const Value& self, const Arguments&) {
  return Value(self.is_bool() && self.integer() != 0);
}
Value is_false(Runtime&, const Value& self, const Arguments&) {
  return Value(self.is_bool() && self.integer() == 0);
}
Value is_integer(Runtime&, const Value& self, const Arguments&) {
  return Value((self.is_integer() && !self.is_bool()) || self.wide() != nullptr);
}
Value is_float(Runtime&, const Value& self, const Arguments&) { return Value(self.is_float()); }
Value is_number(Runtime&, const Value& self, const Arguments&) {
  return Value(self.is_number() || self.wide() != nullptr);
}
Value is_string(Runtime&, const Value& self, const Arguments&) {
  return Value(self.text() != nullptr);
}
Value is_mapping(Runtime&, const Value& self, const Arguments&) {
  return Value(self.dict() != nullptr);
}

// Values with a length and items: views and iterators do not.
Value is_sequence(Runtime&, const Value& self, const Arguments&) {
  const List* list = self.list();
  const bool listed = list != nullptr && (list->kind == List::Kind::kList || list->is_tuple());
  return Value(listed || self.text() != nullptr || self.dict() != nullptr || self.is_undefined());
}
Value is_iterable(Runtime&, const Value& self, const Arguments&) {
  return Value(self.list() != nullptr || self.text() != nullptr || self.dict() != nullptr ||
               self.is_undefined());
}

int64_t whole(Runtime& rt, const Value& value) {
  if (!value.is_integer())
    rt.fail(fmt::format("an integer is needed, not {}", describe_type(value)));
  return value.integer();
}

Value is_even(Runtime& rt, const Value& self, const Arguments&) {
  return Value(whole(rt, self) % 2 == 0);
}
Value is_odd(Runtime& rt, const Value& self, const Arguments&) {
  return Value(whole(rt, self) % 2 != 0);
}
Value is_divisible(Runtime& rt, const Value& self, const Arguments& a) {
  const Value rest = apply_operator(rt, Operator::kModulo, self, a.at(0));
  return Value(rest.is_number() && rest.number() == 0);
}

Value is_lower(Runtime& rt, const Value& self, const Arguments&) {
  return has_case(rt, rt.text(to_text(self)), Case::kLower);
}
Value is_upper(Runtime& rt, const Value& self, const Arguments&) {
  return has_case(rt, rt.text(to_text(self)), Case::kUpper);
}

Value is_filter(Runtime&, const Value& self, const Arguments&) {
  return Value(self.text() != nullptr && find_filter(self.text()->bytes()) != nullptr);
}
Value is_test(Runtime&, const Value& self, const Arguments&) {
  return Value(self.text() != nullptr && find_test(self.text()->bytes()) != nullptr);
}
Value is_escaped(Runtime&, const Value& self, const Arguments&) {
  return Value(self.text() != nullptr && self.text()->is_markup());
}
/// Python's `is`: of one type, and the same object where that can be told apart.
Value is_same(Runtime& rt, const Value& self, const Arguments& a) {
  const Value& other = a.at(0);
  if (self.data.index() != other.data.index()) return Value(false);
  if (self.list() != nullptr) return Value(self.list() == other.list());
  if (self.dict() != nullptr) return Value(self.dict() == other.dict());
  rt.charge(std::min(extent_of(self).size, extent_of(other).size));
  return Value(equal(self, other));
}

constexpr Entry kTests[] = {
    {"!=", "!other", compared<Operator::kNotEqual>},
    {"<", "!other", compared<Operator::kLess>},
    {"<=", "!other", compared<Operator::kLessEqual>},
    {"==", "!other", compared<Operator::kEqual>},
    {">", "!other", compared<Operator::kGreater>},
    {">=", "!other", compared<Operator::kGreaterEqual>},
    {"boolean", "", is_boolean},
    {"callable", "", is_callable},
    {"defined", "", is_defined},
    {"divisibleby", "!num", is_divisible},
    {"eq", "!other", compared<Operator::kEqual>},
    {"equalto", "!other", compared<Operator::kEqual>},
    {"escaped", "", is_escaped},
    {"even", "", is_even},
    {"false", "", is_false},
    {"filter", "", is_filter},
    {"float", "", is_float},
    {"ge", "!other", compared<Operator::kGreaterEqual>},
    {"greaterthan", "!other", compared<Operator::kGreater>},
    {"gt", "!other", compared<Operator::kGreater>},
    {"in", "!seq", compared<Operator::kIn>},
    {"integer", "", is_integer},
    {"iterable", "", is_iterable},
    {"le", "!other", compared<Operator::kLessEqual>},
    {"lessthan", "!other", compared<Operator::kLess>},
    {"lower", "", is_lower},
    {"lt", "!other", compared<Operator::kLess>},
    {"mapping", "", is_mapping},
    {"ne", "!other", compared<Operator::kNotEqual>},
    {"none", "", is_none},
    {"number", "", is_number},
    {"odd", "", is_odd},
    {"sameas", "!other", is_same},
    {"sequence", "", is_sequence},
    {"string", "", is_string},
    {"test", "", is_test},
    {"true", "", is_true},
    {"undefined", "", is_undefined},
    {"upper", "", is_upper},
};

}  // namespace

std::span<const Entry> all_tests() { return kTests; }

}  // namespace pith::chat
