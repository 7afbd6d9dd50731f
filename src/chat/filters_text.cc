// Filters whose result is a string, and Python's % of strings.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/filters.h"

namespace pith::chat {
namespace {

Text as_text(Runtime& rt, const Value& value) {
  rt.charge_walk(value);
  return to_text(value);
}

/// replace(), with its cost known before it is paid.
Value replaced(Runtime& rt, const Text& text, const Text& from, const Text& to, int64_t count) {
  const std::string& bytes = text.bytes();
  size_t found = 0;
  if (from.empty()) {
    found = bytes.size() + 1;
  } else {
    for (size_t at = 0; (at = find_in(bytes, from.bytes(), at)) != bytes.npos; at += from.size())
      ++found;
  }
  rt.charge(1 + bytes.size() / 64 + found * (1 + to.runs().size()));
  size_t added = 0;
  if (__builtin_mul_overflow(found, to.size(), &added)) added = SIZE_MAX / 2;
  rt.check_size(added);
  return rt.text(replace(text, from.bytes(), to, count));
}

Value cased(Runtime& rt, const Value& self, Case form) {
  const Text text = as_text(rt, self);
  // Title case of a character that is not ASCII costs about a hundred others.
  const bool titled = form != Case::kUpper && form != Case::kLower;
  rt.charge(text.size() * (titled && count_characters(text.bytes()) < text.size() ? 100 : 1));
  return rt.text(change_case(text, form));
}

Value capitalize(Runtime& rt, const Value& self, const Arguments&) {
  return cased(rt, self, Case::kCapitalize);
}
Value lower(Runtime& rt, const Value& self, const Arguments&) {
  return cased(rt, self, Case::kLower);
}
Value title(Runtime& rt, const Value& self, const Arguments&) {
  return cased(rt, self, Case::kWords);
}
Value upper(Runtime& rt, const Value& self, const Arguments&) {
  return cased(rt, self, Case::kUpper);
}

Value format_filter(Runtime& rt, const Value& self, const Arguments& a) {
  if (!a.named.empty()) {
    if (!a.more.empty()) rt.fail("format with positions and names");
    Dict dict;
    for (const auto& [name, value] : a.named) dict.set(Text(name, Origin::kTemplate), value);
    return format(rt, as_text(rt, self), {rt.dict(std::move(dict))});
  }
  return format(rt, as_text(rt, self), a.more);
}

/// Spaces (or a given string) before every line but the first; blank lines stay.
Value indent(Runtime& rt, const Value& self, const Arguments& a) {
  Text margin;
  if (a.has(0) && a.at(0).text() != nullptr) {
    margin = *a.at(0).text();
  } else {
    const int64_t width = integer_argument(rt, a, 0, 4);
    rt.check_size(static_cast<size_t>(std::max<int64_t>(width, 0)));
    margin =
        Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), Origin::kTemplate);
  }
  const bool first = flag_argument(a, 1, false), blank = flag_argument(a, 2, false);
  const Text text = as_text(rt, self);
  rt.charge(text.size());
  std::vector<Line> lines = split_lines(text.bytes());
  // Jinja adds a line end and splits then, so a text that ends in one has a last, empty line.
  const size_t size = text.size();
  const bool open = size == 0 || (lines.back().end < size && text.bytes().back() != '\r');
  if (open) lines.push_back({size, size, size});
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", Origin::kTemplate);
    if (i == 0 ? first : blank || lines[i].end > lines[i].begin) out.append(margin);
    out.append(text, lines[i].begin, lines[i].end);
    rt.charge(1 + margin.size() / 64);
    rt.check_size(out.size());
  }
  return rt.text(std::move(out));
}

Value join(Runtime& rt, const Value& self, const Arguments& a) {
  const Text between = a.has(0) ? as_text(rt, a.at(0)) : Text();
  Text out;
  bool first = true;
  for (const Value& element : elements(rt, self)) {
    if (!std::exchange(first, false)) out.append(between);
    out.append(as_text(rt, a.has(1) ? path_of(rt, element, a.at(1)) : element));
    rt.charge(1 + between.size() / 64 + between.runs().size());
    rt.check_size(out.size());
  }
  return rt.text(std::move(out));
}

