#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/order_key.cuh"
#include "kernels/cuda/ranking.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kOut = 0;  // key_of of what is not finite, and of nothing else

int blocks_for(size_t n) { return static_cast<int>((n + kThreads - 1) / kThreads); }

/// Zeros of both signs are equal.
__device__ uint32_t finite_key(float x) { return isfinite(x) ? key_of(x + 0.0f) : kOut; }

__host__ __device__ float logit_of(uint32_t key) {
  const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}
__host__ __device__ RankedLogit logit_of_largest(unsigned long long largest) {
  const auto key = static_cast<uint32_t>(largest >> 32);
  return {logit_of(key), key == kOut ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(largest))};
}

__global__ void keys_kernel(uint32_t* keys, int32_t* not_finite, const float* logits, int n) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= n) return;
  keys[i] = finite_key(logits[i]);
  if (keys[i] == kOut) *not_finite = 1;
}

/// Each operation rounded by itself, as the host's.
__global__ void adjust_kernel(uint32_t* keys, const float* logits, const LogitAdjustment* all,
                              int n) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= n) return;
  const LogitAdjustment a = all[i];
  const float x = __fadd_rn(logits[a.id], a.bias);
  const float y = x > 0 ? __fdiv_rn(x, a.divisor) : __fmul_rn(x, a.divisor);
  keys[a.id] = finite_key(__fadd_rn(y, -a.minus));
}

__global__ void mask_kernel(uint32_t* keys, const uint32_t* mask, int words, int n) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= n) return;
  if (i / 32 >= words || (mask[i / 32] >> (i % 32) & 1u) == 0) keys[i] = kOut;
}

__global__ void count_up_kernel(int32_t* ids, int n) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < n) ids[i] = i;
}

/// Of equal keys the smaller id is larger. The largest of key_at(0), ..., to one place.
template <class KeyAt>
__device__ void find_largest(unsigned long long* largest, int n, const KeyAt& key_at) {
  unsigned long long most = 0;
  for (int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x) * kThreads) {
    const unsigned long long x =
        static_cast<unsigned long long>(key_at(i)) << 32 | ~static_cast<uint32_t>(i);
    most = x > most ? x : most;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const unsigned long long x = __shfl_xor_sync(~0u, most, d);
    most = x > most ? x : most;
  }
  if (threadIdx.x % 32 == 0) atomicMax(largest, most);
}

__global__ void largest_kernel(unsigned long long* largest, const uint32_t* keys, int n) {
  find_largest(largest, n, [&](int i) { return keys[i]; });
}

/// A row of blocks a row of logits.
__global__ void largest_rows_kernel(RowFound* found, const float* logits, int n) {
  RowFound& row = found[blockIdx.y];
  const float* of_row = logits + static_cast<size_t>(blockIdx.y) * n;
  find_largest(&row.largest, n, [&](int i) {
    const uint32_t key = finite_key(of_row[i]);
    if (key == kOut) row.not_finite = 1;
    return key;
  });
}

__global__ void take_largest_kernel(RankedLogit* best, const unsigned long long* largest) {
  *best = logit_of_largest(*largest);
}

__global__ void take_kernel(RankedLogit* best, const uint32_t* keys, const int32_t* ids, int n) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < n) best[i] = {logit_of(keys[i]), keys[i] == kOut ? -1 : ids[i]};
}

}  // namespace

LogitRanking::LogitRanking(MemoryCounter& memory, size_t vocabulary, cudaStream_t stream,
                           size_t rows)
    : vocabulary_(vocabulary),
      stream_(stream),
      keys_(memory, MemoryKind::kScratch, vocabulary, stream),
      sorted_keys_(memory, MemoryKind::kScratch, vocabulary, stream),
      ids_(memory, MemoryKind::kScratch, vocabulary, stream),
      sorted_ids_(memory, MemoryKind::kScratch, vocabulary, stream),
      sorting_(memory, MemoryKind::kScratch),
      adjusted_(memory, MemoryKind::kScratch, vocabulary, stream),
      mask_(memory, MemoryKind::kScratch, (vocabulary + 31) / 32, stream),
      found_(memory, MemoryKind::kScratch, 1, stream),
      on_host_(1),
      rows_(memory, MemoryKind::kScratch, rows, stream),
      host_rows_(rows) {
  size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairsDescending(nullptr, bytes, keys_.data(), sorted_keys_.data(),
                                                  ids_.data(), sorted_ids_.data(), vocabulary),
        "the ranking of logits");
  sorting_.allocate(bytes, stream);
  const int n = static_cast<int>(vocabulary);
  launch_kernel(count_up_kernel, {blocks_for(vocabulary), kThreads}, stream,
                "the ranking of logits", ids_.data(), n);
}

