#include "form/schema_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/json_file.h"
#include "pith/error.h"

namespace pith::form {
namespace {

constexpr size_t kMostBytes = size_t{64} << 10, kMostValues = 2000;
constexpr int kMostDepth = 64;
constexpr int64_t kMostCharacters = 1024, kMostItems = 256;

// They say something to people, or to other programs, and nothing about documents.
const std::set<std::string> kNotes = {"title",    "description", "default",     "examples",
                                      "$schema",  "$id",         "$comment",    "deprecated",
                                      "readOnly", "writeOnly",   "definitions", "$defs"};

std::string text_of(const Json& value) { return value.dump(-1, ' ', false); }

bool is_of(const Json& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  return value.is_array();
}

bool fits_type(const Json& value, const Json& given) {
  const auto type = given.find("type");
  if (type == given.end()) return true;
  if (type->is_string()) return is_of(value, type->get<std::string>());
  return std::any_of(type->begin(), type->end(), [&](const Json& one) {
    return one.is_string() && is_of(value, one.get<std::string>());
  });
}

}  // namespace

SchemaReader::SchemaReader(Schema& out, std::string_view text, std::string what, bool strict)
    : out_(out), what_(std::move(what)), strict_(strict) {
  if (text.size() > kMostBytes)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes; at most {} are read", what_, text.size(), kMostBytes));
  refuse_wide_integers(text, what_);
  root_ = parse_json<Json>(text, what_);
}

int32_t SchemaReader::read() {
  references_["#"] = add({});
  const int32_t whole = value(root_, "#");
  Node& self = out_.nodes[static_cast<size_t>(references_["#"])];
  self.kind = Kind::kAnyOf;
  self.children = {whole};
  return whole;
}

void SchemaReader::refuse(const std::string& keyword, const std::string& at,
                          const std::string& why) const {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: the keyword '{}' at {} is not supported{}; supported are type, "
                          "properties, required, additionalProperties, items, minItems, maxItems, "
                          "minLength, maxLength, enum, const, anyOf and $ref",
                          what_, keyword, at, why));
}

void SchemaReader::malformed(const std::string& at, const std::string& why) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {} {}", what_, at, why));
}

void SchemaReader::only(const Json& given, const std::string& at,
                        const std::set<std::string>& known) const {
  if (!strict_) return;
  for (const auto& [keyword, ignored] : given.items())
    if (!kNotes.contains(keyword) && !known.contains(keyword)) refuse(keyword, at, " there");
}

int32_t SchemaReader::add(Node node) {
  if (++values_ > kMostValues)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: more than {} values", what_, kMostValues));
  out_.nodes.push_back(std::move(node));
  return static_cast<int32_t>(out_.nodes.size()) - 1;
}

int32_t SchemaReader::value(const Json& given, const std::string& at) {
  struct Level {
    explicit Level(int& depth) : of(depth) { ++of; }
    ~Level() { --of; }
    int& of;
  } level(depth_);
  if (depth_ > kMostDepth) malformed(at, fmt::format("is nested more than {} deep", kMostDepth));
  if (given.is_boolean() && given.get<bool>()) return 0;
  if (!given.is_object()) malformed(at, "must be an object");
  if (const auto target = given.find("$ref"); target != given.end()) {
    only(given, at, {"$ref"});
    return reference(*target, at);
  }
  if (const auto list = given.find("anyOf"); list != given.end()) {
    only(given, at, {"anyOf"});
    return alternatives(*list, at + "/anyOf");
  }
  // Some libraries wrap a reference so.
  if (const auto all = given.find("allOf");
      all != given.end() && all->is_array() && all->size() == 1 && !given.contains("properties")) {
    only(given, at, {"allOf"});
    return value(all->front(), at + "/allOf/0");
  }
  if (const auto one = given.find("oneOf"); one != given.end() && !strict_)
    return alternatives(*one, at + "/oneOf");
  if (given.contains("enum") || given.contains("const")) return literals(given, at);
  const auto type = given.find("type");
  if (type == given.end()) {
    if (given.contains("properties") || given.contains("additionalProperties") ||
        given.contains("required"))
      return object(given, at);
    if (given.contains("items")) return array(given, at);
    only(given, at, {});
    return 0;
  }
  if (type->is_string()) return typed(given, type->get<std::string>(), at);
  if (!type->is_array() || type->empty()) malformed(at, "has a 'type' that is no name");
  Node any;
  any.kind = Kind::kAnyOf;
  for (const Json& one : *type) {
    if (!one.is_string()) malformed(at, "has a 'type' that is no name");
    Json alone = given;
    // Keywords of other types say nothing about this one.
    if (one != "string")
      for (const char* name : {"minLength", "maxLength"}) alone.erase(name);
    if (one != "array")
      for (const char* name : {"items", "minItems", "maxItems"}) alone.erase(name);
    if (one != "object")
      for (const char* name : {"properties", "required", "additionalProperties"}) alone.erase(name);
    any.children.push_back(typed(alone, one.get<std::string>(), at));
  }
  return add(std::move(any));
}

int32_t SchemaReader::reference(const Json& target, const std::string& at) {
  const std::string where = target.is_string() ? target.get<std::string>() : "";
  if (const auto known = references_.find(where); known != references_.end()) return known->second;
  const Json* found = nullptr;
  try {
    if (where.starts_with("#/")) found = &root_.at(Json::json_pointer(where.substr(1)));
  } catch (const Json::exception&) {  // said below
  }
  if (found == nullptr)
    malformed(at, fmt::format("has a $ref to {}, which is not in it", text_of(target)));
  const int32_t alias = add({});
  references_[where] = alias;
  const int32_t node = value(*found, where);
  Node& self = out_.nodes[static_cast<size_t>(alias)];
  self.kind = Kind::kAnyOf;
  self.children = {node};
  return alias;
}

