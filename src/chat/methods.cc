// Methods of strings, dicts and the loop; functions of the environment; and all tables by name.

#include <fmt/format.h>

#include <algorithm>

#include "chat/filters.h"

namespace pith::chat {
namespace {

const Text& string_of(Runtime& rt, const Value& self, const char* method) {
  if (self.text() == nullptr)
    rt.fail(fmt::format("{} has no method '{}'", describe_type(self), method));
  rt.charge_walk(self);
  return *self.text();
}

const Dict& dict_of(Runtime& rt, const Value& self, const char* method) {
  if (self.dict() == nullptr)
    rt.fail(fmt::format("{} has no method '{}'", describe_type(self), method));
  return *self.dict();
}

// ---- Strings ----

template <bool kLeft, bool kRight>
Value stripped(Runtime& rt, const Value& self, const Arguments& a) {
  const Text& text = string_of(rt, self, "strip");
  const Text* set =
      a.has(0) && !a.at(0).is_none() ? &text_argument(rt, a, 0, "strip's set") : nullptr;
  return rt.text(strip(text, kLeft, kRight, set));
}

/// Pieces between separators, or words where no separator is given; at most `most` cuts.
Value split(Runtime& rt, const Value& self, const Arguments& a) {
  const Text& text = string_of(rt, self, "split");
  const std::string& bytes = text.bytes();
  int64_t most = integer_argument(rt, a, 1, -1);
  Values out;
  const auto cut = [&](size_t begin, size_t end) {
    out.push_back(rt.text(text.slice(begin, end)));
  };
  if (a.has(0) && !a.at(0).is_none()) {
    const std::string& by = text_argument(rt, a, 0, "the separator").bytes();
    if (by.empty()) rt.fail("split with an empty separator");
    size_t begin = 0;
    for (size_t at; most != 0 && (at = find_in(bytes, by, begin)) != bytes.npos; --most) {
      cut(begin, at);
      begin = at + by.size();
    }
    cut(begin, bytes.size());
    return rt.list(std::move(out));
  }
  const auto skip = [&](size_t at, bool space) {
    while (at < bytes.size() && is_space(character_at(bytes, at)) == space)
      at += character_size(bytes, at);
    return at;
  };
  for (size_t at = skip(0, true); at < bytes.size(); at = skip(at, true)) {
    if (most-- == 0) {
      cut(at, bytes.size());
      break;
    }
    const size_t end = skip(at, false);
    cut(at, end);
    at = end;
  }
  return rt.list(std::move(out));
}

/// As split, from the right.
Value split_right(Runtime& rt, const Value& self, const Arguments& a) {
  const Text& text = string_of(rt, self, "rsplit");
  if (!a.has(0) || a.at(0).is_none())
    rt.fail("rsplit without a separator", ErrorCode::kUnsupported);
  const std::string& by = text_argument(rt, a, 0, "the separator").bytes();
  if (by.empty()) rt.fail("rsplit with an empty separator");
  Values out;
  size_t end = text.size();
  // Searched forwards from the end, so that all searches together take linear time.
  const std::string turned(text.bytes().rbegin(), text.bytes().rend()),
      turned_by(by.rbegin(), by.rend());
  for (int64_t most = integer_argument(rt, a, 1, -1); most != 0; --most) {
    const size_t found = find_in(turned, turned_by, text.size() - end);
    if (found == std::string::npos) break;
    const size_t at = text.size() - found;  // behind the separator
    out.push_back(rt.text(text.slice(at, end)));
    end = at - by.size();
  }
  out.push_back(rt.text(text.slice(0, end)));
  std::reverse(out.begin(), out.end());
  return rt.list(std::move(out));
}

Value lines_of(Runtime& rt, const Value& self, const Arguments& a) {
  const Text& text = string_of(rt, self, "splitlines");
  const bool keep = flag_argument(a, 0, false);
  Values out;
  rt.charge(text.size());
  for (const Line& line : split_lines(text.bytes()))
    out.push_back(rt.text(text.slice(line.begin, keep ? line.next : line.end)));
  return rt.list(std::move(out));
}

/// startswith and endswith: one string, or any of a tuple's.
template <bool kStart>
Value has_end(Runtime& rt, const Value& self, const Arguments& a) {
  const std::string& text = string_of(rt, self, kStart ? "startswith" : "endswith").bytes();
  const List* list = a.at(0).list();
  const Values wanted = list == nullptr ? Values{a.at(0)} : list->items;
  return Value(std::any_of(wanted.begin(), wanted.end(), [&](const Value& value) {
    if (value.text() == nullptr) rt.fail("a string is needed");
    rt.charge_walk(value);
    const std::string& end = value.text()->bytes();
    return kStart ? text.starts_with(end) : text.ends_with(end);
  }));
}

Value replace_method(Runtime& rt, const Value& self, const Arguments& a) {
  const Text& text = string_of(rt, self, "replace");
  return replace_text(rt, text, text_argument(rt, a, 0, "old"), text_argument(rt, a, 1, "new"),
                      integer_argument(rt, a, 2, -1));
}

template <Case kForm>
Value cased(Runtime& rt, const Value& self, const Arguments&) {
  string_of(rt, self, "upper");
  return change_text(rt, self, kForm);
}

/// `kNeeded`: index and rindex, which fail where find gives -1.
template <bool kLast, bool kNeeded>
Value find(Runtime& rt, const Value& self, const Arguments& a) {
  const std::string& text = string_of(rt, self, "find").bytes();
  const std::string& wanted = text_argument(rt, a, 0, "what is looked for").bytes();
  const size_t at = kLast ? find_last_in(text, wanted) : find_in(text, wanted);
  if (at == text.npos && kNeeded) rt.fail("index of a text that is not there");
  if (at == text.npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(count_characters(std::string_view(text).substr(0, at))));
}

Value count(Runtime& rt, const Value& self, const Arguments& a) {
  const std::string& text = string_of(rt, self, "count").bytes();
  const std::string& wanted = text_argument(rt, a, 0, "what is counted").bytes();
  if (wanted.empty()) return Value(static_cast<int64_t>(count_characters(text)) + 1);
  int64_t found = 0;
  for (size_t at = 0; (at = find_in(text, wanted, at)) != text.npos; at += wanted.size()) ++found;
  return Value(found);
}

template <bool kLast>
Value partition(Runtime& rt, const Value& self, const Arguments& a) {
  const Text& text = string_of(rt, self, "partition");
  const std::string& by = text_argument(rt, a, 0, "the separator").bytes();
  if (by.empty()) rt.fail("partition by an empty separator");
  size_t at = kLast ? find_last_in(text.bytes(), by) : find_in(text.bytes(), by);
  size_t end = at + by.size();
  if (at == std::string::npos) at = end = kLast ? 0 : text.size();
  return rt.list({rt.text(text.slice(0, at)), rt.text(text.slice(at, end)),
                  rt.text(text.slice(end, text.size()))},
                 List::Kind::kTuple);
}

enum class Side : uint8_t { kLeft, kRight, kMiddle, kZeros };

/// ljust, rjust, center and zfill, by where the text comes to lie; zfill's zeros come behind a
/// sign.
template <Side kSide>
Value padded(Runtime& rt, const Value& self, const Arguments& a) {
  const Text& text = string_of(rt, self, "rjust");
  const int64_t width = integer_argument(rt, a, 0, 0);
  const int64_t room = width - static_cast<int64_t>(count_characters(text.bytes()));
  if (room <= 0) return self;
  rt.check_size(4 * static_cast<size_t>(room));
  const std::string fill = kSide == Side::kZeros ? "0"
                           : a.has(1)            ? text_argument(rt, a, 1, "the fill").bytes()
                                                 : " ";
  if (count_characters(fill) != 1) rt.fail("the fill must be one character");
  // Python puts the odd space on the left of a text of odd width.
  const int64_t left = kSide == Side::kLeft     ? 0
                       : kSide == Side::kMiddle ? room / 2 + (room & width & 1)
                                                : room;
  const auto space = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += fill;
    return out;
  };
  const bool sign =
      kSide == Side::kZeros && (text.bytes().starts_with('-') || text.bytes().starts_with('+'));
  Text out = text.slice(0, sign ? 1 : 0);
  out.append(space(left), Origin::kTemplate);
  out.append(text, sign ? 1 : 0, text.size());
  out.append(space(room - left), Origin::kTemplate);
  return rt.text(std::move(out));
}

Value join(Runtime& rt, const Value& self, const Arguments& a) {
  string_of(rt, self, "join");
  for (const Value& part : elements(rt, a.at(0)))
    if (part.text() == nullptr) rt.fail(fmt::format("join of {}", describe_type(part)));
  return call(rt, *find_filter("join"), a.at(0), {self});
}

template <bool kStart>
Value without_end(Runtime& rt, const Value& self, const Arguments& a) {
  const Text& text = string_of(rt, self, "removeprefix");
  const std::string& end = text_argument(rt, a, 0, "what is removed").bytes();
  if (kStart && text.bytes().starts_with(end)) return rt.text(text.slice(end.size(), text.size()));
  if (!kStart && text.bytes().ends_with(end))
    return rt.text(text.slice(0, text.size() - end.size()));
  return self;
}

template <bool (*kHolds)(char32_t)>
Value all_are(Runtime& rt, const Value& self, const Arguments&) {
  const std::string& text = string_of(rt, self, "isdigit").bytes();
  rt.charge(text.size());
  for (size_t at = 0; at < text.size(); at += character_size(text, at))
    if (!kHolds(character_at(text, at))) return Value(false);
  return Value(!text.empty());
}
bool space(char32_t c) { return is_space(c); }

template <Case kForm>
Value in_case(Runtime& rt, const Value& self, const Arguments&) {
  string_of(rt, self, "isupper");
  return has_case(rt, self, kForm);
}

// ---- Dicts and the loop ----

Value get(Runtime& rt, const Value& self, const Arguments& a) {
  const Dict& dict = dict_of(rt, self, "get");
  const Value* found = dict.find_key(a.at(0));
  if (found != nullptr) return *found;
  return a.has(1) ? a.at(1) : Value(None{});
}

Value items(Runtime& rt, const Value& self, const Arguments&) {
  Values out;
  for (const auto& [key, value] : dict_of(rt, self, "items").items)
    out.push_back(rt.list({key, value}, List::Kind::kTuple));
  return rt.list(std::move(out), List::Kind::kView);
}

Value keys(Runtime& rt, const Value& self, const Arguments&) {
  Values out;
  for (const auto& item : dict_of(rt, self, "keys").items) out.push_back(item.first);
  return rt.list(std::move(out), List::Kind::kView);
}

Value values(Runtime& rt, const Value& self, const Arguments&) {
  Values out;
  for (const auto& item : dict_of(rt, self, "values").items) out.push_back(item.second);
  return rt.list(std::move(out), List::Kind::kView);
}

/// True if loop.changed() was last asked for other values.
Value changed(Runtime& rt, const Value& self, const Arguments& a) {
  if (self.loop() == nullptr) rt.fail("changed is of the loop");
  Values& seen = *self.loop()->seen;
  for (const Value& value : a.more) rt.charge_walk(value);
  // An empty list of values is one too: the first value says that something was asked.
  Values now = {Value(true)};
  now.insert(now.end(), a.more.begin(), a.more.end());
  if (std::ranges::equal(seen, now, equal)) return Value(false);
  if (std::ranges::any_of(now, [](const Value& v) {
        const Extent of = extent_of(v);
        return of.spaces || of.loops;
      }))
    rt.fail("loop.changed of a namespace or a loop", ErrorCode::kUnsupported);
  seen = std::move(now);
  return Value(true);
}

Value copy(Runtime& rt, const Value& self, const Arguments&) {
  dict_of(rt, self, "copy");
  return self;  // values do not change
}

Value cycle(Runtime& rt, const Value& self, const Arguments& a) {
  if (self.loop() == nullptr || a.more.empty()) rt.fail("cycle is of the loop, with some values");
  return a.more[self.loop()->index % a.more.size()];
}

constexpr Entry kMethods[] = {
    {"capitalize", "", cased<Case::kCapitalize>},
    {"center", "!width fillchar", padded<Side::kMiddle>},
    {"changed", "", changed, true},
    {"copy", "", copy},
    {"count", "!sub", count},
    {"cycle", "", cycle, true},
    {"endswith", "!suffix", has_end<false>},
    {"find", "!sub", find<false, false>},
    {"format", "", format_method, true},
    {"get", "!key default", get},
    {"index", "!sub", find<false, true>},
    {"isalnum", "", all_are<is_alphanumeric>},
    {"isalpha", "", all_are<is_letter>},
    {"isdecimal", "", all_are<is_decimal>},
    {"isdigit", "", all_are<is_digit>},
    {"islower", "", in_case<Case::kLower>},
    {"isnumeric", "", all_are<is_numeric>},
    {"isspace", "", all_are<space>},
    {"isupper", "", in_case<Case::kUpper>},
    {"items", "", items},
    {"join", "!iterable", join},
    {"keys", "", keys},
    {"ljust", "!width fillchar", padded<Side::kLeft>},
    {"lower", "", cased<Case::kLower>},
    {"lstrip", "chars", stripped<true, false>},
    {"partition", "!sep", partition<false>},
    {"removeprefix", "!prefix", without_end<true>},
    {"removesuffix", "!suffix", without_end<false>},
    {"replace", "!old !new count", replace_method},
    {"rfind", "!sub", find<true, false>},
    {"rindex", "!sub", find<true, true>},
    {"rjust", "!width fillchar", padded<Side::kRight>},
    {"rpartition", "!sep", partition<true>},
    {"rsplit", "sep maxsplit", split_right},
    {"rstrip", "chars", stripped<false, true>},
    {"split", "sep maxsplit", split},
    {"splitlines", "keepends", lines_of},
    {"startswith", "!prefix", has_end<true>},
    {"strip", "chars", stripped<true, true>},
    {"title", "", cased<Case::kTitle>},
    {"upper", "", cased<Case::kUpper>},
    {"values", "", values},
    {"zfill", "!width", padded<Side::kZeros>},
};

// ---- Functions ----

Value dict_function(Runtime& rt, const Value&, const Arguments& a) {
  Dict dict;
  for (const Value& from : a.more)
    for (const auto& [key, value] : dict_of(rt, from, "dict").items) dict.set(key, value);
  for (const auto& [name, value] : a.named) dict.set(Text(name, Origin::kTemplate), value);
  return rt.dict(std::move(dict));
}

Value namespace_function(Runtime& rt, const Value&, const Arguments& a) {
  auto space = std::make_shared<Namespace>();
  const auto put = [&](const std::string& name, const Value& value) {
    if (extent_of(value).spaces) rt.fail("a namespace in a namespace", ErrorCode::kUnsupported);
    space->members.insert_or_assign(name, value);
  };
  for (const Value& from : a.more)
    for (const auto& [key, value] : dict_of(rt, from, "namespace").items)
      put(to_text(key).bytes(), value);
  for (const auto& [name, value] : a.named) put(name, value);
  return Value(std::move(space));
}

Value raise(Runtime& rt, const Value&, const Arguments& a) {
  rt.fail(fmt::format("the template refuses: {}", to_text(a.at(0)).bytes()));
}

Value range(Runtime& rt, const Value&, const Arguments& a) {
  const int64_t one = integer_argument(rt, a, 0, 0);
  const int64_t start = a.has(1) ? one : 0, stop = a.has(1) ? integer_argument(rt, a, 1, 0) : one;
  const int64_t step = integer_argument(rt, a, 2, 1);
  if (step == 0) rt.fail("range with step 0");
  Values out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    out.push_back(Value(i));
    if (out.size() > 1'000'000) rt.fail("a range of more than a million");
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return rt.list(std::move(out));
}

Value now(Runtime& rt, const Value&, const Arguments& a) {
  const std::string& form = text_argument(rt, a, 0, "the format").bytes();
  if (form.empty()) return rt.text(Text());
  const std::tm time = rt.now();
  char out[1024];
  const size_t size = std::strftime(out, sizeof out, form.c_str(), &time);
  if (size == 0) rt.fail("strftime_now with a result of more than 1023 bytes");
  return rt.text(std::string(out, size), Origin::kTemplate);
}

constexpr Entry kGlobals[] = {
    {"dict", "", dict_function, true},      {"namespace", "", namespace_function, true},
    {"raise_exception", "!message", raise}, {"range", "!start stop step", range},
    {"strftime_now", "!format", now},
};

// ---- Tables by name ----

const Entry* find_in(std::span<const Entry> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : &*found;
}

void append_names(std::string& out, std::span<const Entry> table) {
  for (const Entry& entry : table) {
    if (!out.empty()) out += ", ";
    out += entry.name;
  }
}

std::string names_of(std::span<const Entry> table) {
  std::string out;
  append_names(out, table);
  return out;
}

}  // namespace

std::span<const Entry> all_methods() { return kMethods; }
std::span<const Entry> all_globals() { return kGlobals; }

const Entry* find_filter(std::string_view name) {
  const Entry* found = find_in(text_filters(), name);
  return found != nullptr ? found : find_in(list_filters(), name);
}
const Entry* find_test(std::string_view name) { return find_in(all_tests(), name); }
const Entry* find_method(std::string_view name) { return find_in(kMethods, name); }
const Entry* find_global(std::string_view name) { return find_in(kGlobals, name); }

std::string filter_names() {
  std::string out = names_of(text_filters());
  append_names(out, list_filters());
  return out;
}
std::string test_names() { return names_of(all_tests()); }
std::string method_names() { return names_of(kMethods); }
std::string global_names() { return names_of(kGlobals); }

}  // namespace pith::chat
