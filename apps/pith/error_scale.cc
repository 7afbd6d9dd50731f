#include "error_scale.h"

#include <fmt/format.h>

#include <cmath>

namespace pith::cli {

std::optional<double> mean_error(const std::vector<AttentionError>& errors) {
  double squares = 0;
  bool compared = false;
  for (const AttentionError& e : errors) {
    squares += e.estimate * e.estimate;
    compared = compared || e.steps > 0;
  }
  if (!compared) return std::nullopt;
  return std::sqrt(squares / static_cast<double>(errors.size()));
}

const char* error_word(double error) {
  return error < 0.01 ? "tiny" : error < 0.1 ? "small" : error < 0.25 ? "medium" : "large";
}

std::string short_error(const std::vector<AttentionError>& errors) {
  if (errors.empty()) return {};
  const auto error = mean_error(errors);
  if (!error) return "attention error not compared yet";
  return fmt::format("attention error {:.2f}: {}", *error, error_word(*error));
}

}  // namespace pith::cli
