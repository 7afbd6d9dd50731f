// Filters of lists, dicts and numbers.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "chat/evaluator.h"
#include "chat/filters.h"
#include "chat/lexer.h"

namespace pith::chat {

Value path_of(Runtime& rt, const Value& value, const Value& path,
              const std::optional<Value>& otherwise) {
  if (path.is_integer()) return item(rt, value, path);
  if (path.text() == nullptr)
    rt.fail(fmt::format("an attribute's name must be a string, not {}", describe_type(path)));
  std::string_view rest = path.text()->bytes();
  Value at = value;
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    int64_t number = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool digits = parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    at = item(rt, at, digits ? Value(number) : Value(Text(std::string(part), Origin::kTemplate)));
    if (at.is_undefined() && otherwise) at = *otherwise;
    if (dot == rest.size()) return at;
    rest.remove_prefix(dot + 1);
  }
}

namespace {

/// The keys of sort, unique, min and max: an attribute if one is named, strings without case
/// unless told.
Value sort_key(Runtime& rt, const Value& value, const std::optional<Value>& path, bool with_case) {
  Value key = path && !path->is_none() ? path_of(rt, value, *path) : value;
  return with_case || key.text() == nullptr ? key : change_text(rt, key, Case::kLower);
}

/// Places of the keys, in order.
std::vector<size_t> order_of(Runtime& rt, const Values& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    rt.charge(1 + std::min(extent_of(keys[a]).size, extent_of(keys[b]).size));
    return reverse ? less(rt, keys[b], keys[a]) : less(rt, keys[a], keys[b]);
  });
  return order;
}

/// Values beside their keys, in order.
Values sorted(Runtime& rt, const Values& values, const Values& keys, bool reverse) {
  Values out;
  for (const size_t i : order_of(rt, keys, reverse)) out.push_back(values[i]);
  return out;
}

Values keys_of(Runtime& rt, const Values& values, const std::optional<Value>& path,
               bool with_case) {
  Values keys;
  for (const Value& value : values) keys.push_back(sort_key(rt, value, path, with_case));
  return keys;
}

Value absolute(Runtime& rt, const Value& self, const Arguments&) {
  if (!self.is_number()) rt.fail(fmt::format("abs of {}", describe_type(self)));
  if (self.is_float()) return Value(std::fabs(self.number()));
  if (self.integer() == INT64_MIN) rt.fail("an integer of more than 64 bits");
  return Value(std::abs(self.integer()));
}

Value fallback(Runtime& rt, const Value& self, const Arguments& a) {
  const bool replaces = self.is_undefined() || (flag_argument(a, 1, false) && !truth(self));
  if (!replaces) return self;
  return a.has(0) ? a.at(0) : rt.text(Text());
}

Value dictsort(Runtime& rt, const Value& self, const Arguments& a) {
  if (self.dict() == nullptr) rt.fail(fmt::format("dictsort of {}", describe_type(self)));
  bool by_value = false;
  if (a.has(1)) {
    const std::string& by = text_argument(rt, a, 1, "by").bytes();
    if (by != "key" && by != "value") rt.fail("by is 'key' or 'value'");
    by_value = by == "value";
  }
  Values pairs, keys;
  for (const auto& [key, value] : self.dict()->items) {
    pairs.push_back(rt.list({key, value}, List::Kind::kTuple));
    keys.push_back(sort_key(rt, by_value ? value : key, std::nullopt, flag_argument(a, 0, false)));
  }
  return rt.list(sorted(rt, pairs, keys, flag_argument(a, 2, false)));
}

Value first(Runtime& rt, const Value& self, const Arguments&) {
  const Values all = elements(rt, self);
  return all.empty() ? Value() : all.front();
}

Value last(Runtime& rt, const Value& self, const Arguments&) {
  const Values all = elements(rt, self);
  return all.empty() ? Value() : all.back();
}

std::string trimmed(const Value& value) { return strip(*value.text(), true, true).bytes(); }

Value to_float(Runtime&, const Value& self, const Arguments& a) {
  if (self.is_number()) return Value(self.number());
  if (self.wide() != nullptr) return Value(std::strtod(self.wide()->c_str(), nullptr));
  double out = 0;
  if (self.text() != nullptr) {
    const std::string text = trimmed(self);
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const auto parsed = std::from_chars(begin, text.data() + text.size(), out);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return Value(out);
  }
  return a.has(0) ? a.at(0) : Value(0.0);
}