void LogitRanking::adjust(const RankingCall& call) {
  if (const size_t count = call.adjusted.size(); count > 0) {
    std::copy(call.adjusted.begin(), call.adjusted.end(), adjusted_.host());
    adjusted_.upload(count, stream_);
    launch_kernel(adjust_kernel, {blocks_for(count), kThreads}, stream_, "the ranking of logits",
                  keys_.data(), call.logits, adjusted_.device(), static_cast<int>(count));
  }
  if (const size_t words = std::min(call.mask.size(), mask_.size()); words > 0) {
    std::copy_n(call.mask.begin(), words, mask_.host());
    mask_.upload(words, stream_);
    launch_kernel(mask_kernel, {blocks_for(vocabulary_), kThreads}, stream_,
                  "the ranking of logits", keys_.data(), mask_.device(), static_cast<int>(words),
                  static_cast<int>(vocabulary_));
  }
}

std::span<const RankedLogit> LogitRanking::rank(const RankingCall& call, bool& all_finite) {
  const int n = static_cast<int>(vocabulary_);
  const size_t count = std::min(call.count, vocabulary_);
  Found* found = found_.data();
  check(cudaMemsetAsync(&found->largest, 0, sizeof(Found) - offsetof(Found, largest), stream_),
        "the ranking of logits");
  launch_kernel(keys_kernel, {blocks_for(vocabulary_), kThreads}, stream_, "the ranking of logits",
                keys_.data(), &found->not_finite, call.logits, n);
  adjust(call);
  if (count == 1) {
    launch_kernel(largest_kernel, {64, kThreads}, stream_, "the ranking of logits", &found->largest,
                  keys_.data(), n);
    launch_kernel(take_largest_kernel, {1, 1}, stream_, "the ranking of logits", found->best,
                  &found->largest);
  } else {
    size_t bytes = sorting_.size();
    check(cub::DeviceRadixSort::SortPairsDescending(
              sorting_.data(), bytes, keys_.data(), sorted_keys_.data(), ids_.data(),
              sorted_ids_.data(), vocabulary_, 0, 32, stream_),
          "the ranking of logits");
    launch_kernel(take_kernel, {blocks_for(count), kThreads}, stream_, "the ranking of logits",
                  found->best, sorted_keys_.data(), sorted_ids_.data(), static_cast<int>(count));
  }
  Found& host = on_host_[0];
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_),
          "the ranking of logits");
  };
  copy(host.best, found->best, count * sizeof(RankedLogit));
  copy(&host.not_finite, &found->not_finite, sizeof(host.not_finite));
  check(cudaStreamSynchronize(stream_), "the ranking of logits");
  all_finite = host.not_finite == 0;
  const auto end =
      std::find_if(host.best, host.best + count, [](const RankedLogit& x) { return x.id < 0; });
  return {host.best, static_cast<size_t>(end - host.best)};
}

std::span<const LogitRanking::Largest> LogitRanking::largest(const float* logits, size_t rows) {
  constexpr unsigned kBlocksARow = 16;
  const size_t bytes = rows * sizeof(RowFound);
  check(cudaMemsetAsync(rows_.data(), 0, bytes, stream_), "the ranking of logits");
  const dim3 grid(kBlocksARow, static_cast<unsigned>(rows));
  launch_kernel(largest_rows_kernel, {grid, kThreads}, stream_, "the ranking of logits",
                rows_.data(), logits, static_cast<int>(vocabulary_));
  check(cudaMemcpyAsync(host_rows_.data(), rows_.data(), bytes, cudaMemcpyDeviceToHost, stream_),
        "the ranking of logits");
  check(cudaStreamSynchronize(stream_), "the ranking of logits");
  largest_.clear();
  for (size_t i = 0; i < rows; ++i) {
    const RowFound& found = host_rows_[i];
    largest_.push_back({logit_of_largest(found.largest), found.not_finite == 0});
  }
  return largest_;
}

}  // namespace pith::cuda
