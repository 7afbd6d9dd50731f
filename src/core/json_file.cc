#include "core/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "pith/error.h"

namespace pith {

namespace {

constexpr int kMostDepth = 100;

[[noreturn]] void refuse_malformed(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: malformed JSON: {}", what, why));
}

template <class Json>
std::string shown(const Json& value) {
  return value.is_number() ? value.dump() : value.type_name();
}

}  // namespace

void check_json_depth(std::string_view text, const std::string& what) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;  // the next letter is not the end of the string
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{') && ++depth > kMostDepth) {
      refuse_malformed(what, fmt::format("it is nested more than {} deep", kMostDepth));
    } else if (!quoted && (c == ']' || c == '}')) {
      --depth;
    }
  }
}

void refuse_wide_integers(std::string_view text, const std::string& what) {
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (quoted && text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      quoted = !quoted;
    } else if (!quoted && text[at] >= '0' && text[at] <= '9') {
      const size_t end = std::min(text.find_first_not_of("0123456789.eE+-", at), text.size());
      const std::string_view number = text.substr(at, end - at);
      const bool negative = at > 0 && text[at - 1] == '-';
      uint64_t value = 0;
      const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
      const bool wide = read.ec != std::errc() || (negative && value > uint64_t{1} << 63);
      if (wide && number.find_first_of(".eE") == number.npos)
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{}: the integer {}{} has more than 64 bits, and would be rounded",
                                what, negative ? "-" : "", number.substr(0, 40)));
      at = end - 1;
    }
  }
}

template <class Json>
Json parse_json(std::string_view text, const std::string& what) {
  check_json_depth(text, what);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& e) {
    refuse_malformed(what, e.what());
  }
}

template nlohmann::json parse_json(std::string_view text, const std::string& what);
template nlohmann::ordered_json parse_json(std::string_view text, const std::string& what);

template <class Json>
uint64_t whole_number(const Json& object, const char* name) {
  const Json& value = object.at(name);
  if (!value.is_number_unsigned())
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{} is {}; expected a whole number from 0", name, shown(value)));
  return value.template get<uint64_t>();
}

template uint64_t whole_number(const nlohmann::json& object, const char* name);
template uint64_t whole_number(const nlohmann::ordered_json& object, const char* name);

int32_t token_id(const nlohmann::json& value, std::string_view name) {
  const bool whole = value.is_number_unsigned();
  if (!whole || value.get<uint64_t>() > std::numeric_limits<int32_t>::max())
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the id of \"{}\" is {}; expected a whole number from 0 to {}", name,
                            shown(value), std::numeric_limits<int32_t>::max()));
  return value.get<int32_t>();
}

nlohmann::json parse_json_object(std::string_view text, const std::string& what) {
  // The parser keeps the last of two equal names without a word, so they are watched here.
  std::set<std::string> names;
  std::string repeated;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (event == nlohmann::json::parse_event_t::key && depth == 1 &&
        !names.insert(value.get<std::string>()).second) {
      repeated = value.get<std::string>();
    }
    return true;
  };
  check_json_depth(text, what);
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& e) {
    refuse_malformed(what, e.what());
  }
  if (!repeated.empty()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: '{}' is there twice", what, repeated));
  }
  if (!json.is_object()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: expected a JSON object", what));
  }
  return json;
}

nlohmann::json read_json_file(const std::filesystem::path& path, size_t most) {
  const std::string text = read_file(path, most);
  refuse_stand_in(text, path.string());
  return parse_json_object(text, path.string());
}

}  // namespace pith
