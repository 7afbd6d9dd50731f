#pragma once
// Attention over a caller's own tensors: keys and values run through a policy in their order, and
// queries attend to what is left. For `pith attend`.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "core/safetensors.h"
#include "core/thread_pool.h"
#include "pith/policy.h"

namespace pith {

/// The tensors of a file.
struct AttendTensors {
  const Tensor *q = nullptr, *k = nullptr, *v = nullptr;  // [H, Tq, D], [G, T, D], [G, T, D]
  size_t query_heads = 0, queries = 0, kv_heads = 0, rows = 0, dim = 0;
};
/// Refuses shapes that do not fit, and with `causal` unless there is a query for each row.
AttendTensors attend_tensors(const SafeTensors& file, bool causal);

struct TensorAttentionOptions {
  Policy policy;
  uint64_t seed = 0;
  std::vector<TokenRange> protect;
  size_t context = 0;  ///< 0: the rows
  size_t chunk = 512;  ///< rows, or queries, at a time
  double rope_theta = 0;
  int threads = 0;
  std::string isa;
  size_t memory_limit = 0;
};

class TensorAttention {
 public:
  /// Told what is done, of how many; false stops.
  using Note = std::function<bool(const char* doing, size_t done, size_t of)>;
  struct Timing {
    double append = 0, attend = 0;
  };

  /// `in` must outlive it.
  TensorAttention(TensorAttentionOptions options, const AttendTensors& in);
  /// Each query attends as in prefill if `causal`, else to what is left of all rows. False if it
  /// was stopped.
  bool run(bool causal, const Note& note) { return causal ? run_causal(note) : run_streamed(note); }
  /// The answers, and the rows of each KV head, with their weights and roles.
  void write(const std::string& path) const;

  const KvCache& cache() const { return *cache_; }
  const Timing& timing() const { return timing_; }
  int threads() const { return pool_.size(); }
  const char* isa() const { return context_.kernels.isa; }

 private:
  bool run_causal(const Note& note);
  bool run_streamed(const Note& note);
  void load_keys(size_t first, size_t count);
  void check_scores(double query) const;
  void store(size_t first, size_t count);

  const AttendTensors& in_;
  TensorAttentionOptions options_;
  ThreadPool pool_;
  MemoryCounter memory_;
  Context context_;
  std::unique_ptr<Rope> rope_;
  std::unique_ptr<KvCache> cache_;
  std::vector<float> q_, k_, v_, result_;  // one chunk: [count, H or G, D]
  std::vector<float> out_;                 // [H, Tq, D]
  double longest_key_ = 0;                 // so far
  Timing timing_;
};

}  // namespace pith
