#pragma once
// Finds, for a number of bits, the form of the cache for each layer and KV head of one model, by
// measuring a text and questions about facts in long contexts (docs/decisions/0200).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pith/presets.h"

namespace pith {

struct TuneOptions {
  std::vector<std::string> forms;  ///< policies that a layer may have; empty: standard_forms()
  std::vector<double> bits{2};     ///< numbers of bits of the cache, everything included
  size_t window = 4096;            ///< tokens per piece of the text
  size_t score = 128;              ///< predictions scored per piece, the last
  size_t pieces = 2;               ///< to choose on; as many others are for the report

  /// Retrieval tasks whose answers count beside the text (docs/evaluation.md).
  std::vector<std::string> tasks{"niah_single_1", "passkey"};
  size_t samples = 2;    ///< per task, to choose on; as many others for the report; 0: text alone
  size_t length = 4096;  ///< tokens per sample
  uint64_t task_seed = 1001;
  double answer_weight = 0.5;  ///< weight of a nat of an answer's tokens; a nat of text weighs 1

  StandaloneOptions session;  ///< its context and policy are replaced
  /// JSON lines of measurements: existing ones are reused, new ones added. Empty: none.
  std::filesystem::path measured;
  std::string model_fingerprint;  ///< the model of these measurements

  /// Heavy rows with a coreset in 4-bit keys and 3-bit values, from 3% to 38% of the rows, and all
  /// rows in 2 to 4 bits around a mean.
  static const std::vector<std::string>& standard_forms();
};

/// Divergence from the exact cache, nats per token.
struct TuneLoss {
  double text = 0, answers = 0;
};

/// A layer, or one KV head of it.
struct TunedUnit {
  size_t layer = 0;
  std::optional<size_t> head;
  std::vector<TuneLoss> alone;     // [weighed_in] in that form, all others exact
  std::vector<std::string> forms;  // [bits] chosen
};

/// A policy's figures on text and samples that nothing was chosen on.
struct TunedPolicy {
  Preset preset;  ///< the text's; the model's name is left to the caller
  double answers = 0, answers_error = 0;
};

struct TuneResult {
  /// The forms in which units were measured. Forms that differ in shares only are one kind,
  /// measured in two sizes; codecs over all rows are another, measured in one.
  std::vector<std::string> weighed_in;
  std::vector<TunedUnit> units;    ///< layers, or heads where a layer loses more than its share
  std::vector<TunedPolicy> forms;  ///< one form in all layers
  std::vector<TunedPolicy> found;  // [bits]
};

/// Empty if `progress` returned false; progress counts tokens, and heads are not in its total.
/// Throws kInvalidArgument if the text has fewer tokens than 2 pieces, for forms that name layers,
/// for unknown tasks, and if no form takes so few bits.
std::optional<TuneResult> tune(const std::shared_ptr<const Model>& model,
                               std::span<const int32_t> text, const TuneOptions& options,
                               const Progress& progress = {});

}  // namespace pith