Value to_int(Runtime& rt, const Value& self, const Arguments& a) {
  Value otherwise = a.has(0) ? a.at(0) : Value(int64_t{0});
  const auto cut = [&](double x) {
    if (std::fabs(x) < 9.2e18) return Value(static_cast<int64_t>(x));
    return std::isfinite(x) ? Value(WideInteger(fmt::format("{:.0f}", x))) : otherwise;
  };
  if (self.wide() != nullptr) return self;
  if (self.is_integer()) return Value(self.integer());
  if (self.is_float()) return cut(self.number());
  if (self.text() == nullptr) return otherwise;
  const auto base = static_cast<int>(std::clamp<int64_t>(integer_argument(rt, a, 1, 10), 2, 36));
  std::string text = trimmed(self);
  int64_t out = 0;
  const size_t sign = text.starts_with('+') || text.starts_with('-') ? 1 : 0;
  if (base_of(std::string_view(text).substr(sign)) == base) text.erase(sign, 2);
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(begin, end, out, base);
  if (parsed.ec == std::errc() && parsed.ptr == end) return Value(out);
  if (parsed.ec == std::errc::result_out_of_range && parsed.ptr == end) {
    if (base != 10) rt.fail("int of more than 64 bits in another base than 10");
    if (text.size() > kMaxDigits)
      rt.fail(fmt::format("int of more than {} digits", kMaxDigits));  // as Python
    return wide_integer(begin);
  }
  double number = 0;
  const auto as_float = std::from_chars(begin, end, number);
  return as_float.ec == std::errc() && as_float.ptr == end ? cut(number) : otherwise;
}

Value items(Runtime& rt, const Value& self, const Arguments&) {
  if (!self.is_undefined() && self.dict() == nullptr)
    rt.fail(fmt::format("items of {}; only a dict has some", describe_type(self)));
  Values out;
  if (self.dict() != nullptr) {
    for (const auto& [key, value] : self.dict()->items)
      out.push_back(rt.list({key, value}, List::Kind::kTuple));
  }
  return rt.list(std::move(out), List::Kind::kIterator);
}

Value length(Runtime& rt, const Value& self, const Arguments&) {
  if (const Text* text = self.text()) {
    rt.charge(1 + text->size() / 64);
    return Value(static_cast<int64_t>(count_characters(text->bytes())));
  }
  if (const Dict* dict = self.dict()) return Value(static_cast<int64_t>(dict->items.size()));
  if (self.is_undefined()) return Value(int64_t{0});
  const List* list = self.list();
  if (list == nullptr || list->kind == List::Kind::kIterator)
    rt.fail(fmt::format("the length of {}", describe_type(self)));
  return Value(static_cast<int64_t>(list->items.size()));
}

Value list(Runtime& rt, const Value& self, const Arguments&) { return rt.list(elements(rt, self)); }

/// Jinja's map and select look at nothing that is false: none gives nothing.
Values elements_of_true(Runtime& rt, const Value& self) {
  return truth(self) ? elements(rt, self) : Values{};
}

/// map('filter', ...) and map(attribute='name', default=...).
Value map(Runtime& rt, const Value& self, const Arguments& a) {
  Values out;
  if (a.more.empty()) {
    std::optional<Value> path, otherwise;
    for (const auto& [name, value] : a.named) {
      if (name == "attribute")
        path = value;
      else if (name == "default")
        otherwise = value;
      else
        rt.fail(fmt::format("map has no argument '{}'", name));
    }
    if (!path) rt.fail("map needs the name of a filter, or attribute=");
    for (const Value& element : elements_of_true(rt, self))
      out.push_back(path_of(rt, element, *path, otherwise));
    return rt.list(std::move(out), List::Kind::kIterator);
  }
  const Text* name = a.more[0].text();
  const Entry* filter = name == nullptr ? nullptr : find_filter(name->bytes());
  if (filter == nullptr)
    rt.fail(fmt::format("map with a filter that is not supported; supported: {}", filter_names()),
            ErrorCode::kUnsupported);
  const Values rest(a.more.begin() + 1, a.more.end());
  for (const Value& element : elements_of_true(rt, self))
    out.push_back(call(rt, *filter, element, rest, a.named));
  return rt.list(std::move(out), List::Kind::kIterator);
}

/// The shared body of select, reject, selectattr and rejectattr.
Value choose(Runtime& rt, const Value& self, const Arguments& a, bool keep, bool by_attribute) {
  size_t used = 0;
  if (by_attribute && a.more.empty()) rt.fail("the name of an attribute is needed");
  const Value path = by_attribute ? a.more[used++] : Value();
  const Entry* test = nullptr;
  if (used < a.more.size()) {
    const Text* name = a.more[used++].text();
    test = name == nullptr ? nullptr : find_test(name->bytes());
    if (test == nullptr)
      rt.fail(fmt::format("a test that is not supported; supported: {}", test_names()),
              ErrorCode::kUnsupported);
  }
  const Values rest(a.more.begin() + static_cast<ptrdiff_t>(used), a.more.end());
  Values out;
  for (const Value& element : elements_of_true(rt, self)) {
    const Value seen = by_attribute ? path_of(rt, element, path) : element;
    const bool holds = test == nullptr ? truth(seen) : truth(call(rt, *test, seen, rest, a.named));
    if (holds == keep) out.push_back(element);
  }
  return rt.list(std::move(out), List::Kind::kIterator);
}

