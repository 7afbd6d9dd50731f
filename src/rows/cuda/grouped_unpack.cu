// Coded rows back to dense ones: one thread block per block of 32 rows. Memory-bound: reads the
// codes and writes 2 bytes per number.

#include <algorithm>

#include "kernels/cuda/in_groups.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "rows/cuda/grouped_code.h"
#include "rows/cuda/level_lane.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

/// Places that one launch takes.
template <size_t kPlaces>
struct Unpackings {
  UnpackRowsCall of[kPlaces];
};

/// Blocks (block of 32 rows, head, place).
template <class T, int D, int kBits, Grouping kGrouping, bool kRotated, size_t kPlaces>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const __grid_constant__ Unpackings<kPlaces> places) {
  const UnpackRowsCall& p = places.of[kPlaces == 1 ? 0 : blockIdx.z];
  if (kPlaces > 1 &&
      (static_cast<int>(blockIdx.x) >= p.blocks || static_cast<int>(blockIdx.y) >= p.heads)) {
    return;
  }
  constexpr bool kKeys = kIsKeys<kGrouping>, kMinima = kHasMinima<kGrouping>;
  constexpr int kScales = D;  // one per channel, or D / 32 for each of 32 rows
  const size_t block = blockIdx.y * p.block_stride + blockIdx.x;
  const auto* codes = static_cast<const uint32_t*>(p.codes) + block * D * kBits;
  const auto* side = static_cast<const __half*>(p.side) + block * kScales * (kMinima ? 2 : 1);
  T* to = static_cast<T*>(p.out) + blockIdx.y * p.head_stride +
          static_cast<size_t>(blockIdx.x) * kBlockRows * D;
  __shared__ float rows[kRotated ? kBlockRows : 1][D + 1];
  for (int i = threadIdx.x; i < kBlockRows * D; i += kThreads) {
    const int row = i / D, channel = i % D;
    CodePlace place;
    int scale_at;
    if constexpr (kKeys) {
      place = layout::key(row, channel, D, kBits);
      scale_at = kGrouping == Grouping::kChannelKeys ? layout::key_channel_scale(channel)
                                                     : layout::key_token_scale(row, channel / 32);
    } else {
      place = layout::value(row, channel, D, kBits);
      scale_at = layout::value_scale(row, channel / 32, D);
    }
    const float scale = __half2float(side[scale_at]);
    float low;
    if constexpr (kMinima) {
      low = __half2float(side[kScales + scale_at]);
    } else {
      low = -scale * (1 << (kBits - 1));
    }
    const uint32_t code = codes[place.word] >> place.bit & ((1u << kBits) - 1);
    const float x = low + scale * static_cast<float>(code);
    if constexpr (kRotated) {
      rows[row][channel] = x;
    } else {
      to[i] = from_float<T>(x);
    }
  }
  if constexpr (kRotated) {
    __syncthreads();
    rotate_block<D>(rows);
    for (int i = threadIdx.x; i < kBlockRows * D; i += kThreads) {
      to[i] = from_float<T>(rows[i / D][i % D]);
    }
  }
}

template <int kBits, Grouping kGrouping, bool kRotated = false, size_t kPlaces = 1>
void unpack(const Unpackings<kPlaces>& places, dim3 grid, cudaStream_t stream) {
  const UnpackRowsCall& call = places.of[0];
  const auto launch = [&]<class T, int D>() {
    launch_kernel(unpack_kernel<T, D, kBits, kGrouping, kRotated, kPlaces>, {grid, kThreads},
                  stream, "unpacking of coded rows", places);
  };
  const bool bf16 = call.dtype == DType::kBF16;
  if (call.head_dim == 64) {
    bf16 ? launch.template operator()<__nv_bfloat16, 64>()
         : launch.template operator()<__half, 64>();
  } else {
    bf16 ? launch.template operator()<__nv_bfloat16, 128>()
         : launch.template operator()<__half, 128>();
  }
}

/// Keys or values: how KIVI groups them, and how the others do.
template <size_t kPlaces, Grouping kKivi, Grouping kOthers>
void unpack_side(GroupedCodec codec, std::span<const UnpackRowsCall> calls, cudaStream_t stream) {
  Unpackings<kPlaces> places;
  std::ranges::copy(calls, places.of);
  const dim3 grid = grid_of(calls, [](const UnpackRowsCall& call) { return call.blocks; });
  if (grid.x == 0) return;
  switch (codec) {
    case GroupedCodec::kKivi2: return unpack<2, kKivi>(places, grid, stream);
    case GroupedCodec::kKivi4: return unpack<4, kKivi>(places, grid, stream);
    case GroupedCodec::kInt4: return unpack<4, kOthers>(places, grid, stream);
    case GroupedCodec::kInt8: return unpack<8, kOthers>(places, grid, stream);
    case GroupedCodec::kRotatedInt4: return unpack<4, kOthers, true>(places, grid, stream);
    case GroupedCodec::kRotatedInt8: return unpack<8, kOthers, true>(places, grid, stream);
  }
}

template <size_t kPlaces>
void unpack_keys(GroupedCodec codec, std::span<const UnpackRowsCall> calls, cudaStream_t stream) {
  unpack_side<kPlaces, Grouping::kChannelKeys, Grouping::kTokenKeys>(codec, calls, stream);
}

template <size_t kPlaces>
void unpack_values(GroupedCodec codec, std::span<const UnpackRowsCall> calls, cudaStream_t stream) {
  unpack_side<kPlaces, Grouping::kAsymmetricValues, Grouping::kSymmetricValues>(codec, calls,
                                                                                stream);
}

constexpr size_t kPlaces = 64;  // of a launch of many

}  // namespace

void unpack_grouped_keys(GroupedCodec codec, std::span<const UnpackRowsCall> calls,
                         cudaStream_t stream) {
  if (calls.size() == 1) return unpack_keys<1>(codec, calls, stream);
  in_groups(calls, kPlaces, [&](auto some) { unpack_keys<kPlaces>(codec, some, stream); });
}

void unpack_grouped_values(GroupedCodec codec, std::span<const UnpackRowsCall> calls,
                           cudaStream_t stream) {
  if (calls.size() == 1) return unpack_values<1>(codec, calls, stream);
  in_groups(calls, kPlaces, [&](auto some) { unpack_values<kPlaces>(codec, some, stream); });
}

}  // namespace pith::cuda
