#pragma once
// Typed reads of a JSON object's fields: what is wrong is named with its file and field.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "pith/error.h"

namespace pith {

inline constexpr int64_t kMaxContext = int64_t{1} << 31;  // positions

/// A JSON object with typed reads that name file and field when they fail.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  /// Null counts as absent, as in transformers.
  const nlohmann::json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const char* name) const { return object_.contains(name); }
  [[noreturn]] void corrupt(const char* name, const std::string& problem) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: '{}' {}", where_, name, problem));
  }
  [[noreturn]] void unsupported(const std::string& problem) const {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", where_, problem));
  }
  const nlohmann::json& need(const char* name) const {
    if (const nlohmann::json* value = find(name)) return *value;
    corrupt(name, "is missing");
  }
  int64_t integer(const char* name, int64_t first, int64_t last) const {
    const nlohmann::json& value = need(name);
    if (!value.is_number_integer() || value < first || value > last) {
      corrupt(name, fmt::format("is {}; expected a whole number from {} to {}", dump(value), first,
                                last));
    }
    return value.get<int64_t>();
  }
  double number(const char* name, double above, double last) const {
    const nlohmann::json& value = need(name);
    // JSON has no NaN or infinity, and this comparison would refuse them too.
    if (!value.is_number() || !(value.get<double>() > above && value.get<double>() <= last)) {
      corrupt(name, fmt::format("is {}; expected a number above {} and at most {}", dump(value),
                                above, last));
    }
    return value.get<double>();
  }
  bool flag(const char* name, bool otherwise) const {
    const nlohmann::json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_boolean())
      corrupt(name, fmt::format("is {}; expected true or false", dump(*value)));
    return value->get<bool>();
  }
  std::string text(const char* name, const std::string& otherwise) const {
    const nlohmann::json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_string()) corrupt(name, fmt::format("is {}; expected a string", dump(*value)));
    return value->get<std::string>();
  }
  static std::string dump(const nlohmann::json& value) {
    std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return text.size() > 80 ? text.substr(0, 80) + "..." : text;
  }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace pith
