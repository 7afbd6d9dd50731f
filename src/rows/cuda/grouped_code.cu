// Coding of grouped rows: one thread block per block of 32 rows. Scales and minima are rounded to
// f16 first, and codes are chosen for the rounded numbers. Memory-bound: reads each number once.

#include <algorithm>
#include <span>

#include "kernels/cuda/grouped_layout.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "rows/cuda/grouped_code.h"
#include "rows/cuda/level_lane.cuh"

namespace pith::cuda {
namespace {

struct GroupCode {
  float inverse, low;  // code = round((x - low) * inverse)
};

/// Scale and minimum of one group, and how to code with them.
template <bool kMinima, int kBits>
__device__ inline GroupCode choose_code(float least, float most, __half* scale, __half* low) {
  if constexpr (kMinima) {
    *low = __float2half_rn(least);
    *scale = __float2half_rn((most - least) / ((1 << kBits) - 1));
  } else {
    // The code 2^(b-1) is zero; the larger end of the range decides.
    *scale = __float2half_rn(fmaxf(-least, most) / ((1 << (kBits - 1)) - 1));
  }
  const float s = __half2float(*scale);
  const float inverse = s > 0 ? 1 / s : 0;
  const float zero = kMinima ? __half2float(*low) : -s * (1 << (kBits - 1));
  return {inverse, zero};
}

/// Places that one launch takes: all layers of most models.
inline constexpr int kMostJobs = 64;

struct CodeJobs {
  CodeJob of[kMostJobs];
};

template <class T, int D, int kBits, Grouping kGrouping, bool kRotated>
__global__ void __launch_bounds__(128) code_kernel(const __grid_constant__ CodeJobs jobs) {
  constexpr bool kMinima = kHasMinima<kGrouping>;
  constexpr bool kChannels = kGrouping == Grouping::kChannelKeys;
  constexpr int kGroups = kChannels ? D : kBlockRows * (D / 32);
  constexpr int kWords = D * kBits, kSides = kGroups * (kMinima ? 2 : 1);
  __shared__ float rows[kBlockRows][D + 1];
  __shared__ GroupCode groups[kGroups];
  const CodeJob& job = jobs.of[blockIdx.z];
  const size_t block = blockIdx.y * job.block_stride + blockIdx.x;
  uint32_t* codes = static_cast<uint32_t*>(job.codes) + block * kWords;
  __half* side = static_cast<__half*>(job.side) + block * kSides;

  const T* from = static_cast<const T*>(job.x) + blockIdx.y * job.head_stride +
                  static_cast<size_t>(blockIdx.x) * 32 * D;
  for (int i = threadIdx.x; i < kBlockRows * D; i += blockDim.x) {
    rows[i / D][i % D] = static_cast<float>(from[i]);
  }
  __syncthreads();
  if constexpr (kRotated) rotate_block<D>(rows);
  for (int g = threadIdx.x; g < kGroups; g += blockDim.x) {
    float least = INFINITY, most = -INFINITY;
    for (int i = 0; i < 32; ++i) {
      const float v = kChannels ? rows[i][g] : rows[g % 32][g / 32 * 32 + i];
      least = fminf(least, v);
      most = fmaxf(most, v);
    }
    int place;
    if constexpr (kChannels) {
      place = layout::key_channel_scale(g);
    } else if constexpr (kIsKeys<kGrouping>) {
      place = layout::key_token_scale(g % 32, g / 32);
    } else {
      place = layout::value_scale(g % 32, g / 32, D);
    }
    groups[g] = choose_code<kMinima, kBits>(least, most, side + place, side + kGroups + place);
  }
  __syncthreads();
  for (int w = threadIdx.x; w < kWords; w += blockDim.x) {
    // The inverse of layout::place.
    constexpr int kPerWord = 16 / kBits;
    const int lane = w / 4 % 32, word = w / 128 * 4 + w % 4;
    uint32_t packed = 0;
    for (int slot = 0; slot < kPerWord; ++slot) {
      const int n = word * kPerWord + slot;
      const int outer = n / (D / 16), step = n % (D / 16);
      for (int low = 0; low < 2; ++low) {
        int row = outer / 2 * 8, channel = step * 16 + outer % 2 * 8;
        if constexpr (kIsKeys<kGrouping>) {
          row += lane / 4;
          channel += lane % 4 * 2 + low;
        } else {
          row += lane % 4 * 2 + low;
          channel += lane / 4;
        }
        const GroupCode g = groups[kChannels ? channel : channel / 32 * 32 + row];
        const float code = rintf((rows[row][channel] - g.low) * g.inverse);
        const int limited = static_cast<int>(fminf(fmaxf(code, 0), (1 << kBits) - 1));
        packed |= static_cast<uint32_t>(limited) << (low * 16 + slot * kBits);
      }
    }
    codes[w] = packed;
  }
}

/// The arguments of a launch of the coder.
struct CoderLaunch {
  CodeBatch batch;
  std::span<const CodeJob> jobs;
};

template <class T, int D, int kBits, Grouping kGrouping, bool kRotated>
void launch_coder(const CoderLaunch& launch, cudaStream_t stream) {
  if (launch.batch.rows == 0) return;
  for (size_t first = 0; first < launch.jobs.size(); first += kMostJobs) {
    const size_t count = std::min<size_t>(kMostJobs, launch.jobs.size() - first);
    CodeJobs jobs;
    std::copy_n(launch.jobs.begin() + first, count, jobs.of);
    const dim3 grid(launch.batch.rows / kBlockRows, launch.batch.heads, count);
    launch_kernel(code_kernel<T, D, kBits, kGrouping, kRotated>, {grid, 128}, stream,
                  "coding of grouped rows", jobs);
  }
}

template <int kBits, Grouping kGrouping, bool kRotated = false>
void code_rows(const CoderLaunch& launch, cudaStream_t stream) {
  const bool bf16 = launch.batch.dtype == DType::kBF16;
  if (launch.batch.head_dim == 64) {
    bf16 ? launch_coder<__nv_bfloat16, 64, kBits, kGrouping, kRotated>(launch, stream)
         : launch_coder<__half, 64, kBits, kGrouping, kRotated>(launch, stream);
  } else {
    bf16 ? launch_coder<__nv_bfloat16, 128, kBits, kGrouping, kRotated>(launch, stream)
         : launch_coder<__half, 128, kBits, kGrouping, kRotated>(launch, stream);
  }
}

void code_keys(GroupedCodec codec, const CoderLaunch& launch, cudaStream_t stream) {
  switch (codec) {
    case GroupedCodec::kKivi2: return code_rows<2, Grouping::kChannelKeys>(launch, stream);
    case GroupedCodec::kKivi4: return code_rows<4, Grouping::kChannelKeys>(launch, stream);
    case GroupedCodec::kInt4: return code_rows<4, Grouping::kTokenKeys>(launch, stream);
    case GroupedCodec::kInt8: return code_rows<8, Grouping::kTokenKeys>(launch, stream);
    case GroupedCodec::kRotatedInt4:
      return code_rows<4, Grouping::kTokenKeys, true>(launch, stream);
    case GroupedCodec::kRotatedInt8:
      return code_rows<8, Grouping::kTokenKeys, true>(launch, stream);
  }
}

void code_values(GroupedCodec codec, const CoderLaunch& launch, cudaStream_t stream) {
  switch (codec) {
    case GroupedCodec::kKivi2: return code_rows<2, Grouping::kAsymmetricValues>(launch, stream);
    case GroupedCodec::kKivi4: return code_rows<4, Grouping::kAsymmetricValues>(launch, stream);
    case GroupedCodec::kInt4: return code_rows<4, Grouping::kSymmetricValues>(launch, stream);
    case GroupedCodec::kInt8: return code_rows<8, Grouping::kSymmetricValues>(launch, stream);
    case GroupedCodec::kRotatedInt4:
      return code_rows<4, Grouping::kSymmetricValues, true>(launch, stream);
    case GroupedCodec::kRotatedInt8:
      return code_rows<8, Grouping::kSymmetricValues, true>(launch, stream);
  }
}

}  // namespace

void code_grouped(GroupedCodec codec, const CodeBatch& batch, std::span<const CodeJob> keys,
                  std::span<const CodeJob> values, cudaStream_t stream) {
  code_keys(codec, {batch, keys}, stream);
  code_values(codec, {batch, values}, stream);
}

}  // namespace pith::cuda
