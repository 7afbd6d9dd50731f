#pragma once
// Everything that a template can call: filters, tests, methods and functions, each a row of a table
// with the names of its parameters. A template that uses another is refused where it gets there.

#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/value.h"
#include "pith/error.h"

namespace pith::chat {

/// The limits of rendering, and how much is used. Every value of some size goes through text(),
/// list() or dict(), which count it.
class Runtime {
 public:
  Runtime(std::string name, std::function<std::tm()> clock)
      : name_(std::move(name)), clock_(std::move(clock)) {}

  static constexpr uint64_t kMaxSteps = 10'000'000;
  static constexpr size_t kMaxOutput = size_t{64} << 20;

  int line = 0;  ///< of the template

  /// A level of recursion while it lives: the machine's stack ends somewhere.
  class Level {
   public:
    explicit Level(Runtime& rt) : rt_(rt) {
      if (++rt_.levels_ > kMost) rt_.fail("expressions and macros nest too deep");
    }
    ~Level() { --rt_.levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    // It takes about 1 KiB of stack, some 4 KiB under AddressSanitizer; threads have 8 MiB.
    static constexpr int kMost = 1000;
    Runtime& rt_;
  };

  /// Throws kInvalidArgument with template and line.
  [[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::kInvalidArgument);
  void charge(uint64_t steps) {
    if (steps > steps_left_) out_of_steps();
    steps_left_ -= steps;
  }
  /// Charges for a walk through all of a value.
  void charge_walk(const Value& value) { charge(extent_of(value).size); }
  /// Throws if a string of this size would be too long.
  void check_size(size_t bytes);

  Value text(Text text);
  Value text(std::string bytes, Origin origin) { return text_of(Text(std::move(bytes), origin)); }
  Value list(Values items, List::Kind kind = List::Kind::kList);
  Value dict(Dict dict);
  std::tm now() const { return clock_(); }

 private:
  Value text_of(Text text);
  [[noreturn]] void out_of_steps();
  void check_extent(const Value& container);

  std::string name_;
  std::function<std::tm()> clock_;
  uint64_t steps_left_ = kMaxSteps;
  int levels_ = 0;
};

/// Arguments by parameter, and those beyond where a row takes more.
struct Arguments {
  std::vector<std::optional<Value>> slots;
  Values more;
  std::vector<std::pair<std::string, Value>> named;  // beyond the parameters

  bool has(size_t slot) const { return slots[slot].has_value(); }
  const Value& at(size_t slot) const { return *slots[slot]; }
};

using Builtin = Value (*)(Runtime&, const Value& self, const Arguments&);

struct Entry {
  std::string_view name;
  std::string_view parameters;  ///< "first second ..."; a name after '!' is required
  Builtin apply;
  bool takes_more = false;  ///< any number of further arguments, named ones too
};

/// Null if there is none of that name.
const Entry* find_filter(std::string_view name);
const Entry* find_test(std::string_view name);
const Entry* find_method(std::string_view name);
const Entry* find_global(std::string_view name);
std::string filter_names();
std::string test_names();
std::string method_names();
std::string global_names();

/// Puts arguments in their slots. Throws for one too many or too few, and for unknown names.
Arguments bind(Runtime& rt, const Entry& entry, Values positional,
               std::vector<std::pair<std::string, Value>> named);
Value call(Runtime& rt, const Entry& entry, const Value& self, Values positional,
           std::vector<std::pair<std::string, Value>> named = {});

/// obj.name (methods first) and obj[key]; undefined for what is not there.
Value attribute(Runtime& rt, const Value& object, std::string_view name);
Value item(Runtime& rt, const Value& object, const Value& key);
/// The elements of anything that can be walked through: lists, characters, keys.
Values elements(Runtime& rt, const Value& value);
/// Python's <, for sorting and comparing.
bool less(Runtime& rt, const Value& a, const Value& b);
/// Python's %, of a string.
Value format(Runtime& rt, const Text& pattern, const Values& values);
/// a in b.
bool contains(Runtime& rt, const Value& container, const Value& wanted);

/// Parameters as C++ values; `fallback` where absent. Throw for a wrong type.
int64_t integer_argument(Runtime& rt, const Arguments& a, size_t slot, int64_t fallback);
bool flag_argument(const Arguments& a, size_t slot, bool fallback);
const Text& text_argument(Runtime& rt, const Arguments& a, size_t slot, const char* what);

}  // namespace pith::chat