Value replace_filter(Runtime& rt, const Value& self, const Arguments& a) {
  const Text from = as_text(rt, a.at(0)), to = as_text(rt, a.at(1));
  return replaced(rt, as_text(rt, self), from, to, integer_argument(rt, a, 2, -1));
}

Value string(Runtime& rt, const Value& self, const Arguments&) {
  return rt.text(as_text(rt, self));
}

Value tojson(Runtime& rt, const Value& self, const Arguments& a) {
  JsonStyle style;
  style.ascii = flag_argument(a, 0, false);
  if (a.has(1) && !a.at(1).is_none()) {
    style.indent = static_cast<int>(std::clamp<int64_t>(integer_argument(rt, a, 1, 0), 0, 1000));
    style.item_separator = ",";
  }
  if (a.has(2) && !a.at(2).is_none()) {
    const List* pair = a.at(2).list();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr)
      rt.fail("separators are two strings");
    style.item_separator = pair->items[0].text()->bytes();
    style.key_separator = pair->items[1].text()->bytes();
    rt.check_size(extent_of(self).size *
                  (style.item_separator.size() + style.key_separator.size() + 1));
  }
  style.sort_keys = flag_argument(a, 3, false);
  rt.charge_walk(self);
  return rt.text(to_json(self, style), Origin::kData);
}

Value safe(Runtime& rt, const Value& self, const Arguments&) {
  return rt.text(as_text(rt, self).as_markup());
}

Value escape_filter(Runtime& rt, const Value& self, const Arguments&) {
  return rt.text(escape(as_text(rt, self)));
}

/// Jinja2's: at a word's end unless told, and not at all where `leeway` characters more would do.
Value truncate(Runtime& rt, const Value& self, const Arguments& a) {
  const Text text = as_text(rt, self);
  const int64_t length = integer_argument(rt, a, 0, 255);
  const Text end = a.has(2) ? text_argument(rt, a, 2, "end") : Text("...", Origin::kTemplate);
  const int64_t leeway = integer_argument(rt, a, 3, 5);
  const auto characters = [](const Text& t) {
    return static_cast<int64_t>(count_characters(t.bytes()));
  };
  if (length < characters(end) || leeway < 0)
    rt.fail(fmt::format("truncate to {} characters, less than its end has", length));
  rt.charge(text.size());
  if (characters(text) <= length || characters(text) - length <= leeway) return rt.text(text);
  Text out = text.slice(0, offset_of(text.bytes(), static_cast<size_t>(length - characters(end))));
  if (!flag_argument(a, 1, false)) {
    const size_t space = out.bytes().rfind(' ');
    if (space != std::string::npos) out = out.slice(0, space);
  }
  out.append(end);
  return rt.text(std::move(out));
}

Value center(Runtime& rt, const Value& self, const Arguments& a) {
  const Text text = as_text(rt, self);
  const int64_t room =
      integer_argument(rt, a, 0, 80) - static_cast<int64_t>(count_characters(text.bytes()));
  if (room <= 0) return rt.text(text);
  rt.check_size(static_cast<size_t>(room));
  // Python puts the odd space on the left of a text of odd width.
  const int64_t width = integer_argument(rt, a, 0, 80);
  const auto left = static_cast<size_t>(room / 2 + (room & width & 1));
  Text out(std::string(left, ' '), Origin::kTemplate);
  out.append(text);
  out.append(std::string(static_cast<size_t>(room) - left, ' '), Origin::kTemplate);
  return rt.text(std::move(out));
}

