#pragma once
// Reading of JSON, with errors that name the file. Files of a model folder are small; whoever made
// them is not trusted.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/input_file.h"

namespace pith {

/// Throws kCorrupt, naming `what`, for JSON that is nested more than 100 deep: printing and
/// comparing a value recurse.
void check_json_depth(std::string_view text, const std::string& what);

/// Throws kInvalidArgument, naming `what`, for a whole number outside of strings that has more than
/// 64 bits: the parser would round it.
void refuse_wide_integers(std::string_view text, const std::string& what);

/// A whole number from 0 in an object, in place of nlohmann's own conversion, which makes a large
/// number of -5 and 4 of 4.7, and is undefined for 1e80. Throws kCorrupt, naming the field.
template <class Json>
uint64_t whole_number(const Json& object, const char* name);

/// The same for an id of a token, which has 31 bits. `name` says whose in messages.
int32_t token_id(const nlohmann::json& value, std::string_view name);

/// Parses any value. `what` names the source in messages. Throws kCorrupt for malformed JSON.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& what);

/// Parses an object. Throws kCorrupt for malformed JSON, for anything that is not an object, and
/// for a name that occurs twice at the top level.
nlohmann::json parse_json_object(std::string_view text, const std::string& what);

/// An object from a file of at most `most` bytes.
nlohmann::json read_json_file(const std::filesystem::path& path, size_t most = kMostConfigBytes);

}  // namespace pith
