#pragma once
// Which form the cache of each layer and KV head of one model takes, found on a text and on
// questions about facts in long contexts: measured, for a number of bits (docs/decisions/0200).

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
  size_t window = 4096;            ///< tokens of a piece of the text
  size_t score = 128;              ///< predictions that count in each, the last
  size_t pieces = 2;               ///< to choose on; as many others are reported on

  /// Retrieval tasks, whose answers count beside the text (docs/evaluation.md).
  std::vector<std::string> tasks{"niah_single_1", "passkey"};
  size_t samples = 2;  ///< of each, to choose on; as many others are reported on; 0: the text alone
  size_t length = 4096;  ///< tokens of a sample
  uint64_t task_seed = 1001;
  double answer_weight = 0.5;  ///< what a nat of an answer's tokens counts, of the text's

  StandaloneOptions session;  ///< context and policy are the runs'
  /// JSON lines: measurements that are there are not repeated, new ones are added. Empty: none.
  std::filesystem::path measured;
  std::string model_fingerprint;  ///< whose they are

  /// Heavy rows and a coreset in 4-bit keys and 3-bit values, from 3% of the rows to 38%,
  /// and all rows in 2 to 4 bits around a mean.
  static const std::vector<std::string>& standard_forms();
};

/// Divergence from the exact cache, nats a token.
struct TuneLoss {
  double text = 0, answers = 0;
};

/// A layer, or a KV head of it.
struct TunedUnit {
  size_t layer = 0;
  std::optional<size_t> head;
  std::vector<TuneLoss> alone;     // [weighed_in] in that form, all others exact
  std::vector<std::string> forms;  // [bits] chosen
};

/// A policy on what nothing was chosen on.
struct TunedPolicy {
  Preset preset;  ///< the text's; the model's name is left to the caller
  double answers = 0, answers_error = 0;
};

struct TuneResult {
  /// What units were weighed in: forms that differ in shares alone are sizes of one kind, weighed
  /// in two of them; codecs over all rows are a kind too, weighed in one.
  std::vector<std::string> weighed_in;
  std::vector<TunedUnit> units;    ///< layers that lose more than an equal share come by head
  std::vector<TunedPolicy> forms;  ///< in all layers alike
  std::vector<TunedPolicy> found;  // [bits]
};

/// Nothing if `progress` returned false. It counts tokens; heads come on top of its total. Throws
/// kInvalidArgument if the text has fewer than 2 pieces' tokens, for forms that say themselves
/// which layers they are for, for tasks that are not there, and if no form takes as few bits.
std::optional<TuneResult> tune(const std::shared_ptr<const Model>& model,
                               std::span<const int32_t> text, const TuneOptions& options,
                               const Progress& progress = {});

}  // namespace pith
