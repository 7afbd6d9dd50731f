#include "chat_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <variant>
#include <vector>

#include "pith/error.h"
#include "pith/nearest.h"

namespace pith::cli {
namespace {

using Value = std::variant<float*, int*, int64_t*, uint64_t*>;

std::vector<std::pair<std::string, Value>> settings_of(GenerateOptions& o) {
  SamplingOptions& s = o.sampling;
  return {{"temp", &s.temperature},
          {"top-k", &s.top_k},
          {"top-p", &s.top_p},
          {"min-p", &s.min_p},
          {"repeat-penalty", &s.repeat_penalty},
          {"presence-penalty", &s.presence_penalty},
          {"frequency-penalty", &s.frequency_penalty},
          {"repeat-last-n", &s.repeat_last_n},
          {"seed", &s.seed},
          {"n", &o.max_tokens}};
}

/// As the option is called, however it was typed: --top_k, temperature, predict.
std::string plain(std::string name) {
  name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
  std::ranges::replace(name, '_', '-');
  if (name == "temperature") return "temp";
  if (name == "predict" || name == "n-predict" || name == "num-predict") return "n";
  return name;
}

}  // namespace

void set_setting(GenerateOptions& options, const std::string& name, const std::string& value) {
  GenerateOptions changed = options;
  std::vector<std::string> names;
  for (const auto& [known, place] : settings_of(changed)) {
    names.push_back(known);
    if (known != plain(name)) continue;
    const bool read = std::visit(
        [&](auto* number) {
          const char* end = value.data() + value.size();
          const auto [last, error] = std::from_chars(value.data(), end, *number);
          return error == std::errc() && last == end;
        },
        place);
    if (!read || changed.max_tokens < -1)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("/set {}: '{}' is not a number that it takes", known, value));
    const Sampler checked(changed.sampling);
    options = std::move(changed);
    return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("/set has no '{}'{}; it has {}", name, did_you_mean(plain(name), names),
                          fmt::join(names, ", ")));
}

std::string describe_settings(const GenerateOptions& options) {
  GenerateOptions copy = options;
  std::string out;
  for (const auto& [name, place] : settings_of(copy))
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name,
                       std::visit([](auto* number) { return fmt::format("{}", *number); }, place));
  return out;
}

}  // namespace pith::cli
