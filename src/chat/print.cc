// Values as text: as Python prints them, and as its json.dumps does.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/value.h"
#include "pith/error.h"

namespace pith::chat {
namespace {

// str.__repr__: the quote that needs no escape, escapes for what cannot be seen.
std::string quote(std::string_view text) {
  const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
  const char mark = single ? '\'' : '"';
  std::string out(1, mark);
  for (size_t at = 0; at < text.size();) {
    const size_t size = character_size(text, at);
    const char32_t c = character_at(text, at);
    if (c == static_cast<char32_t>(mark) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      out += text.substr(at, size);
    } else {
      const auto code = static_cast<uint32_t>(c);
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
    at += size;
  }
  return out + mark;
}

void append_repr(Text& out, const Value& value);

void append_list(Text& out, const List& list) {
  if (list.kind == List::Kind::kView || list.kind == List::Kind::kIterator) {
    throw Error(ErrorCode::kUnsupported,
                "a view or an iterator cannot be printed; |list makes a list of it");
  }
  const bool tuple = list.is_tuple();
  out.append(tuple ? "(" : "[", Origin::kTemplate);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ", Origin::kTemplate);
    append_repr(out, list.items[i]);
  }
  if (tuple && list.items.size() == 1) out.append(",", Origin::kTemplate);
  out.append(tuple ? ")" : "]", Origin::kTemplate);
}

void append_dict(Text& out, const Dict& dict) {
  out.append("{", Origin::kTemplate);
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out.append(", ", Origin::kTemplate);
    append_repr(out, dict.items[i].first);
    out.append(": ", Origin::kTemplate);
    append_repr(out, dict.items[i].second);
  }
  out.append("}", Origin::kTemplate);
}

void append_plain(Text& out, const Value& value) {
  if (value.is_undefined()) return;
  if (value.is_none()) return out.append("None", Origin::kTemplate);
  if (value.is_bool())
    return out.append(value.integer() != 0 ? "True" : "False", Origin::kTemplate);
  if (value.is_integer()) return out.append(std::to_string(value.integer()), Origin::kTemplate);
  if (value.is_float()) return out.append(float_text(value.number()), Origin::kTemplate);
  if (value.wide() != nullptr) return out.append(*value.wide(), Origin::kTemplate);
  if (const List* list = value.list()) return append_list(out, *list);
  if (const Dict* dict = value.dict()) return append_dict(out, *dict);
  throw Error(ErrorCode::kUnsupported, fmt::format("{} cannot be printed", describe_type(value)));
}

// A string in quotes counts as data even if the template wrote it: its escapes are no one's.
void append_repr(Text& out, const Value& value) {
  if (const Text* text = value.text()) return out.append(quote(text->bytes()), Origin::kData);
  if (value.is_undefined()) return out.append("Undefined", Origin::kTemplate);
  append_plain(out, value);
}

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  std::string out = fmt::format("{}", value);
  if (std::isfinite(value) && out.find_first_of(".e") == out.npos) out += ".0";
  return out;
}

Text to_text(const Value& value) {
  if (const Text* text = value.text()) return *text;
  Text out;
  append_plain(out, value);
  return out;
}

Text to_repr(const Value& value) {
  Text out;
  append_repr(out, value);
  return out;
}

namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int level) {
    if (const Text* text = value.text()) return write_string(text->bytes());
    if (const List* list = value.list()) return write_list(*list, level);
    if (const Dict* dict = value.dict()) return write_dict(*dict, level);
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.integer() != 0 ? "true" : "false";
    } else if (value.is_integer()) {
      out_ += std::to_string(value.integer());
    } else if (value.wide() != nullptr) {
      out_ += *value.wide();
    } else if (value.is_float()) {
      const double x = value.number();
      out_ += std::isnan(x)   ? "NaN"
              : std::isinf(x) ? (x > 0 ? "Infinity" : "-Infinity")
                              : float_text(x);
    } else {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("tojson: JSON has no form for {}", describe_type(value)));
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void write_string(std::string_view text) {
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t size = character_size(text, at);
      const auto c = static_cast<uint32_t>(character_at(text, at));
      static constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
      const size_t known = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : kEscaped.npos;
      if (known != kEscaped.npos) {
        out_ += '\\';
        out_ += kLetters[known];
      } else if (c < 0x20 || (style_.ascii && c > 0x7E && c < 0x10000)) {
        out_ += fmt::format("\\u{:04x}", c);
      } else if (style_.ascii && c >= 0x10000) {
        const uint32_t rest = c - 0x10000;
        out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
      } else {
        out_ += text.substr(at, size);
      }
      at += size;
    }
    out_ += '"';
  }

  void start_item(bool first, int level) {
    if (style_.indent < 0) {
      if (!first) out_ += style_.item_separator;
      return;
    }
    if (!first) out_ += style_.item_separator;
    end_line(level);
  }
  void end_line(int level) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent) * static_cast<size_t>(level), ' ');
    if (out_.size() > size_t{1} << 26) {
      throw Error(ErrorCode::kInvalidArgument, "tojson: more than 64 MiB of JSON");
    }
  }

  void write_list(const List& list, int level) {
    if (list.kind == List::Kind::kView || list.kind == List::Kind::kIterator) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("tojson: JSON has no form for {}", describe_type(Value(list))));
    }
    out_ += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      start_item(i == 0, level + 1);
      write(list.items[i], level + 1);
    }
    if (!list.items.empty()) end_line(level);
    out_ += ']';
  }

  void write_dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return to_text(a->first).bytes() < to_text(b->first).bytes();
      });
    }
    out_ += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      start_item(i == 0, level + 1);
      write_string(to_text(items[i]->first).bytes());
      out_ += style_.key_separator;
      write(items[i]->second, level + 1);
    }
    if (!items.empty()) end_line(level);
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace pith::chat
