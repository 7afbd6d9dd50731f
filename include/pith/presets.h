#pragma once
// The measured best policy for a budget: a table of what policies cost and lost on a real model,
// and the choice from it for a model, a context and a number of bytes.

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
  std::string model = {};  ///< measured on
  uint64_t context = 0;    ///< tokens of the measurement
  size_t seeds = 0;
  double divergence = 0, divergence_error = 0;  ///< KL from the exact cache, nats a token
  double bits = 0;                              ///< effective, everything included
  double facts = -1;                            ///< share of hidden facts found; -1: not measured
  std::string model_fingerprint = {};           ///< the only model that it is for; empty: any
};

/// What a policy is chosen for.
enum class PresetGoal : uint8_t {
  kText,   ///< the least divergence
  kFacts,  ///< the most facts found
  kBoth,  ///< the least divergence of those that find at least 3/4 of the facts that the best finds
};

/// What was chosen, and why.
struct PresetChoice {
  Policy policy;
  Preset measured;
  PresetGoal goal = PresetGoal::kBoth;
  size_t fitting = 0;       ///< policies that fit the budget
  double best_facts = -1;   ///< share that the best of them found; -1: not measured
  size_t bytes = 0;         ///< the most that the cache will take, everything included
  size_t budget_bytes = 0;  ///< what was given
  size_t exact_bytes = 0;   ///< of `exact` at the same length
  uint64_t context = 0;     ///< tokens of all three
  /// Two lines: bytes; and what is expected, with a number and where it was measured. A policy that
  /// was not measured on this model says so.
  std::string why() const;
  std::string details() const;  ///< a line with the policy and what it was chosen from
};

/// Of a folder's config.json, and of name, size, first and last MiB of each weights file, or of the
/// one GGUF file (all of a large model would take minutes to read), in hexadecimal.
std::string model_fingerprint(const std::filesystem::path& model);

class Presets {
 public:
  /// What this build knows of a model (docs/presets.md): its figures, or if it has none, the
  /// policies that were safe on all models measured so far, with the worst figures of any of them.
  static Presets built_in(const std::string& fingerprint = "");
  /// A file of JSON lines in the same form. Throws kNotFound, kCorrupt with the line's number.
  static Presets read(const std::filesystem::path& file);
  static Presets parse(std::string_view lines, const std::string& name);
  static Presets of(std::vector<Preset> presets, const std::string& name);
  /// Writes such a file, for one model alone unless `fingerprint` is empty. Throws kIo.
  static void write(const std::filesystem::path& file, const std::vector<Preset>& presets,
                    const std::string& fingerprint = "");
  /// To ask before the work: throws what write() would throw, and kInvalidArgument for a file that
  /// is one of the inputs.
  static void check_write(const std::filesystem::path& file,
                          const std::vector<std::filesystem::path>& inputs);

  const std::vector<Preset>& all() const { return presets_; }
  /// The fingerprint of the only model that they are for, as `pith tune` writes it; empty: any.
  const std::string& model_fingerprint() const { return model_fingerprint_; }

  /// The best policy for the goal among those that fit. `budget` is "16MiB" (KiB, GiB), or
  /// "25%" of the bytes that `exact` takes in this model for the whole context, whose sliding
  /// layers hold their windows. Fitting is this model's own matter:
  /// the most that estimate_ledger says for it. Divergences are those measured at the length
  /// nearest to the context, by ratio. `options.policy` is not looked at. Throws kInvalidArgument
  /// for a budget that is none or below the least that any policy needs, and for facts that were
  /// not measured.
  PresetChoice choose(const ModelConfig& config, const StandaloneOptions& options,
                      const std::string& budget, PresetGoal goal = PresetGoal::kBoth) const;
  /// All that fit, by rising divergence; throws like choose().
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