Value select(Runtime& rt, const Value& self, const Arguments& a) {
  return choose(rt, self, a, true, false);
}
Value reject(Runtime& rt, const Value& self, const Arguments& a) {
  return choose(rt, self, a, false, false);
}
Value selectattr(Runtime& rt, const Value& self, const Arguments& a) {
  return choose(rt, self, a, true, true);
}
Value rejectattr(Runtime& rt, const Value& self, const Arguments& a) {
  return choose(rt, self, a, false, true);
}

Value extreme(Runtime& rt, const Value& self, const Arguments& a, bool largest) {
  const Values all = elements(rt, self);
  const Values keys = keys_of(rt, all, a.slots[1], flag_argument(a, 0, false));
  if (all.empty()) return {};
  size_t best = 0;
  for (size_t i = 1; i < all.size(); ++i)
    if (largest ? less(rt, keys[best], keys[i]) : less(rt, keys[i], keys[best])) best = i;
  return all[best];
}
Value largest(Runtime& rt, const Value& self, const Arguments& a) {
  return extreme(rt, self, a, true);
}
Value smallest(Runtime& rt, const Value& self, const Arguments& a) {
  return extreme(rt, self, a, false);
}

Value reverse(Runtime& rt, const Value& self, const Arguments&) {
  Values all = elements(rt, self);
  std::reverse(all.begin(), all.end());
  if (self.text() == nullptr) return rt.list(std::move(all), List::Kind::kIterator);
  Text out;
  for (const Value& character : all) out.append(*character.text());
  return rt.text(std::move(out));
}

Value round(Runtime& rt, const Value& self, const Arguments& a) {
  if (!self.is_number()) rt.fail(fmt::format("round of {}", describe_type(self)));
  const auto places =
      static_cast<int>(std::clamp<int64_t>(integer_argument(rt, a, 0, 0), -300, 300));
  const std::string method = a.has(1) ? text_argument(rt, a, 1, "method").bytes() : "common";
  const double scale = std::pow(10.0, places), value = self.number();
  if (method == "floor") return Value(std::floor(value * scale) / scale);
  if (method == "ceil") return Value(std::ceil(value * scale) / scale);
  if (method != "common") rt.fail("method is 'common', 'ceil' or 'floor'");
  if ((self.is_integer() && places >= 0) || !std::isfinite(value)) return self;
  if (places < 0) {
    const double step = std::pow(10.0, -places), rounded = std::nearbyint(value / step) * step;
    return self.is_integer() ? Value(static_cast<int64_t>(rounded)) : Value(rounded);
  }
  // The nearest decimal to the exact value, halves to even: what formatting does too.
  return Value(std::strtod(fmt::format("{:.{}f}", value, places).c_str(), nullptr));
}

Value sort(Runtime& rt, const Value& self, const Arguments& a) {
  const Values all = elements(rt, self);
  return rt.list(sorted(rt, all, keys_of(rt, all, a.slots[2], flag_argument(a, 1, false)),
                        flag_argument(a, 0, false)));
}

Value sum(Runtime& rt, const Value& self, const Arguments& a) {
  Value total = a.has(1) ? a.at(1) : Value(int64_t{0});
  const bool by_path = a.has(0) && !a.at(0).is_none();
  for (const Value& element : elements(rt, self))
    total = apply_operator(rt, Operator::kAdd, total,
                           by_path ? path_of(rt, element, a.at(0)) : element);
  return total;
}

/// Pairs of what an attribute is and those of which it is that, in order.
Value groupby(Runtime& rt, const Value& self, const Arguments& a) {
  const std::optional<Value> otherwise = a.has(1) ? std::optional(a.at(1)) : std::nullopt;
  const bool with_case = flag_argument(a, 2, false);
  const Values all = elements(rt, self);
  Values names, keys;
  for (const Value& element : all) {
    names.push_back(path_of(rt, element, a.at(0), otherwise));
    keys.push_back(sort_key(rt, names.back(), std::nullopt, with_case));
  }
  const std::vector<size_t> order = order_of(rt, keys, false);
  Values out;
  for (size_t first = 0, end = 0; first < order.size(); first = end) {
    Values group;
    for (; end < order.size() && equal(keys[order[first]], keys[order[end]]); ++end) {
      rt.charge_walk(keys[order[end]]);
      group.push_back(all[order[end]]);
    }
    // The name of a group is as its first member has it.
    out.push_back(rt.list({names[order[first]], rt.list(std::move(group))}, List::Kind::kGroup));
  }
  return rt.list(std::move(out));
}