Value wordcount(Runtime& rt, const Value& self, const Arguments&) {
  const Text text = as_text(rt, self);
  rt.charge(text.size());
  int64_t words = 0;
  bool within = false;
  for (size_t at = 0; at < text.size(); at += character_size(text.bytes(), at)) {
    const char32_t c = character_at(text.bytes(), at);
    const bool word = c == '_' || is_alphanumeric(c);
    words += word && !within ? 1 : 0;
    within = word;
  }
  return Value(words);
}

Value trim(Runtime& rt, const Value& self, const Arguments& a) {
  const Text text = as_text(rt, self);
  const Text* set =
      a.has(0) && !a.at(0).is_none() ? &text_argument(rt, a, 0, "trim's set") : nullptr;
  return rt.text(strip(text, true, true, set));
}

constexpr Entry kFilters[] = {
    {"capitalize", "", capitalize},
    {"center", "width", center},
    {"e", "", escape_filter},
    {"escape", "", escape_filter},
    {"format", "", format_filter, true},
    {"indent", "width first blank", indent},
    {"join", "d attribute", join},
    {"lower", "", lower},
    {"replace", "!old !new count", replace_filter},
    {"safe", "", safe},
    {"string", "", string},
    {"title", "", title},
    {"tojson", "ensure_ascii indent separators sort_keys", tojson},
    {"trim", "chars", trim},
    {"truncate", "length killwords end leeway", truncate},
    {"upper", "", upper},
    {"wordcount", "", wordcount},
};

}  // namespace

std::span<const Entry> text_filters() { return kFilters; }

namespace {

/// The text behind one % of a pattern.
struct Spec {
  bool left = false, plus = false, space = false, zero = false, alternative = false;
  int64_t width = 0, precision = -1;
  char type = 0;
};

/// Reads a spec from `at`, just behind the %.
Spec read_spec(Runtime& rt, std::string_view pattern, size_t& at) {
  Spec spec;
  for (; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c == '-')
      spec.left = true;
    else if (c == '+')
      spec.plus = true;
    else if (c == ' ')
      spec.space = true;
    else if (c == '0')
      spec.zero = true;
    else if (c == '#')
      spec.alternative = true;
    else
      break;
  }
  const auto number = [&] {
    int64_t value = 0;
    for (; at < pattern.size() && pattern[at] >= '0' && pattern[at] <= '9'; ++at) {
      value = value * 10 + (pattern[at] - '0');
      rt.check_size(static_cast<size_t>(value));
    }
    return value;
  };
  spec.width = number();
  if (at < pattern.size() && pattern[at] == '.') {
    ++at;
    spec.precision = number();
  }
  if (at == pattern.size()) rt.fail("a format that ends within a %");
  spec.type = pattern[at++];
  return spec;
}

std::string format_number(Runtime& rt, const Spec& spec, const Value& value) {
  if (!value.is_number())
    rt.fail(fmt::format("%{} needs a number, not {}", spec.type, describe_type(value)));
  const bool integer = std::string_view("dixXo").find(spec.type) != std::string_view::npos;
  std::string digits;
  bool negative = false;
  if (integer) {
    if (value.is_float() && spec.type != 'd' && spec.type != 'i') rt.fail("an integer is needed");
    if (value.is_float() && !(std::fabs(value.number()) < 9.2e18))
      rt.fail("an integer of more than 64 bits");
    const int64_t whole = value.is_float() ? static_cast<int64_t>(value.number()) : value.integer();
    negative = whole < 0;
    const uint64_t size =
        negative ? 0 - static_cast<uint64_t>(whole) : static_cast<uint64_t>(whole);
    digits = spec.type == 'x'   ? fmt::format("{:x}", size)
             : spec.type == 'X' ? fmt::format("{:X}", size)
             : spec.type == 'o' ? fmt::format("{:o}", size)
                                : std::to_string(size);
    if (spec.precision > static_cast<int64_t>(digits.size()))
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  } else {
    const int precision =
        static_cast<int>(std::min<int64_t>(spec.precision < 0 ? 6 : spec.precision, 400));
    const double size = std::fabs(value.number());
    negative = std::signbit(value.number());
    digits = spec.type == 'e'   ? fmt::format("{:.{}e}", size, precision)
             : spec.type == 'g' ? fmt::format("{:.{}g}", size, precision)
                                : fmt::format("{:.{}f}", size, precision);
  }
  const std::string sign = negative ? "-" : spec.plus ? "+" : spec.space ? " " : "";
  if (spec.zero && !spec.left) {
    const size_t have = sign.size() + digits.size(), wide = static_cast<size_t>(spec.width);
    if (have < wide) digits.insert(0, wide - have, '0');
  }
  return sign + digits;
}

