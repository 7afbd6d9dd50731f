#include "serve/json_gate.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <unordered_set>

#include "serve/refusal.h"

namespace pith::serve {
namespace {

/// Of strings that stand for wide numbers, and as JSON writes it.
constexpr std::string_view kMark("\0wide ", 6), kWrittenMark = "\"\\u0000wide ";

bool is_wide(std::string_view number) {
  if (number.find_first_of(".eE") != std::string_view::npos) return false;
  const bool negative = number.starts_with('-');
  uint64_t value = 0;
  const char* const end = number.data() + number.size();
  return std::from_chars(number.data() + (negative ? 1 : 0), end, value).ec != std::errc() ||
         (negative && value > uint64_t{1} << 63);
}

/// Looks at a document before it is made: it has limits, and each number is one that a value holds.
class Watch : public nlohmann::json_sax<Json> {
 public:
  /// `path`: of the field whose text it is; "" = a body. Texts keep wide numbers.
  explicit Watch(const std::string& path) : root_(path) {}
  /// Why it is no JSON.
  const std::string& error() const { return error_; }
  /// A body has wide numbers that must be hidden before it is parsed.
  bool wide() const { return wide_; }

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t& text) override {
    value();
    // The parser takes what 64 bits do not hold for a double, which would round it.
    if (root_.empty() && is_wide(text)) {
      if (!in_call())
        throw wrong(path(), "is a whole number of more than 64 bits, which would be rounded");
      wide_ = true;
    }
    return true;
  }
  bool string(string_t& text) override {
    value();
    if (text.starts_with(kMark)) throw wrong(path(), "begins with NUL and a word of the server's");
    return true;
  }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return open(false); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    Level& level = levels_.back();
    if (!level.keys.insert(name).second)
      throw refusal(fmt::format("has the key '{}' twice in one object", name.substr(0, 100)));
    level.key = name;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& e) override {
    const std::string_view why = e.what();
    error_ = why.substr(std::min(why.find(' '), why.size()));
    return false;
  }

 private:
  struct Level {
    bool list;
    size_t count = 0;
    std::string key = {};
    std::unordered_set<std::string> keys = {};
  };

  bool value() {
    if (!levels_.empty()) ++levels_.back().count;
    if (++values_ > kMostValues) throw refusal(fmt::format("has more than {} values", kMostValues));
    return true;
  }
  bool open(bool list) {
    value();
    levels_.push_back({list});
    if (levels_.size() > static_cast<size_t>(kMostDepth))
      throw refusal(fmt::format("is nested more than {} deep", kMostDepth));
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }
  /// Within the arguments of a call in a message, which chats keep digit for digit.
  bool in_call() const {
    if (levels_.empty() || levels_[0].key != "messages") return false;
    for (size_t i = 1; i + 1 < levels_.size(); ++i)
      if (levels_[i].key == "arguments" || levels_[i].key == "input") return true;
    return false;
  }
  Refusal refusal(const std::string& what) const {
    if (!root_.empty()) return wrong(root_, what);
    return {400, "invalid_json", "the JSON " + what};
  }
  std::string path() const {
    std::string out = root_;
    for (const Level& level : levels_) {
      if (level.list)
        out += fmt::format("[{}]", level.count - 1);
      else
        out += (out.empty() ? "" : ".") + level.key.substr(0, 100);
    }
    return out;
  }

  const std::string root_;
  std::string error_;
  bool wide_ = false;
  size_t values_ = 0;
  std::vector<Level> levels_;
};

}  // namespace

Json parse_object(std::string_view body) {
  Watch watch("");
  if (!Json::sax_parse(body, &watch))
    throw Refusal(400, "invalid_json", "the body is no JSON:" + watch.error());
  Json out = watch.wide() ? Json::parse(hide_wide(body)) : Json::parse(body);
  if (!out.is_object()) throw Refusal(400, "invalid_json", "the body must be a JSON object");
  return out;
}

std::optional<Json> parse_text(std::string_view text, const std::string& path) {
  Watch watch(path);
  if (!Json::sax_parse(text, &watch)) return std::nullopt;
  return Json::parse(hide_wide(text));
}

std::string hide_wide(std::string_view text) {
  std::string out;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (!quoted && (c == '-' || (c >= '0' && c <= '9'))) {
      const size_t end = std::min(text.find_first_not_of("0123456789.eE+-", at), text.size());
      const std::string_view number = text.substr(at, end - at);
      out += is_wide(number) ? fmt::format("{}{}\"", kWrittenMark, number) : number;
      at = end - 1;
      continue;
    }
    if (c == '"') quoted = !quoted;
    out += c;
    if (quoted && c == '\\' && at + 1 < text.size()) out += text[++at];
  }
  return out;
}

