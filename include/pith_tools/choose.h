#pragma once
// The policy for a number of bytes, as --kv and `auto` choose it: what is measured best on this
// model, or, for a model without figures, on all models measured so far (docs/presets.md).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pith/presets.h"

namespace pith {

/// "half" as "50%", likewise quarter and tenth; other texts as they are.
std::string memory_budget(std::string_view word);
/// "half", "quarter", "tenth".
std::vector<std::string> memory_words();
/// True for a text that is a size of the cache ("quarter", "30%", "16MiB"), not a policy. The size
/// is not checked: choose_policy refuses malformed ones.
bool says_memory(std::string_view text);

struct ChooseOptions {
  std::filesystem::path model;  ///< folder or GGUF file
  std::string budget;           ///< "25%" of what `exact` takes, or "16MiB"
  PresetGoal goal = PresetGoal::kBoth;
  std::filesystem::path presets = {};  ///< file to choose from; empty: the built-in table
  StandaloneOptions session = {};      ///< its context and percent_of count
  /// Measures these policies on a model without figures and returns all that is known of it then,
  /// or nothing. Empty: none is measured, and the choice is what is safe on other models.
  std::function<std::optional<std::vector<Preset>>(std::span<const std::string>)> measure = {};
};

/// SessionOptions::percent_of (docs/decisions/0095) for a prompt and at most `predict` tokens of an
/// answer, -1: what will be read and written, as far as that is known.
size_t read_in_all(size_t prompt, int64_t predict, size_t context);

/// Throws as Presets::choose, read_model_config and Presets::read do.
PresetChoice choose_policy(const ChooseOptions& options);

}  // namespace pith
