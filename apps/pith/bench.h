#pragma once
// Shared by the parts of 'pith bench': its options, random prompts, and the check of answers that
// comes before anything is timed.

#include <memory>
#include <string>
#include <vector>

#include "engine.h"

namespace pith::cli {

struct BenchOptions {
  ModelOptions engine;
  std::vector<std::string> policies;
  std::vector<int64_t> depths{0, 4096};
  std::vector<int64_t> sessions;  ///< empty: one at a time, by depths
  size_t memory = 0;              ///< bytes; as many sessions as they admit
  bool separate_prompts = false;  ///< each session reads its own, all in one step
  int64_t arriving = 0;           ///< tokens of a prompt that comes while the sessions decode
  int64_t prompt = 512, generate = 64, repeats = 3;
};

struct Cancelled {};
/// Throws Cancelled if the user asked to stop.
void check_cancelled();

/// Bytes per second that the device's memory gives.
double measured_read_rate(const ModelOptions& engine);

/// Tokens per second at most, of sessions whose steps read the weights once for all of them and
/// each session's cache, at `read` bytes per second.
double decode_limit(double read, const Model& model, const Ledger& each, size_t sessions);

std::vector<int32_t> random_tokens(size_t count, int vocab, uint64_t seed);

/// The largest difference to the reference's logits, as a share of the largest logit. The reference
/// of the CPU is its scalar twins, that of the GPU, which multiplies in the weights' type, the CPU.
/// Throws kInternal where that is more than rounding.
double check_answer(const std::shared_ptr<const Model>& model, const StandaloneOptions& options);

}  // namespace pith::cli
