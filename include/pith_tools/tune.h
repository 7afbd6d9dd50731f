#pragma once
// Finds, for a number of bits, the form of the cache for each KV head of one model. The loss of
// each form in each head comes from one exact pass over a text and over questions about facts in
// long contexts; a few whole runs check the choice (docs/presets.md, docs/decisions/0200).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pith/presets.h"

namespace pith {

struct TuneOptions {
  std::vector<std::string> forms;  ///< policies that a head may have; empty: standard_forms()
  std::vector<double> bits{2};     ///< numbers of bits of the cache, everything included
  /// Tokens per piece of the text; 0: the most that text and model allow, up to 4096.
  size_t window = 0;
  size_t score = 128;  ///< predictions scored per piece, the last; at most a quarter if window is 0
  size_t pieces = 1;   ///< to choose on; the report uses as many others

  /// Retrieval tasks whose answers count beside the text (docs/evaluation.md).
  std::vector<std::string> tasks{"niah_single_1", "passkey"};
  size_t samples = 1;    ///< per task, to choose on; the report uses as many others; 0: text alone
  size_t length = 2048;  ///< tokens per sample
  uint64_t task_seed = 1001;
  double answer_weight = 0.5;  ///< weight of a nat of an answer's tokens; a nat of text weighs 1
  /// Part of the loss that a form must save to be used: forms are launches on a GPU.
  double form_cost = 0.02;

  StandaloneOptions session;  ///< of the whole runs; its context and policy are replaced
  int threads = 0;            ///< of the pass, which runs on the CPU; 0 = all cores
  /// JSON lines of measurements: existing ones are reused, new ones added. Empty: none.
  std::filesystem::path measured;
  std::string model_fingerprint;  ///< the model of these measurements

  /// Heavy rows with a coreset from 3% to 38% of the rows in keys of 4 or 8 bits and values of 3,
  /// and all rows in 2 to 9 bits.
  static const std::vector<std::string>& standard_forms();
};

/// Divergence from the exact cache, nats per token.
struct TuneLoss {
  double text = 0, answers = 0;
};

struct TunedForm {
  std::string policy;
  double bits = 0;   ///< in all heads that may have it
  TuneLoss alike{};  ///< sum of its losses in each head alone
};

struct TunedHead {
  size_t layer = 0, head = 0;
  std::vector<TuneLoss> alone;  // [forms] in that form, all others exact
  std::vector<size_t> chosen;   // [bits] place in forms
};

struct TunedPolicy {
  /// Its figures on text and samples that nothing was chosen on; the model's name is left to the
  /// caller.
  Preset preset;
  double answers = 0, answers_error = 0;
  TuneLoss predicted{};  ///< sum of its heads' losses
  TuneLoss chosen_on{};  ///< as measured on what it was chosen on
};

struct TuneResult {
  size_t window = 0;  ///< tokens per piece of the text
  std::vector<TunedForm> forms;
  std::vector<TunedHead> heads;    // [L * G]
  std::vector<TunedPolicy> found;  // [bits]
};

/// Empty if `progress` returned false; progress counts tokens of about equal work.
/// Throws kInvalidArgument if the text has fewer tokens than 2 pieces, for forms that name layers
/// or say how prompts are read, for unknown tasks, and if no form takes so few bits.
std::optional<TuneResult> tune(const std::shared_ptr<const Model>& model,
                               std::span<const int32_t> text, const TuneOptions& options,
                               const Progress& progress = {});

}  // namespace pith