Text format_one(Runtime& rt, const Spec& spec, const Value& value) {
  rt.charge_walk(value);
  Text out;
  if (spec.type == 's' || spec.type == 'r') {
    out = spec.type == 's' ? to_text(value) : to_repr(value);
    if (spec.precision >= 0)
      out = out.slice(0, offset_of(out.bytes(), static_cast<size_t>(spec.precision)));
  } else if (std::string_view("dixXofFeg").find(spec.type) != std::string_view::npos &&
             !spec.alternative) {
    out = Text(format_number(rt, spec, value), Origin::kTemplate);
  } else {
    rt.fail(fmt::format("the format %{}; supported: %s %r %d %i %x %X %o %f %e %g", spec.type),
            ErrorCode::kUnsupported);
  }
  const size_t have = count_characters(out.bytes()), wide = static_cast<size_t>(spec.width);
  if (have >= wide) return out;
  const std::string space(wide - have, ' ');
  if (spec.left) {
    out.append(space, Origin::kTemplate);
    return out;
  }
  Text padded(space, Origin::kTemplate);
  padded.append(out);
  return padded;
}

}  // namespace

Value format(Runtime& rt, const Text& pattern, const Values& values) {
  const std::string_view bytes = pattern.bytes();
  Text out;
  const auto lay_out = [&](const Value& value, const Spec& spec) {
    rt.charge(1 + static_cast<uint64_t>(spec.width) / 64);
    out.append(format_one(rt, spec, value));
    rt.check_size(out.size());
  };
  size_t used = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t percent = std::min(bytes.find('%', at), bytes.size());
    out.append(pattern, at, percent);
    at = percent;
    if (at == bytes.size()) break;
    ++at;
    if (at < bytes.size() && bytes[at] == '%') {
      out.append(pattern, at, at + 1);
      ++at;
      continue;
    }
    if (at < bytes.size() && bytes[at] == '(') {
      const size_t close = bytes.find(')', at);
      const Dict* dict = values.size() == 1 ? values[0].dict() : nullptr;
      if (close == bytes.npos || dict == nullptr) rt.fail("a format with names needs a dict");
      const std::string_view name = bytes.substr(at + 1, close - at - 1);
      const Value* value = dict->find(name);
      if (value == nullptr) rt.fail(fmt::format("the format's dict has no '{}'", name));
      at = close + 1;
      lay_out(*value, read_spec(rt, bytes, at));
      used = 1;
      continue;
    }
    const Spec spec = read_spec(rt, bytes, at);
    if (used == values.size()) rt.fail("fewer values than the format asks for");
    lay_out(values[used++], spec);
  }
  const bool unused_dict = values.size() == 1 && values[0].dict() != nullptr;  // as in Python
  if (used < values.size() && !unused_dict) rt.fail("more values than the format asks for");
  return rt.text(std::move(out));
}

Value replace_text(Runtime& rt, const Text& text, const Text& from, const Text& to, int64_t count) {
  return replaced(rt, text, from, to, count);
}

Value change_text(Runtime& rt, const Value& self, Case form) { return cased(rt, self, form); }

Value has_case(Runtime& rt, const Value& text, Case form) {
  const Case other = form == Case::kUpper ? Case::kLower : Case::kUpper;
  return Value(equal(change_text(rt, text, form), text) &&
               !equal(change_text(rt, text, other), text));
}

}  // namespace pith::chat
