#include "core/json_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "pith/error.h"

namespace pith {

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw Error(ErrorCode::kNotFound, fmt::format("no such file: {}", path.string()));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  }
  return std::move(text).str();
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
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: malformed JSON: {}", what, e.what()));
  }
  if (!repeated.empty()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: '{}' is there twice", what, repeated));
  }
  if (!json.is_object()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: expected a JSON object", what));
  }
  return json;
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  return parse_json_object(read_text_file(path), path.string());
}

}  // namespace pith
