#include "serve/json_gate.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "serve/refusal.h"

namespace pith::serve {
namespace {

/// Looks at a document while it is parsed.
class Watch {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    if (depth > kMostDepth)
      throw Refusal(400, "invalid_json",
                    fmt::format("the JSON is nested more than {} deep", kMostDepth));
    if (++values_ > kMostValues)
      throw Refusal(400, "invalid_json",
                    fmt::format("the JSON has more than {} values", kMostValues));
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(value.get<std::string>()).second)
      throw Refusal(400, "invalid_json",
                    fmt::format("the JSON has the key '{}' twice in one object",
                                value.get<std::string>().substr(0, 100)));
    return true;
  }

 private:
  size_t values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

Json parse_object(std::string_view body) {
  Watch watch;
  Json out;
  try {
    out = Json::parse(body, [&](int depth, Json::parse_event_t event, Json& value) {
      return watch(depth, event, value);
    });
  } catch (const Json::exception& e) {
    const std::string_view why = e.what();
    throw Refusal(
        400, "invalid_json",
        fmt::format("the body is no JSON: {}", why.substr(std::min(why.find(' '), why.size()))));
  }
  if (!out.is_object()) throw Refusal(400, "invalid_json", "the body must be a JSON object");
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
