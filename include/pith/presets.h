#pragma once
// The best measured policy for a budget: a table of the size and loss of policies on real models,
// and the choice from it for a model, a context and a number of bytes (docs/presets.md).

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pith/session.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// One policy as it was measured.
struct Preset {
  std::string policy = {};
  std::string model = {};  ///< the model of the measurement
  uint64_t context = 0;    ///< tokens of the measurement
  size_t seeds = 0;
  double divergence = 0, divergence_error = 0;  ///< KL from the exact cache, nats per token
  double bits = 0;                              ///< effective bits, everything included
  double facts = -1;                            ///< share of hidden facts found; -1: not measured
  std::string model_fingerprint = {};           ///< the only model that it is for; empty: any
};

/// The quality that a policy is chosen by.
enum class PresetGoal : uint8_t {
  kText,   ///< the least divergence
  kFacts,  ///< the most facts found
  kBoth,   ///< the least divergence among those that find at least 3/4 of the most facts found
};

/// A chosen policy with the reasons.
struct PresetChoice {
  Policy policy;
  Preset measured;
  PresetGoal goal = PresetGoal::kBoth;
  size_t fitting = 0;       ///< policies that fit the budget
  double best_facts = -1;   ///< largest share of facts among these; -1: not measured
  size_t bytes = 0;         ///< most bytes of the cache, everything included
  size_t budget_bytes = 0;  ///< the budget
  size_t exact_bytes = 0;   ///< bytes of `exact`
  uint64_t context = 0;     ///< tokens of these three
  /// Two lines: bytes; and the expected loss, with a number and the place where it was measured,
  /// or that it was not measured on this model.
  std::string why() const;
  std::string details() const;  ///< one line: the policy and the table
};

/// Hexadecimal hash of a folder's config.json and of name, size, first and last MiB of each weights
/// file, or of the one GGUF file. (Reading all of a large model takes minutes.)
std::string model_fingerprint(const std::filesystem::path& model);

class Presets {
 public:
  /// This build's figures of a model; for an unknown model, the policies that were safe on all
  /// models measured, with the worst figures of any.
  static Presets built_in(const std::string& fingerprint = "");
  /// Reads a file of JSON lines. Throws kNotFound, and kCorrupt with the line's number.
  static Presets read(const std::filesystem::path& file);
  static Presets parse(std::string_view lines, const std::string& name);
  static Presets of(std::vector<Preset> presets, const std::string& name);
  /// Writes such a file, for one model alone unless `fingerprint` is empty. Throws kIo.
  static void write(const std::filesystem::path& file, const std::vector<Preset>& presets,
                    const std::string& fingerprint = "");
  /// Call it before long work: throws the errors of write(), and kInvalidArgument for a file that
  /// is one of the inputs.
  static void check_write(const std::filesystem::path& file,
                          const std::vector<std::filesystem::path>& inputs);

  const std::vector<Preset>& all() const { return presets_; }
  /// The fingerprint of the only model that the table is for (`pith tune`); empty: any.
  const std::string& model_fingerprint() const { return model_fingerprint_; }

  /// The best policy for the goal among those that fit. `budget` is "16MiB" (KiB, GiB), or "25%" of
  /// the bytes of `exact` for the whole context, with sliding layers at the size of their windows.
  /// A policy fits if estimate_ledger for this model never exceeds the budget. Divergences are
  /// those measured at the length nearest to the context, by ratio.
  /// `options.policy` is ignored.
  /// Throws kInvalidArgument for a malformed budget and one below the smallest policy, kUnsupported
  /// for facts that were not measured.
  PresetChoice choose(const ModelConfig& config, const StandaloneOptions& options,
                      const std::string& budget, PresetGoal goal = PresetGoal::kBoth) const;
  /// All policies that fit, by rising divergence. Throws as choose() does.
  std::vector<Preset> fitting(const ModelConfig& config, const StandaloneOptions& options,
                              const std::string& budget) const;

 private:
  struct Fitting;
  Fitting fit(const ModelConfig& config, const StandaloneOptions& options,
              const std::string& budget) const;
  std::vector<const Preset*> nearest(uint64_t context) const;
  std::vector<Preset> presets_;
  std::string name_, model_fingerprint_;
};

}  // namespace pith

#pragma GCC visibility pop