int32_t SchemaReader::alternatives(const Json& list, const std::string& at) {
  if (!list.is_array() || list.empty()) malformed(at, "must be a list of schemas");
  Node any;
  any.kind = Kind::kAnyOf;
  for (size_t i = 0; i < list.size(); ++i)
    any.children.push_back(value(list[i], fmt::format("{}/{}", at, i)));
  return add(std::move(any));
}

int32_t SchemaReader::literals(const Json& given, const std::string& at) {
  only(given, at, {"enum", "const", "type"});
  Node node;
  node.kind = Kind::kLiterals;
  const auto take = [&](const Json& value) {
    if (++values_ > kMostValues) malformed(at, fmt::format("has more than {} values", kMostValues));
    if (fits_type(value, given)) node.children.push_back(out_.literal(text_of(value)));
  };
  if (const auto one = given.find("const"); one != given.end()) {
    take(*one);
  } else {
    const Json& list = given["enum"];
    if (!list.is_array()) malformed(at + "/enum", "must be a list");
    for (const Json& value : list) take(value);
  }
  if (node.children.empty()) malformed(at, "allows no value");
  return add(std::move(node));
}

int32_t SchemaReader::typed(const Json& given, const std::string& type, const std::string& at) {
  if (type == "object") return object(given, at);
  if (type == "array") return array(given, at);
  if (type == "string") return string(given, at);
  only(given, at, {"type"});
  Node node;
  if (type == "integer" || type == "number") {
    node.kind = type == "integer" ? Kind::kInteger : Kind::kNumber;
  } else if (type == "boolean" || type == "null") {
    node.kind = Kind::kLiterals;
    node.children = type == "null" ? std::vector<int32_t>{out_.literal("null")}
                                   : std::vector{out_.literal("true"), out_.literal("false")};
  } else {
    malformed(at, fmt::format("has the type '{}', which is none of JSON's", type));
  }
  return add(std::move(node));
}

int32_t SchemaReader::string(const Json& given, const std::string& at) {
  only(given, at, {"type", "minLength", "maxLength"});
  Node node;
  node.kind = Kind::kString;
  limits(given, at, "minLength", "maxLength", kMostCharacters, node);
  return add(std::move(node));
}

int32_t SchemaReader::array(const Json& given, const std::string& at) {
  only(given, at, {"type", "items", "minItems", "maxItems"});
  Node node;
  node.kind = Kind::kArray;
  limits(given, at, "minItems", "maxItems", kMostItems, node);
  const auto items = given.find("items");
  node.item = items == given.end() || items->is_array() ? 0 : value(*items, at + "/items");
  if (items != given.end() && items->is_array() && strict_)
    refuse("items", at, " as a list of schemas");
  return add(std::move(node));
}

int32_t SchemaReader::object(const Json& given, const std::string& at) {
  only(given, at, {"type", "properties", "required", "additionalProperties"});
  Node node;
  node.kind = Kind::kObject;
  const auto properties = given.find("properties");
  if (properties != given.end()) {
    if (!properties->is_object()) malformed(at + "/properties", "must be an object");
    for (const auto& [name, schema] : properties->items()) {
      const int32_t key = out_.literal(text_of(name) + ":");
      node.properties.push_back({key, value(schema, at + "/properties/" + name), false});
    }
  }
  const auto others = given.find("additionalProperties");
  if (others == given.end())
    // Documents of declared properties alone follow the schema too, and are what is meant: of none
    // where "properties" is empty.
    node.others = properties == given.end() ? 0 : -1;
  else if (!others->is_boolean())
    node.others = value(*others, at + "/additionalProperties");
  else
    node.others = others->get<bool>() ? 0 : -1;
  require(given, at, node);
  return add(std::move(node));
}

void SchemaReader::require(const Json& given, const std::string& at, Node& node) {
  const auto required = given.find("required");
  if (required == given.end()) return;
  if (!required->is_array()) malformed(at + "/required", "must be a list of names");
  for (const Json& name : *required) {
    if (!name.is_string()) malformed(at + "/required", "must be a list of names");
    const int32_t key = out_.literal(text_of(name) + ":");
    const auto found = std::find_if(node.properties.begin(), node.properties.end(),
                                    [&](const Property& p) { return p.key == key; });
    if (found != node.properties.end())
      found->required = true;
    else if (node.others >= 0)
      node.properties.push_back({key, node.others, true});
    else
      malformed(at + "/required", fmt::format("has {}, which is no property", text_of(name)));
  }
}

void SchemaReader::limits(const Json& given, const std::string& at, const char* least,
                          const char* most, int64_t highest, Node& node) const {
  const auto read = [&](const char* name, int64_t& value) {
    const auto found = given.find(name);
    if (found == given.end()) return;
    const int64_t count = found->is_number_integer() ? found->get<int64_t>() : -1;
    if (count >= 0 && count <= highest)
      value = count;
    else if (strict_ || count < 0)
      malformed(at, fmt::format("must have {} from 0 to {}", name, highest));
  };
  read(least, node.least);
  read(most, node.most);
  if (node.most >= 0 && node.least > node.most)
    malformed(at, fmt::format("has {} above {}", least, most));
}

}  // namespace pith::form
