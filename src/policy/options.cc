#include "policy/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <charconv>
#include <cmath>

#include "pith/error.h"
#include "pith/nearest.h"

namespace pith {
namespace {

template <class T>
bool parse_all(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

std::string limit(size_t n) {
  return n >= 1 << 20 && std::has_single_bit(n) ? fmt::format("2^{}", std::countr_zero(n))
                                                : fmt::format("{}", n);
}

std::string text_of(const Whole& w) {
  const std::string what = w.odd            ? "an odd number"
                           : w.multiple > 1 ? fmt::format("a multiple of {}", w.multiple)
                                            : "a whole number";
  return fmt::format("{} from {} to {}", what, w.least, limit(w.most));
}

bool read_whole(std::string_view text, const Whole& w, size_t& out) {
  size_t value = 0;
  if (!parse_all(text, value) || value < w.least || value > w.most) return false;
  if (value % w.multiple != 0 || (w.odd && value % 2 == 0)) return false;
  out = value;
  return true;
}

bool read_number(std::string_view text, const Range& range, double& out) {
  double value = 0;
  if (!parse_all(text, value) || !(value >= range.least && value <= range.most)) return false;
  out = value;
  return true;
}

bool read_budget(std::string_view text, Budget& out) {
  try {
    out = Budget::parse(text);
    return true;
  } catch (const Error&) {
    return false;  // the field's own message says as much
  }
}

constexpr const char* kBudget =
    "a number of rows (1024), a share of what is read (25%) or bytes of the whole cache (16MiB)";

/// For members that may be unset: reads into a value of their type.
template <class T, class Read>
auto into(std::optional<T>& value, Read read) {
  return [&value, read](std::string_view text) {
    T fresh{};
    if (!read(text, fresh)) return false;
    value = std::move(fresh);
    return true;
  };
}

template <class T>
auto written(const std::optional<T>& value) {
  return [&value] { return value ? fmt::format("{}", *value) : std::string(); };
}

Field named(std::string name, std::string accepts, std::string help) {
  Field field;
  field.name = std::move(name);
  field.accepts = std::move(accepts);
  field.help = std::move(help);
  return field;
}

}  // namespace

Field Field::when(bool condition) && {
  printed = condition;
  return std::move(*this);
}

Field Field::unset(std::string amounts_to) && {
  meanwhile = std::move(amounts_to);
  return std::move(*this);
}

Fields operator+(Fields a, Fields b) {
  a.insert(a.end(), std::make_move_iterator(b.begin()), std::make_move_iterator(b.end()));
  return a;
}

Field whole(std::string name, size_t& value, const Whole& accepts, std::string help) {
  Field field = named(std::move(name), text_of(accepts), std::move(help));
  field.read = [&value, accepts](std::string_view text) {
    return read_whole(text, accepts, value);
  };
  field.write = [&value] { return fmt::format("{}", value); };
  return field;
}

Field whole(std::string name, std::optional<size_t>& value, const Whole& accepts,
            std::string help) {
  Field field = named(std::move(name), text_of(accepts), std::move(help));
  field.read = into(value, [accepts](std::string_view text, size_t& out) {
    return read_whole(text, accepts, out);
  });
  field.write = written(value);
  return field;
}

Field number(std::string name, double& value, const Range& accepts, std::string help) {
  Field field =
      named(std::move(name), fmt::format("a number from {} to {}", accepts.least, accepts.most),
            std::move(help));
  field.read = [&value, accepts](std::string_view text) {
    return read_number(text, accepts, value);
  };
  field.write = [&value] { return fmt::format("{}", value); };
  return field;
}

Field number(std::string name, std::optional<double>& value, const Range& accepts,
             std::string help) {
  Field field =
      named(std::move(name), fmt::format("a number from {} to {}", accepts.least, accepts.most),
            std::move(help));
  field.read = into(value, [accepts](std::string_view text, double& out) {
    return read_number(text, accepts, out);
  });
  field.write = written(value);
  return field;
}

Field flag(std::string name, bool& value, std::string help) {
  return choice<bool>(std::move(name), value, {{"true", true}, {"false", false}}, std::move(help));
}

Field rows(std::string name, Budget& value, std::string help) {
  Field field = named(std::move(name), kBudget, std::move(help));
  field.read = [&value](std::string_view text) { return read_budget(text, value); };
  field.write = [&value] { return value.text(); };
  return field;
}

Field rows(std::string name, std::optional<Budget>& value, std::string help) {
  Field field = named(std::move(name), kBudget, std::move(help));
  field.read = into(value, read_budget);
  field.write = [&value] { return value ? value->text() : std::string(); };
  return field;
}

Field file(std::string name, std::optional<std::string>& value, std::string help) {
  Field field = named(std::move(name), "a file", std::move(help));
  field.read = [&value](std::string_view text) { return value = std::string(text), true; };
  field.write = written(value);
  return field;
}

Field codec(std::string name, PolicyPart& value, std::string help) {
  Field field = named(std::move(name), "a codec with its parameters", std::move(help));
  field.read = [&value](std::string_view text) { return value = parse_codec(text), true; };
  field.write = [&value] { return to_string(value); };
  return field;
}

Field choice_field(std::string name, const std::vector<std::string>& choices, std::string help) {
  return named(std::move(name), fmt::format("one of {}", fmt::join(choices, ", ")),
               std::move(help));
}

Field choice(std::string name, int& value, std::initializer_list<int> known, std::string help) {
  std::vector<std::string> names;
  for (int k : known) names.push_back(fmt::format("{}", k));
  Field field = choice_field(std::move(name), names, std::move(help));
  field.read = [&value, names](std::string_view text) {
    for (const std::string& k : names)
      if (text == k) return parse_all(text, value);
    return false;
  };
  field.write = [&value] { return fmt::format("{}", value); };
  return field;
}

std::string write_fields(const std::string& name, const Fields& fields) {
  std::vector<std::string> pairs;
  for (const Field& f : fields)
    if (const std::string value = f.write(); f.printed && !value.empty())
      pairs.push_back(f.name + "=" + value);
  return pairs.empty() ? name : fmt::format("{}({})", name, fmt::join(pairs, ","));
}

bool asks_for_paper(const PolicyPart& part) {
  const auto paper = part.parameters.find("paper");
  return paper != part.parameters.end() && paper->second == "true";
}

void read_fields(const PolicyPart& part, const Fields& fields) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message);
  };
  for (const auto& [name, value] : part.parameters) {
    const Field* field = nullptr;
    std::vector<std::string> names;
    for (const Field& f : fields) {
      names.push_back(f.name);
      if (f.name == name) field = &f;
    }
    if (!field)
      refuse(fmt::format("'{}' has no parameter '{}'{}; it takes {}", part.name, name,
                         did_you_mean(name, names),
                         names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
    if (!field->read(value))
      refuse(fmt::format("{}: {}={} is not {}", part.name, name, value, field->accepts));
  }
}

std::vector<ParameterInfo> infos_of(const Fields& fields) {
  std::vector<ParameterInfo> infos;
  for (const Field& f : fields) {
    const std::string value = f.write();
    infos.push_back({f.name, value.empty() ? f.meanwhile : value, f.help});
  }
  return infos;
}

std::vector<std::string> accepted_by(const Fields& fields) {
  std::vector<std::string> accepts;
  for (const Field& f : fields) accepts.push_back(f.accepts);
  return accepts;
}

std::string to_string(const PolicyPart& part) {
  if (part.parameters.empty()) return part.name;
  std::vector<std::string> pairs;
  for (const auto& [k, v] : part.parameters) pairs.push_back(k + "=" + v);
  return fmt::format("{}({})", part.name, fmt::join(pairs, ","));
}

}  // namespace pith
