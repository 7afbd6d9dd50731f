// Python's str.format(), with its format specs of strings and numbers.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/filters.h"

namespace pith::chat {
namespace {

/// A place between the braces: which value, "!r", and how it is laid out.
struct Place {
  std::string name, spec;
  char conversion = 0;
};

Place read_place(Runtime& rt, const std::string& text) {
  Place out;
  const size_t colon = std::min(text.find(':'), text.size());
  const size_t mark = std::min(text.find('!'), colon);
  out.name = text.substr(0, mark);
  if (colon < text.size()) out.spec = text.substr(colon + 1);
  if (mark == colon) return out;
  out.conversion = colon - mark == 2 ? text[mark + 1] : '?';
  if (out.conversion != 's' && out.conversion != 'r')
    rt.fail(fmt::format("format of '{{{}}}'; supported: !s and !r", text), ErrorCode::kUnsupported);
  return out;
}

/// [[fill]align][sign][0][width][,][.precision][type]
struct Layout {
  std::string fill = " ";
  char align = 0, sign = '-', type = 0;
  bool zeros = false, commas = false;
  int64_t width = 0, precision = -1;
};

Layout read_layout(Runtime& rt, const std::string& spec) {
  Layout out;
  size_t at = 0;
  const auto is_one_of = [&](size_t i, std::string_view set) {
    return i < spec.size() && set.find(spec[i]) != set.npos;
  };
  const size_t first = spec.empty() ? 0 : character_size(spec, 0);
  if (is_one_of(first, "<>=^")) {
    out.fill = spec.substr(0, first);
    at = first;
  }
  if (is_one_of(at, "<>=^")) out.align = spec[at++];
  if (is_one_of(at, "+- ")) out.sign = spec[at++];
  if (is_one_of(at, "0")) {
    out.zeros = true;
    ++at;
  }
  const auto number = [&] {
    int64_t value = 0;
    for (; is_one_of(at, "0123456789"); ++at) {
      value = value * 10 + (spec[at] - '0');
      rt.check_size(static_cast<size_t>(value));
    }
    return value;
  };
  out.width = number();
  if (is_one_of(at, ",")) {
    out.commas = true;
    ++at;
  }
  if (is_one_of(at, ".") && is_one_of(at + 1, "0123456789")) {
    ++at;
    out.precision = number();
  }
  if (is_one_of(at, "sdxXobeEfFgG%")) out.type = spec[at++];
  if (at < spec.size())
    rt.fail(fmt::format("format with the spec '{}'; supported: [[fill]align][sign][0][width][,]"
                        "[.precision][s, d, x, X, o, b, e, E, f, F, g, G or %]",
                        spec),
            ErrorCode::kUnsupported);
  if (out.zeros && out.align == 0) {
    out.align = '=';
    out.fill = "0";
  }
  return out;
}

std::string whole_digits(const Layout& to, uint64_t value) {
  switch (to.type) {
    case 'x': return fmt::format("{:x}", value);
    case 'X': return fmt::format("{:X}", value);
    case 'o': return fmt::format("{:o}", value);
    case 'b': return fmt::format("{:b}", value);
    default: return fmt::format("{}", value);
  }
}

std::string real_digits(const Layout& to, double value) {
  const int precision = static_cast<int>(std::min<int64_t>(to.precision, 400));
  // Without a type it is Python's shortest form, or with a precision nearly 'g'.
  if (to.type == 0 && precision < 0) return float_text(value);
  const int digits = precision < 0 ? 6 : precision;
  switch (to.type) {
    case 'e': return fmt::format("{:.{}e}", value, digits);
    case 'E': return fmt::format("{:.{}E}", value, digits);
    case 'g': return fmt::format("{:.{}g}", value, digits);
    case 'G': return fmt::format("{:.{}G}", value, digits);
    case '%': return fmt::format("{:.{}f}%", 100 * value, digits);
    default: return fmt::format("{:.{}f}", value, digits);
  }
}

void separate_thousands(std::string& digits) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = whole; at > 3; at -= 3) digits.insert(at - 3, ",");
}

