#pragma once
// A JSON schema as nodes that the automaton walks.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pith/form.h"

namespace pith::form {

enum class Kind : uint8_t { kAny, kAnyOf, kLiterals, kString, kNumber, kInteger, kObject, kArray };

/// Levels of objects and lists at most.
inline constexpr int kMostNest = 32;

struct Property {
  int32_t key = 0;   ///< the literal `"name":`
  int32_t node = 0;  ///< of its value
  bool required = false;
};

struct Node {
  Kind kind = Kind::kAny;
  std::vector<int32_t> children;  ///< of kAnyOf: nodes; of kLiterals: literals
  int64_t least = 0, most = -1;   ///< characters of a string, items of a list; -1: any number
  std::vector<Property> properties;
  int32_t others = -1;  ///< the node of all other properties; -1: there are none
  int32_t item = -1;    ///< of a list's items
  /// Declared names by their beginnings, so that other properties have other names: the state of a
  /// beginning, and by state whether a name ends there. State 0 is the empty beginning.
  std::map<std::string, int32_t> beginnings;
  std::vector<std::string> spelled;
  std::vector<bool> ends;
  int height = 0;  ///< levels that its least document has; above kMostNest: it has none
};

/// Immutable once it is made.
struct Schema {
  std::vector<Node> nodes;            ///< node 0 is any value
  std::vector<std::string> literals;  ///< by number; none is empty
  /// The whole: literals and one value between, -1 for a literal that is not there.
  int32_t before = -1, value = 0, after = -1;

  int32_t literal(std::string text);
};

Schema read_schema(std::string_view text);
/// Any object.
Schema object_schema();
Schema calls_schema(const std::vector<FormTool>& tools, const FormCalls& calls);

}  // namespace pith::form
