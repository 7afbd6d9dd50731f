#pragma once
// The largest of V logits, for samplers that look at few: 320 bytes go to the host instead of 4 V.
// Cost: a maximum of V numbers for one, a radix sort (CUB) of V pairs for more.

#include <span>

#include "kernels/cuda/device.h"
#include "kernels/cuda/pinned.h"

namespace pith::cuda {

inline constexpr size_t kMostRanked = 1024;

struct RankedLogit {
  float logit;
  int32_t id;
};

struct RankingCall {
  const float* logits = nullptr;              // [V]
  size_t count = 1;                           ///< 1 to kMostRanked
  float penalty = 1;                          ///< divides positive logits and multiplies others
  std::span<const int32_t> penalised, never;  ///< ids in 0..V-1, each once
};

class LogitRanking {
 public:
  LogitRanking(MemoryCounter& memory, size_t vocabulary, cudaStream_t stream);

  /// The `count` largest that are finite after penalties, equals by id; fewer if there are no more.
  /// `all_finite` <- whether all logits are. Valid until the next call. Waits for the device.
  std::span<const RankedLogit> rank(const RankingCall& call, bool& all_finite);

 private:
  /// What the host reads after each ranking.
  struct Found {
    RankedLogit best[kMostRanked];
    unsigned long long largest;  // order key and id of the first
    int32_t not_finite;
  };
  void adjust(const RankingCall& call);

  size_t vocabulary_;
  cudaStream_t stream_;
  DeviceArray<uint32_t> keys_, sorted_keys_;  // [V]
  DeviceArray<int32_t> ids_, sorted_ids_;     // [V], 0, 1, ... and in the order of their keys
  DeviceBuffer sorting_;
  MirroredArray<int32_t> adjusted_;  // [2 V]: penalised, then never
  DeviceArray<Found> found_;         // [1]
  PinnedArray<Found> on_host_;       // [1]
};

}  // namespace pith::cuda
