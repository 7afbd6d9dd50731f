// Python's operators on the values of templates.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/evaluator.h"

namespace pith::chat {
namespace {

const char* sign_of(Operator op) {
  switch (op) {
    case Operator::kAdd: return "+";
    case Operator::kSubtract: return "-";
    case Operator::kMultiply: return "*";
    case Operator::kDivide: return "/";
    case Operator::kFloorDivide: return "//";
    case Operator::kModulo: return "%";
    case Operator::kPower: return "**";
    default: return "?";
  }
}

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

class Arithmetic {
 public:
  Arithmetic(Runtime& rt, Operator op) : rt_(rt), op_(op) {}

  Value integers(int64_t a, int64_t b) {
    int64_t out = 0;
    bool over = false;
    switch (op_) {
      case Operator::kAdd: over = __builtin_add_overflow(a, b, &out); break;
      case Operator::kSubtract: over = __builtin_sub_overflow(a, b, &out); break;
      case Operator::kMultiply: over = __builtin_mul_overflow(a, b, &out); break;
      case Operator::kDivide: return floats(static_cast<double>(a), static_cast<double>(b));
      case Operator::kPower:
        if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
        out = power(a, b);
        break;
      default:
        if (b == 0) rt_.fail("division by zero");
        over = a == INT64_MIN && b == -1;
        if (over) break;
        out = floor_divide(a, b);
        if (op_ == Operator::kModulo) out = a - out * b;
    }
    if (over) overflow();
    return Value(out);
  }

  Value floats(double a, double b) {
    switch (op_) {
      case Operator::kAdd: return Value(a + b);
      case Operator::kSubtract: return Value(a - b);
      case Operator::kMultiply: return Value(a * b);
      case Operator::kPower: return Value(std::pow(a, b));
      default: break;
    }
    if (b == 0) rt_.fail("division by zero");
    if (op_ == Operator::kDivide) return Value(a / b);
    double rest = std::fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    if (op_ == Operator::kModulo) return Value(rest == 0 ? std::copysign(0.0, b) : rest);
    return Value(std::floor((a - rest) / b + 0.5));
  }

 private:
  [[noreturn]] void overflow() { rt_.fail("an integer of more than 64 bits"); }

  int64_t power(int64_t base, int64_t exponent) {
    int64_t out = 1;
    while (exponent > 0) {
      if ((exponent & 1) != 0 && __builtin_mul_overflow(out, base, &out)) overflow();
      exponent >>= 1;
      if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
    }
    return out;
  }

  Runtime& rt_;
  Operator op_;
};

/// A string or a list, `count` times.
Value repeat(Runtime& rt, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const Text* text = value.text()) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(text->size(), times, &bytes)) bytes = SIZE_MAX;
    rt.check_size(bytes);
    rt.charge(bytes / 64 + (text->empty() ? 0 : times * text->runs().size()));
    Text out;
    for (size_t i = 0; i < times && !text->empty(); ++i) out.append(*text);
    return rt.text(std::move(out));
  }
  const List& list = *value.list();
  size_t size = 0;
  if (__builtin_mul_overflow(list.items.size(), times, &size)) size = SIZE_MAX;
  rt.charge(size);
  Values items;
  for (size_t i = 0; i < times && !list.items.empty(); ++i)
    items.insert(items.end(), list.items.begin(), list.items.end());
  return rt.list(std::move(items), list.kind);
}

bool is_sequence(const Value& value) {
  const List* list = value.list();
  return value.text() != nullptr ||
         (list != nullptr && (list->kind == List::Kind::kList || list->is_tuple()));
}

Value add(Runtime& rt, const Value& a, const Value& b) {
  if (a.text() != nullptr && b.text() != nullptr) {
    rt.check_size(a.text()->size() + b.text()->size());
    const bool markup = a.text()->is_markup() || b.text()->is_markup();
    Text out = markup ? escape(*a.text()) : *a.text();
    out.append(markup ? escape(*b.text()) : *b.text());
    return rt.text(std::move(out));
  }
  const List *first = a.list(), *second = b.list();
  if (first != nullptr && second != nullptr && first->kind == second->kind && is_sequence(a)) {
    rt.charge(first->items.size() + second->items.size());
    Values items = first->items;
    items.insert(items.end(), second->items.begin(), second->items.end());
    return rt.list(std::move(items), first->kind);
  }
  rt.fail(fmt::format("{} + {}; '~' joins anything as text", describe_type(a), describe_type(b)));
}

