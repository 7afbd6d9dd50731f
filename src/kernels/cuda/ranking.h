#pragma once
// The largest of V logits, for samplers that look at few: 320 bytes go to the host instead of 4 V.
// Cost: a maximum of V numbers for one, a radix sort (CUB) of V pairs for more.

#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/pinned.h"

namespace pith::cuda {

inline constexpr size_t kMostRanked = 1024;

struct RankedLogit {
  float logit;
  int32_t id;
};

/// Makes of a logit x: x + bias; of that, positive divided by `divisor`, other times it; less
/// `minus`. One that is not finite then is out.
struct LogitAdjustment {
  int32_t id;
  float bias, divisor, minus;
};

struct RankingCall {
  const float* logits = nullptr;              // [V]
  size_t count = 1;                           ///< 1 to kMostRanked
  std::span<const LogitAdjustment> adjusted;  ///< ids in 0..V-1, each once
  /// Ids whose bit `id % 32` of word `id / 32` is not set, or that have no word, are out; empty:
  /// none is.
  std::span<const uint32_t> mask;
};

/// The findings of the device for a row.
struct RowFound {
  unsigned long long largest;  ///< order key and id of the first
  int32_t not_finite;
};

class LogitRanking {
 public:
  /// `rows`: the most that largest() is asked for.
  LogitRanking(MemoryCounter& memory, size_t vocabulary, cudaStream_t stream, size_t rows = 1);

  /// The `count` largest that are finite after adjustments and not masked, equals by id; fewer if
  /// there are no more.
  /// `all_finite` <- whether all logits are. Valid until the next call. Waits for the device.
  std::span<const RankedLogit> rank(const RankingCall& call, bool& all_finite);
  /// The findings of rank() in a row as it is.
  struct Largest {
    RankedLogit best;  ///< its id is -1 if none is finite
    bool all_finite;
  };
  /// The same for each of `rows` rows [V], one behind the other, in one launch. Likewise.
  std::span<const Largest> largest(const float* logits, size_t rows);

 private:
  /// The part that the host reads after each ranking.
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
  MirroredArray<LogitAdjustment> adjusted_;  // [V]
  MirroredArray<uint32_t> mask_;             // [V / 32, rounded up]
  DeviceArray<Found> found_;                 // [1]
  PinnedArray<Found> on_host_;               // [1]
  DeviceArray<RowFound> rows_;               // [rows]
  PinnedArray<RowFound> host_rows_;          // [rows]
  std::vector<Largest> largest_;             // of the last call
};

}  // namespace pith::cuda
