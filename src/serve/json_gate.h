#pragma once
// The one way from a request's bytes to JSON, within limits, and from JSON to checked values.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pith::serve {

using Json = nlohmann::ordered_json;

inline constexpr int kMostDepth = 64;
inline constexpr size_t kMostValues = 100000;

/// An object. Throws Refusal (400) for text that is no JSON or no object, past the limits, with a
/// key twice, invalid UTF-8, or numbers that no double holds. Whole numbers of more than 64 bits
/// are refused too, but in arguments of calls: these are hidden (hide_wide()).
Json parse_object(std::string_view body);
/// The same for any JSON that a field holds as text, but for wide numbers; nullopt where it is
/// none.
std::optional<Json> parse_text(std::string_view text, const std::string& path);
std::string dump(const Json& json);
/// Whole numbers of more than 64 bits become strings that begin with a mark, which no string of a
/// request may have; dump_wide() makes them numbers again, digit for digit.
std::string hide_wide(std::string_view text);
std::string dump_wide(const Json& json);

/// The fields of an object by name, checked. null counts as absent everywhere.
class Fields {
 public:
  explicit Fields(const Json& object, std::string path = "");

  /// Null: absent.
  const Json* get(const std::string& name);
  std::optional<bool> boolean(const std::string& name);
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most);
  std::optional<double> number(const std::string& name, double least, double most);
  std::optional<std::string> text(const std::string& name, size_t most_bytes);
  std::string required_text(const std::string& name, size_t most_bytes);
  /// A string or a list of them; each has at least one byte.
  std::vector<std::string> texts(const std::string& name, size_t most, size_t most_bytes);
  std::vector<int32_t> ids(const std::string& name, size_t most, int32_t vocabulary);
  /// Names a field without a value: "messages[2].content".
  std::string path(const std::string& name) const;
  /// Fields that were not read.
  std::vector<std::string> unknown() const;

 private:
  const Json& object_;
  const std::string path_;
  std::set<std::string> known_;
};

/// Token ids of a list. Throws Refusal for what is none.
std::vector<int32_t> token_ids(const Json& list, const std::string& path, int32_t vocabulary);

}  // namespace pith::serve