Value concatenate(Runtime& rt, const Value& a, const Value& b) {
  rt.charge_walk(a);
  rt.charge_walk(b);
  Text out;  // no markup: without autoescape Jinja2 joins by str()
  out.append(to_text(a));
  out.append(to_text(b));
  return rt.text(std::move(out));
}

Value modulo_of_text(Runtime& rt, const Text& pattern, const Value& b) {
  const List* list = b.list();
  const bool tuple = list != nullptr && list->is_tuple();
  Values values = tuple ? list->items : Values{b};
  if (!pattern.is_markup()) return format(rt, pattern, values);
  for (Value& value : values)
    if (value.text() != nullptr) value = rt.text(escape(*value.text()));
  return rt.text(format(rt, pattern, values).text()->as_markup());
}

Value arithmetic(Runtime& rt, Operator op, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer())
    return Arithmetic(rt, op).integers(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return Arithmetic(rt, op).floats(a.number(), b.number());
  if (op == Operator::kAdd) return add(rt, a, b);
  if (op == Operator::kMultiply && is_sequence(a) && b.is_integer())
    return repeat(rt, a, b.integer());
  if (op == Operator::kMultiply && a.is_integer() && is_sequence(b))
    return repeat(rt, b, a.integer());
  if (op == Operator::kModulo && a.text() != nullptr) return modulo_of_text(rt, *a.text(), b);
  rt.fail(fmt::format("{} {} {}", describe_type(a), sign_of(op), describe_type(b)));
}

}  // namespace

bool less(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
    return a.number() < b.number();
  }
  // UTF-8 sorts as its code points do.
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes() < b.text()->bytes();
  const List *first = a.list(), *second = b.list();
  if (first != nullptr && second != nullptr && first->kind == second->kind && is_sequence(a)) {
    const size_t both = std::min(first->items.size(), second->items.size());
    for (size_t i = 0; i < both; ++i) {
      if (!equal(first->items[i], second->items[i]))
        return less(rt, first->items[i], second->items[i]);
    }
    return first->items.size() < second->items.size();
  }
  rt.fail(fmt::format("{} and {} have no order", describe_type(a), describe_type(b)));
}

bool contains(Runtime& rt, const Value& container, const Value& wanted) {
  if (const Text* text = container.text()) {
    if (wanted.text() == nullptr)
      rt.fail(fmt::format("{} in a string; only strings are", describe_type(wanted)));
    rt.charge(1 + text->size() / 64 + wanted.text()->size() / 64);
    return find_in(text->bytes(), wanted.text()->bytes()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find_key(wanted) != nullptr;
  if (const List* list = container.list()) {
    rt.charge_walk(container);
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return equal(item, wanted); });
  }
  if (container.is_undefined()) return false;
  rt.fail(fmt::format("'in' {}, which holds nothing", describe_type(container)));
}

Value apply_operator(Runtime& rt, Operator op, const Value& a, const Value& b) {
  const auto charge_compare = [&] { rt.charge(std::min(extent_of(a).size, extent_of(b).size)); };
  switch (op) {
    case Operator::kConcat: return concatenate(rt, a, b);
    case Operator::kEqual: charge_compare(); return Value(equal(a, b));
    case Operator::kNotEqual: charge_compare(); return Value(!equal(a, b));
    case Operator::kLess: charge_compare(); return Value(less(rt, a, b));
    case Operator::kGreater: charge_compare(); return Value(less(rt, b, a));
    case Operator::kLessEqual: charge_compare(); return Value(less(rt, a, b) || equal(a, b));
    case Operator::kGreaterEqual: charge_compare(); return Value(less(rt, b, a) || equal(a, b));
    case Operator::kIn: return Value(contains(rt, b, a));
    case Operator::kNotIn: return Value(!contains(rt, b, a));
    default: return arithmetic(rt, op, a, b);
  }
}

Value apply_sign(Runtime& rt, Operator op, const Value& a) {
  if (!a.is_number())
    rt.fail(fmt::format("{}{}", op == Operator::kNegate ? "-" : "+", describe_type(a)));
  if (op == Operator::kPlus) return a.is_bool() ? Value(a.integer()) : a;
  if (a.is_float()) return Value(-a.number());
  if (a.integer() == INT64_MIN) rt.fail("an integer of more than 64 bits");
  return Value(-a.integer());
}

}  // namespace pith::chat
