#pragma once
// From JSON to the nodes of a schema; every keyword is looked at.

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "form/schema.h"

namespace pith::form {

using Json = nlohmann::ordered_json;

class SchemaReader {
 public:
  /// `what` names the schema in messages. Without `strict`, keywords that are not supported are
  /// left out, so that more documents follow it.
  SchemaReader(Schema& out, std::string_view text, std::string what, bool strict);
  /// The node of the whole. Throws Error.
  int32_t read();

 private:
  int32_t value(const Json& given, const std::string& at);
  int32_t reference(const Json& target, const std::string& at);
  int32_t alternatives(const Json& list, const std::string& at);
  int32_t typed(const Json& given, const std::string& type, const std::string& at);
  int32_t literals(const Json& given, const std::string& at);
  int32_t object(const Json& given, const std::string& at);
  int32_t array(const Json& given, const std::string& at);
  int32_t string(const Json& given, const std::string& at);
  void require(const Json& given, const std::string& at, Node& node);
  void limits(const Json& given, const std::string& at, const char* least, const char* most,
              int64_t highest, Node& node) const;
  /// Refuses the keywords of `given` that are neither notes nor among `known`.
  void only(const Json& given, const std::string& at, const std::set<std::string>& known) const;
  int32_t add(Node node);
  [[noreturn]] void refuse(const std::string& keyword, const std::string& at,
                           const std::string& why) const;
  [[noreturn]] void malformed(const std::string& at, const std::string& why) const;

  Schema& out_;
  const std::string what_;
  const bool strict_;
  Json root_;
  size_t values_ = 0;
  int depth_ = 0;
  std::map<std::string, int32_t> references_;  // nodes by what they point to
};

}  // namespace pith::form
