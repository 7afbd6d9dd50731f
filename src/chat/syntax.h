#pragma once
// The syntax tree of a template.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/value.h"
#include "pith/error.h"

namespace pith::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kConcat,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kNegate,
  kPlus,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
  kAnd,
  kOr,
  kNot
};

struct Expression {
  enum class Kind : uint8_t {
    kConstant,     // constant
    kName,         // name
    kList,         // children
    kTuple,        // children
    kDict,         // children: key, value, key, ...
    kUnary,        // operators[0] children[0]
    kBinary,       // children[0] operators[0] children[1]
    kLogic,        // the same for and, or, not
    kCompare,      // children[0] operators[0] children[1] operators[1] ...
    kConditional,  // children[0] if children[1] else children[2] (may be null)
    kAttribute,    // children[0].name
    kIndex,        // children[0][children[1]]
    kSlice,        // children[0][children[1]:children[2]:children[3]], any of them null
    kCall,         // children[0](children[1]..., named)
    kFilter,       // children[0] | name(children[1]..., named)
    kTest          // children[0] is name(children[1]..., named)
  };

  Kind kind = Kind::kConstant;
  int line = 0;
  int depth = 1;  // levels of the tree from here down
  std::string name;
  Value constant;
  std::vector<Operator> operators;
  std::vector<ExpressionPtr> children;
  /// Of a call. The names "*" and "**" are of arguments that are spread.
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

/// The target of an assignment: a name, or parts that it is taken apart into.
struct Target {
  std::string name;
  std::vector<Target> parts;
};

struct Node;
using Nodes = std::vector<std::unique_ptr<Node>>;

struct Node {
  enum class Kind : uint8_t {
    kText,      // text
    kOutput,    // expression
    kIf,        // expression, body; otherwise
    kFor,       // targets in expression if condition, body; otherwise
    kSet,       // targets = expression; or names[0].member = expression
    kSetBlock,  // names[0] or names[0].member = body, through the filters of expression
    kMacro,     // names[0](names[1] = defaults[0], ...), body
    kCall,      // expression, a call; its macro finds a macro "caller" like kMacro's
    kWith,      // targets[i] = defaults[i], body
    kFilter,    // body through the filters of expression
    kScope,     // body: the tags `generation` and `block`
    kAnother,   // member: a tag that takes another template, refused when it is reached
    kBreak,
    kContinue
  };

  Kind kind = Kind::kText;
  int line = 0;
  Text text;
  std::vector<std::string> names;
  std::vector<Target> targets;
  bool recursive = false;                  // of kFor
  bool takes_more = false, named = false;  // of kMacro: its body asks for varargs, for kwargs
  std::string member;
  ExpressionPtr expression;  // filters stand over a kName "" that means the body
  ExpressionPtr condition;
  std::vector<ExpressionPtr> defaults;  // null: none
  Nodes body, otherwise;
};

/// Reads a template. Throws kCorrupt for what is no Jinja, kUnsupported for what this subset does
/// not have; both name the template, the line and the construct.
Nodes parse(std::string_view source, const std::string& name);

/// "chat template 'NAME', line N: WHAT".
[[noreturn]] void fail_at(ErrorCode code, const std::string& name, int line,
                          const std::string& what);

inline constexpr size_t kMaxTemplate = size_t{1} << 20;
inline constexpr int kMaxNesting = 100;

}  // namespace pith::chat
