#pragma once
// Typed parameters. Each method has one plain struct of options, whose fields() names every
// parameter once: its member, what it accepts, and its help. Help, the reading and printing of
// policies, completion and the tables in docs/methods follow from that list; the members' initial
// values are the defaults.
//
//   struct H2oOptions : ScoreOptions {
//     double decay = 1;
//     Fields fields() {
//       return ScoreOptions::fields() + Fields{number("decay", decay, {0, 1}, "factor on ...")};
//     }
//     void check(const std::string& method) const;  // throws if values do not go together
//     void as_in_paper();  // where its defaults are not the paper's: paper=true
//   };

#include <any>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pith/policy.h"
#include "plan/most_rows.h"
#include "policy/budget.h"

namespace pith {

/// One parameter of one option struct, bound to its member.
struct Field {
  std::string name;
  std::string accepts;  ///< a noun phrase: "a whole number from 1 to 512"
  std::string help;
  std::function<bool(std::string_view)> read;  ///< false: not accepted, the member is as it was
  std::function<std::string()> write;          ///< empty: not set
  bool printed = true;    ///< false: means nothing beside the other values, see when()
  std::string meanwhile;  ///< the default of one that may be unset, see unset()

  /// Printed only if `condition`: options that mean nothing without another.
  Field when(bool condition) &&;
  /// The meaning of an unset one, for help and tables.
  Field unset(std::string amounts_to) &&;
};
using Fields = std::vector<Field>;
Fields operator+(Fields a, Fields b);

/// Whole numbers that a parameter accepts.
struct Whole {
  size_t least = 0, most = kMostRows;
  size_t multiple = 1;  ///< of which they are multiples
  bool odd = false;
};
struct Range {
  double least, most;
};
template <class T>
struct Named {
  const char* name;
  T value;
};

Field whole(std::string name, size_t& value, const Whole& accepts, std::string help);
Field whole(std::string name, std::optional<size_t>& value, const Whole& accepts, std::string help);
Field number(std::string name, double& value, const Range& accepts, std::string help);
Field number(std::string name, std::optional<double>& value, const Range& accepts,
             std::string help);
Field flag(std::string name, bool& value, std::string help);
Field rows(std::string name, Budget& value, std::string help);
Field rows(std::string name, std::optional<Budget>& value, std::string help);
Field file(std::string name, std::optional<std::string>& value, std::string help);
/// A codec with parameters of its own.
Field codec(std::string name, PolicyPart& value, std::string help);

/// The field of a list of choices, without its reader and writer.
Field choice_field(std::string name, const std::vector<std::string>& choices, std::string help);

template <class T>
Field choice(std::string name, T& value, std::vector<Named<T>> known, std::string help) {
  std::vector<std::string> names;
  for (const Named<T>& k : known) names.emplace_back(k.name);
  Field field = choice_field(std::move(name), names, std::move(help));
  field.read = [&value, known](std::string_view text) {
    for (const Named<T>& k : known)
      if (text == k.name) return value = k.value, true;
    return false;
  };
  field.write = [&value, known]() -> std::string {
    for (const Named<T>& k : known)
      if (value == k.value) return k.name;
    return "";
  };
  return field;
}
/// Small numbers, each of them named.
Field choice(std::string name, int& value, std::initializer_list<int> known, std::string help);

/// For methods without any.
struct NoOptions {
  Fields fields() { return {}; }  // NOLINT(readability-convert-member-functions-to-static)
};

/// "name(first=1,second=2)": every field that is set, in the list's order.
std::string write_fields(const std::string& name, const Fields& fields);
/// Of a whole option struct.
template <class O>
std::string write_options(const std::string& name, O options) {
  return write_fields(name, options.fields());
}
/// Sets what the part gives. Throws kInvalidArgument for unknown names and values that are not
/// accepted, with what is.
void read_fields(const PolicyPart& part, const Fields& fields);
std::vector<ParameterInfo> infos_of(const Fields& fields);
/// The accepted values of each field, in the same order.
std::vector<std::string> accepted_by(const Fields& fields);
/// A codec as a policy names it, its values checked. Throws kInvalidArgument.
PolicyPart parse_codec(std::string_view text);
/// ",prompt=exact"; empty for chunks, which are the default.
std::string prompt_setting(PromptReading reading);
/// "name" or "name(key=value,...)", as it was written.
std::string to_string(const PolicyPart& part);

/// The options of one method, as any type; the method that made them reads them back.
class MethodOptions {
 public:
  MethodOptions() = default;
  template <class O>
  explicit MethodOptions(O options) : value_(std::move(options)) {}
  template <class O>
  const O& as() const {
    return std::any_cast<const O&>(value_);
  }

 private:
  std::any value_;
};

/// True if it has `paper=true`: then defaults are the paper's, as_in_paper() of the options.
bool asks_for_paper(const PolicyPart& part);

/// Defaults, or the paper's with paper=true; then the given parameters, then check().
template <class O>
MethodOptions read_options(const PolicyPart& part) {
  O options;
  if constexpr (requires { options.as_in_paper(); })
    if (asks_for_paper(part)) options.as_in_paper();
  read_fields(part, options.fields());
  if constexpr (requires { options.check(part.name); }) options.check(part.name);
  return MethodOptions(std::move(options));
}

/// Common to all rows of the registry.
struct MethodRow {
  MethodInfo info;
  std::vector<std::string> accepts;  ///< of each of the info's parameters
  /// The options of a part that names this method. Throws kInvalidArgument.
  MethodOptions (*read)(const PolicyPart& part) = nullptr;

  template <class O>
  void takes() {
    O defaults;
    info.parameters = infos_of(defaults.fields());
    accepts = accepted_by(defaults.fields());
    read = read_options<O>;
  }
};

}  // namespace pith
