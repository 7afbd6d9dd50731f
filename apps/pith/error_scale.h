#pragma once
// The error probe's estimates as one figure, and a word for its size (docs/error_probe.md).

#include <optional>
#include <string>
#include <vector>

#include "pith/attention_error.h"

namespace pith::cli {

/// The root mean square over layers; nothing if no step was compared.
std::optional<double> mean_error(const std::vector<AttentionError>& errors);
const char* error_word(double error);
/// "attention error 0.04: small"; empty without a probe.
std::string short_error(const std::vector<AttentionError>& errors);

}  // namespace pith::cli