/// A number's sign, and its digits in `digits`.
std::string read_number(Runtime& rt, const Layout& to, const Value& value, std::string& digits) {
  const bool real =
      value.is_float() ||
      (to.type != 0 && std::string_view("eEfFgG%").find(to.type) != std::string_view::npos);
  if (to.type == 's' || (real && to.type != 0 && !value.is_number()) ||
      (value.is_float() && to.type != 0 &&
       std::string_view("dxXob").find(to.type) != std::string_view::npos) ||
      (value.is_float() && to.type == 0 && to.precision >= 0) || (!real && to.precision >= 0))
    rt.fail(fmt::format("format of {} with the type '{}'", describe_type(value),
                        to.type == 0 ? ' ' : to.type));
  bool negative = false;
  if (real) {
    negative = std::signbit(value.number());
    digits = real_digits(to, std::fabs(value.number()));
  } else {
    const int64_t whole = value.integer();
    negative = whole < 0;
    const auto size = static_cast<uint64_t>(whole);
    digits = whole_digits(to, negative ? 0 - size : size);
  }
  if (to.commas) separate_thousands(digits);
  return negative ? "-" : to.sign == '-' ? "" : std::string(1, to.sign);
}

Text laid_out(Runtime& rt, const Value& value, const std::string& spec) {
  const Layout to = read_layout(rt, spec);
  const bool number = value.is_number() && !(value.is_bool() && to.type == 0);
  std::string sign;
  Text body;
  if (number) {
    std::string digits;
    sign = read_number(rt, to, value, digits);
    body = Text(digits, Origin::kTemplate);
  } else {
    if (value.text() == nullptr)
      rt.fail(fmt::format("format of {} with a spec", describe_type(value)));
    if ((to.type != 0 && to.type != 's') || to.align == '=' || to.commas || to.sign != '-')
      rt.fail(fmt::format("format of a string with the spec '{}'", spec));
    body = *value.text();
    if (to.precision >= 0)
      body = body.slice(0, offset_of(body.bytes(), static_cast<size_t>(to.precision)));
  }
  const size_t have = sign.size() + count_characters(body.bytes());
  const size_t room =
      static_cast<size_t>(to.width) > have ? static_cast<size_t>(to.width) - have : 0;
  rt.charge(1 + room / 16);
  const char align = to.align != 0 ? to.align : number ? '>' : '<';
  const size_t left = align == '<' ? 0 : align == '^' ? room / 2 : room;
  const auto space = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += to.fill;
    return out;
  };
  Text out(align == '=' ? sign + space(left) : space(left) + sign, Origin::kTemplate);
  out.append(body);
  out.append(space(room - left), Origin::kTemplate);
  return out;
}

}  // namespace

Value format_method(Runtime& rt, const Value& self, const Arguments& a) {
  if (self.text() == nullptr)
    rt.fail(fmt::format("{} has no method 'format'", describe_type(self)));
  rt.charge_walk(self);
  const Text& pattern = *self.text();
  const std::string& bytes = pattern.bytes();
  Text out;
  size_t next = 0;
  bool numbered = false;
  for (size_t at = 0; at < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.append(pattern, at, brace);
    at = brace;
    if (at == bytes.size()) break;
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
      out.append(pattern, at, at + 1);
      at += 2;
      continue;
    }
    const size_t end = bytes.find('}', at);
    if (bytes[at] == '}' || end == bytes.npos) rt.fail("format with a brace that stands alone");
    const Place place = read_place(rt, bytes.substr(at + 1, end - at - 1));
    at = end + 1;
    const std::string& name = place.name;
    const Value* value = nullptr;
    const bool digits = name.find_first_not_of("0123456789") == name.npos;
    numbered |= digits && !name.empty();
    if (numbered && (name.empty() || next > 0)) rt.fail("format numbers all its places or none");
    const bool number = digits && name.size() < 9;
    const size_t index = name.empty() ? next++ : number ? std::stoul(name) : SIZE_MAX;
    if (index < a.more.size()) value = &a.more[index];
    for (const auto& [key, given] : a.named)
      if (!number && key == name) value = &given;
    if (value == nullptr && name.find_first_of(".[") != name.npos)
      rt.fail(fmt::format("format of '{{{}}}'; supported: {{}}, {{0}} and {{name}}", name),
              ErrorCode::kUnsupported);
    if (value == nullptr) rt.fail(fmt::format("format has no value for '{{{}}}'", name));
    rt.charge_walk(*value);
    const Value converted = place.conversion == 'r'   ? rt.text(to_repr(*value))
                            : place.conversion == 's' ? rt.text(to_text(*value))
                                                      : *value;
    out.append(place.spec.empty() ? to_text(converted) : laid_out(rt, converted, place.spec));
    rt.check_size(out.size());
  }
  return rt.text(std::move(out));
}

}  // namespace pith::chat