std::string dump_wide(const Json& json) {
  std::string out = dump(json);
  for (size_t at = 0; (at = out.find(kWrittenMark, at)) != std::string::npos; ++at) {
    const size_t digits = at + kWrittenMark.size(),
                 end = out.find_first_not_of("-0123456789", digits);
    // Else it is within a string, or a string that is no number, or a key.
    if ((at > 0 && out[at - 1] == '\\') || end == digits || out.compare(end, 1, "\"") != 0 ||
        out.compare(end + 1, 1, ":") == 0)
      continue;
    out.erase(end, 1);
    out.erase(at, kWrittenMark.size());
  }
  return out;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object_.is_object()) throw wrong(path_, "must be an object");
}

std::string Fields::path(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

const Json* Fields::get(const std::string& name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(const std::string& name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw wrong(path(name), "must be true or false");
  return value->get<bool>();
}

std::optional<double> Fields::number(const std::string& name, double least, double most) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  const double out = value->is_number() ? value->get<double>() : std::nan("");
  if (!(out >= least && out <= most))
    throw wrong(path(name), fmt::format("must be a number from {} to {}", least, most));
  return out;
}

std::optional<int64_t> Fields::integer(const std::string& name, int64_t least, int64_t most) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  const auto refuse = [&] {
    return wrong(path(name), fmt::format("must be a whole number from {} to {}", least, most));
  };
  if (value->is_number_unsigned()) {
    const auto whole = value->get<uint64_t>();
    if (whole > static_cast<uint64_t>(INT64_MAX)) throw refuse();
  } else if (value->is_number_float()) {
    const double real = value->get<double>();
    if (!(std::abs(real) < 9e15) || real != std::floor(real)) throw refuse();
  } else if (!value->is_number_integer()) {
    throw refuse();
  }
  const auto out = value->get<int64_t>();
  if (out < least || out > most) throw refuse();
  return out;
}

std::optional<std::string> Fields::text(const std::string& name, size_t most_bytes) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw wrong(path(name), "must be a string");
  const auto& out = value->get_ref<const std::string&>();
  if (out.size() > most_bytes)
    throw wrong(path(name),
                fmt::format("has {} bytes; at most {} are read", out.size(), most_bytes));
  return out;
}

std::string Fields::required_text(const std::string& name, size_t most_bytes) {
  const auto out = text(name, most_bytes);
  if (!out) throw wrong(path(name), "is missing");
  return *out;
}

std::vector<std::string> Fields::texts(const std::string& name, size_t most, size_t most_bytes) {
  const Json* value = get(name);
  if (value == nullptr) return {};
  const auto one = [&](const Json& item) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty())
      throw wrong(path(name), "must be a string or a list of strings, none of them empty");
    if (item.get_ref<const std::string&>().size() > most_bytes)
      throw wrong(path(name), fmt::format("has a string of more than {} bytes", most_bytes));
    return item.get<std::string>();
  };
  if (!value->is_array()) return {one(*value)};
  if (value->size() > most) throw wrong(path(name), fmt::format("has more than {} strings", most));
  std::vector<std::string> out;
  for (const Json& item : *value) out.push_back(one(item));
  return out;
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : object_.items())
    if (!known_.contains(name) && !value.is_null()) out.push_back(name);
  return out;
}

std::vector<int32_t> Fields::ids(const std::string& name, size_t most, int32_t vocabulary) {
  const Json* value = get(name);
  if (value == nullptr) return {};
  if (value->is_array() && value->size() > most)
    throw wrong(path(name), fmt::format("has {} tokens; at most {} are read", value->size(), most));
  return token_ids(*value, path(name), vocabulary);
}

std::vector<int32_t> token_ids(const Json& list, const std::string& path, int32_t vocabulary) {
  if (!list.is_array()) throw wrong(path, "must be a list of token ids");
  std::vector<int32_t> out;
  out.reserve(list.size());
  for (const Json& item : list) {
    const bool whole = item.is_number_integer();
    const int64_t id = whole ? item.get<int64_t>() : -1;
    if (id < 0 || id >= vocabulary)
      throw wrong(path, fmt::format("must have token ids from 0 to {} alone", vocabulary - 1));
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

}  // namespace pith::serve
