#pragma once
// The values of templates: Python's, as far as templates see them. Values are immutable but for
// namespaces, share their parts, and carry their depth and size, so that no walk through one can
// overrun.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "chat/text.h"

namespace pith::chat {

struct Value;
struct Node;
using Values = std::vector<Value>;

/// The value of a name or a key that is not there; `name` is for messages, and may be null.
struct Undefined {
  std::shared_ptr<const std::string> name;
};
struct None {};

/// A whole number of more than 64 bits, as data may hold: printed, compared and asked for its type,
/// but not calculated with.
struct WideInteger {
  explicit WideInteger(std::string text)
      : digits(std::make_shared<const std::string>(std::move(text))) {}
  std::shared_ptr<const std::string> digits;
};

struct List;
struct Dict;
struct Namespace;
struct Loop;

/// Scopes [first, second) of the interpreter's, innermost ranges first.
using ScopeRanges = std::vector<std::pair<size_t, size_t>>;

/// A macro, a function of the environment, or a method of a value.
struct Function {
  const Node* macro = nullptr;
  std::string name;
  std::shared_ptr<const Value> self = nullptr;
  std::shared_ptr<const ScopeRanges> outer = nullptr;  // that a macro sees beside its own
};

struct Value {
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Loop>, Function, WideInteger>
      data;

  Value() = default;
  template <class T>
  // Copies and moves are left out by name. NOLINTNEXTLINE(bugprone-forwarding-reference-overload)
  requires(!std::is_same_v<std::remove_cvref_t<T>, Value>) Value(T&& value)
      : data(std::forward<T>(value)) {}  // NOLINT: a value is made from its content
  Value(Text text);                      // NOLINT
  Value(List list);                      // NOLINT
  Value(Dict dict);                      // NOLINT

  /// The content, or null if it is of another type.
  const Text* text() const { return pointer<const Text>(); }
  const List* list() const { return pointer<const List>(); }
  const Dict* dict() const { return pointer<const Dict>(); }
  Namespace* space() const { return pointer<Namespace>(); }
  const Loop* loop() const { return pointer<const Loop>(); }
  const Function* function() const { return std::get_if<Function>(&data); }
  /// The digits of a wide integer, or null. It is no number to calculate with (is_number()).
  const std::string* wide() const {
    const auto* held = std::get_if<WideInteger>(&data);
    return held == nullptr ? nullptr : held->digits.get();
  }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  bool is_bool() const { return std::holds_alternative<bool>(data); }
  bool is_float() const { return std::holds_alternative<double>(data); }
  /// bool too: Python's True is 1.
  bool is_integer() const { return is_bool() || std::holds_alternative<int64_t>(data); }
  bool is_number() const { return is_integer() || is_float(); }
  int64_t integer() const;
  double number() const;

 private:
  template <class T>
  T* pointer() const {
    const auto* held = std::get_if<std::shared_ptr<T>>(&data);
    return held == nullptr ? nullptr : held->get();
  }
};

/// How far a container reaches: levels below it, and values in it at all levels.
struct Extent {
  uint32_t depth = 1;
  uint64_t size = 1;
  bool spaces = false;  ///< a namespace is in it: no namespace may hold it, or it could hold itself
  bool loops = false;   ///< a loop is in it: no loop may remember it
  void include(const Value& value);
};

struct List {
  /// kView: .items() of a dict. kIterator: of filters such as map, without a length. kGroup: a
  /// tuple of groupby, whose two parts are also .grouper and .list.
  enum class Kind : uint8_t { kList, kTuple, kView, kIterator, kGroup };
  List(Kind of_kind, Values of_items);
  bool is_tuple() const { return kind == Kind::kTuple || kind == Kind::kGroup; }

  Kind kind;
  Values items;
  Extent extent;
};

/// Keys are strings or whole numbers, in the order in which they came.
struct Dict {
  /// Replaces the value of a key that is there.
  void set(const Text& key, Value value);
  /// False, and nothing is set, for a key that is neither a string nor an integer.
  bool set(const Value& key, Value value);
  const Value* find(std::string_view key) const;
  const Value* find(int64_t key) const;
  /// Null for keys of other types too.
  const Value* find_key(const Value& key) const;

  std::vector<std::pair<Value, Value>> items;
  std::unordered_map<std::string, size_t> index;
  std::unordered_map<int64_t, size_t> by_number;
  Extent extent;

 private:
  /// At the place that the key's index has; the end for a key that is new.
  void put(size_t place, const Value& key, Value value);
};

struct Namespace {
  std::map<std::string, Value, std::less<>> members;
};

/// The variable `loop`.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  const Node* node = nullptr;  ///< of one that is recursive
  int64_t depth = 1;
  std::shared_ptr<Values> seen = {};  ///< what loop.changed() was last asked for
};

/// Levels and values of any value; 0 levels for one that is no container.
Extent extent_of(const Value& value);

bool truth(const Value& value);
/// "a string", "a list", "undefined", ... for messages.
std::string describe_type(const Value& value);
bool equal(const Value& a, const Value& b);

/// How Python prints it: str() and repr(). Throws kUnsupported for functions and the like.
Text to_text(const Value& value);
Text to_repr(const Value& value);
std::string float_text(double value);

inline constexpr size_t kMaxDigits = 4300;  // Python's
/// Of at most kMaxDigits decimal digits, maybe behind a '-', that 64 bits do not hold.
Value wide_integer(std::string_view digits);

/// From JSON, whose integers may have any length; strings are data. None if the text is no JSON or
/// no UTF-8. Throws kInvalidArgument for more than kMaxDepth levels.
std::optional<Value> read_json(std::string_view text);

struct JsonStyle {
  int indent = -1;  ///< -1: one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false, ascii = false;
};
/// Python's json.dumps. Throws kInvalidArgument for what JSON has no form for.
std::string to_json(const Value& value, const JsonStyle& style);

inline constexpr uint32_t kMaxDepth = 100;

}  // namespace pith::chat
