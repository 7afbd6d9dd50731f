#pragma once
// Reading of the small JSON files of a model folder, with errors that name the file.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace pith {

/// The whole file. Throws kNotFound or kIo.
std::string read_text_file(const std::filesystem::path& path);

/// Parses an object. `what` names the source in messages. Throws kCorrupt for malformed JSON, for
/// anything that is not an object, and for a name that occurs twice at the top level.
nlohmann::json parse_json_object(std::string_view text, const std::string& what);

/// The two together.
nlohmann::json read_json_file(const std::filesystem::path& path);

}  // namespace pith