/// Lists of `linecount` elements; the last may be filled up.
Value batch(Runtime& rt, const Value& self, const Arguments& a) {
  const int64_t count = integer_argument(rt, a, 0, 1);
  if (count < 1) rt.fail("batch of less than one");
  Values out, part;
  for (const Value& element : elements(rt, self)) {
    if (part.size() == static_cast<size_t>(count)) out.push_back(rt.list(std::exchange(part, {})));
    part.push_back(element);
  }
  if (!part.empty()) {
    const bool fills = a.has(1) && !a.at(1).is_none();
    if (fills) rt.charge(static_cast<uint64_t>(count));
    while (fills && part.size() < static_cast<size_t>(count)) part.push_back(a.at(1));
    out.push_back(rt.list(std::move(part)));
  }
  return rt.list(std::move(out), List::Kind::kIterator);
}

/// So many lists, of as equal lengths as can be; the shorter ones may be filled up.
Value slice(Runtime& rt, const Value& self, const Arguments& a) {
  const int64_t count = integer_argument(rt, a, 0, 1);
  if (count < 1) rt.fail("slice into less than one list");
  rt.charge(static_cast<uint64_t>(count));
  const Values all = elements(rt, self);
  const auto lists = static_cast<size_t>(count);
  const size_t length = all.size() / lists, longer = all.size() % lists;
  Values out;
  for (size_t i = 0, first = 0; i < lists; ++i) {
    const size_t own = length + (i < longer ? 1 : 0);
    Values part;
    for (size_t j = first; j < first + own; ++j) part.push_back(all[j]);
    first += own;
    if (longer > 0 && i >= longer && a.has(1) && !a.at(1).is_none()) part.push_back(a.at(1));
    out.push_back(rt.list(std::move(part)));
  }
  return rt.list(std::move(out), List::Kind::kIterator);
}

Value attribute_filter(Runtime& rt, const Value& self, const Arguments& a) {
  const std::string& name = text_argument(rt, a, 0, "the name").bytes();
  // Unlike a dot it never looks at a dict's items.
  if (self.dict() != nullptr && find_method(name) == nullptr)
    return Value(Undefined{std::make_shared<const std::string>(name)});
  return attribute(rt, self, name);
}

Value unique(Runtime& rt, const Value& self, const Arguments& a) {
  Values out, seen;
  for (const Value& element : elements(rt, self)) {
    Value key = sort_key(rt, element, a.slots[1], flag_argument(a, 0, false));
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      rt.charge_walk(key);
      return equal(key, other);
    });
    if (known) continue;
    seen.push_back(std::move(key));
    out.push_back(element);
  }
  return rt.list(std::move(out), List::Kind::kIterator);
}

Value parse_json(Runtime& rt, const Value& self, const Arguments&) {
  if (self.text() == nullptr) rt.fail(fmt::format("from_json of {}", describe_type(self)));
  rt.charge(self.text()->size());
  auto value = read_json(self.text()->bytes());
  if (!value) rt.fail("from_json: the text is no JSON");
  return *std::move(value);
}

constexpr Entry kFilters[] = {
    {"abs", "", absolute},
    {"attr", "!name", attribute_filter},
    {"batch", "!linecount fill_with", batch},
    {"count", "", length},
    {"d", "default_value boolean", fallback},
    {"default", "default_value boolean", fallback},
    {"dictsort", "case_sensitive by reverse", dictsort},
    {"first", "", first},
    {"float", "default", to_float},
    {"from_json", "", parse_json},
    {"groupby", "!attribute default case_sensitive", groupby},
    {"int", "default base", to_int},
    {"items", "", items},
    {"last", "", last},
    {"length", "", length},
    {"list", "", list},
    {"map", "", map, true},
    {"max", "case_sensitive attribute", largest},
    {"min", "case_sensitive attribute", smallest},
    {"reject", "", reject, true},
    {"rejectattr", "", rejectattr, true},
    {"reverse", "", reverse},
    {"round", "precision method", round},
    {"select", "", select, true},
    {"selectattr", "", selectattr, true},
    {"slice", "!slices fill_with", slice},
    {"sort", "reverse case_sensitive attribute", sort},
    {"sum", "attribute start", sum},
    {"unique", "case_sensitive attribute", unique},
};

}  // namespace

std::span<const Entry> list_filters() { return kFilters; }

}  // namespace pith::chat
