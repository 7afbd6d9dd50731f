// The attention mass of one query over int4 and int8 keys, straight from the codes: four lanes have
// a row, whose codes lie 4 or 8 words a lane. Memory-bound: reads each key's codes once.

#include "attend/cuda/mass_token.cuh"
#include "kernels/cuda/grouped_layout.h"
#include "methods/quant/quant_cuda.h"

namespace pith::cuda {
namespace {

template <int kBits>
struct TokenKeyMass {
  static constexpr int kRows = kTokenThreads / 4;  // of a block at once

  static size_t shared_bytes(int group, int dim) {
    return sizeof(float) * static_cast<size_t>(group) * static_cast<size_t>(dim);
  }

  /// Lane c of a row has channels 16 step + 8 up + 2 c + low, in this order of (up, step, low).
  template <int D>
  static __device__ int channel_of(int i, int c) {
    return i / 2 % (D / 16) * 16 + i / (D / 8) * 8 + c * 2 + i % 2;
  }

  /// x [D / 4] <- lane c's channels of a row: codes less their zero, times the scales.
  template <int D>
  static __device__ void read_row(float (&x)[D / 4], const uint32_t* codes, const __half* side,
                                  int row) {
    constexpr int kPerWord = 16 / kBits, kSteps = D / 16, kWords = 2 * kSteps / kPerWord;
    const int lane = row % 8 * 4 + static_cast<int>(threadIdx.x) % 4;
    uint32_t words[kWords];
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      const int word = row / 8 * kWords + j;
      words[j] = codes[(word / 4 * 32 + lane) * 4 + word % 4];
    }
    float scales[D / 32];
#pragma unroll
    for (int g = 0; g < D / 32; ++g)
      scales[g] = __half2float(side[layout::key_token_scale(row, g)]);
#pragma unroll
    for (int i = 0; i < D / 4; ++i) {
      const int n = i / 2;
      const uint32_t code = words[n / kPerWord] >> (i % 2 * 16 + n % kPerWord * kBits);
      const int signed_code = static_cast<int>(code & ((1u << kBits) - 1)) - (1 << (kBits - 1));
      x[i] = static_cast<float>(signed_code) * scales[n % kSteps / 2];
    }
  }

  template <class T, int D>
  static __device__ void add(const TokenParams& p, const MassTarget& target, float* queries) {
    // Dense rows begin at the first block of the grid, coded ones at the last.
    const int blocks = static_cast<int>(gridDim.y);
    const int begin = (blocks - 1 - static_cast<int>(blockIdx.y)) * kRows;
    const int head = blockIdx.x, c = threadIdx.x % 4, coded = target.coded_count(head);
    if (begin >= coded) return;
    const T* q = static_cast<const T*>(p.q) + static_cast<size_t>(head) * p.group * D;
    for (int i = threadIdx.x; i < p.group * D; i += kTokenThreads) {  // [group, D / 4, 4]
      queries[i] = to_float(q[i / D * D + channel_of<D>(i % D / 4, i % 4)]);
    }
    __syncthreads();
    const float scale = kLog2e * rsqrtf(static_cast<float>(D));
    const size_t first_block = target.first_block(head);
    const auto* codes = static_cast<const uint32_t*>(target.codes) + first_block * D * kBits;
    const auto* sides = static_cast<const __half*>(target.code_side) + first_block * D;
    float* mass = target.mass + target.mass_at(head) + target.coded_from;
    for (int first = begin; first < coded; first += kRows * blocks) {
      const int own = first + static_cast<int>(threadIdx.x) / 4;
      const int row = min(own, coded - 1);
      const auto block = static_cast<size_t>(row / kBlockRows);
      float k[D / 4];
      read_row<D>(k, codes + block * D * kBits, sides + block * D, row % kBlockRows);
      float sum = 0;
      for (int h = 0; h < p.group; ++h) {
        float score = 0;
#pragma unroll
        for (int i = 0; i < D / 4; ++i) score += k[i] * queries[h * D + i * 4 + c];
        score += __shfl_xor_sync(~0u, score, 1);
        score += __shfl_xor_sync(~0u, score, 2);
        sum += exp2_fast(score * scale - p.log_sum[head * p.group + h] * kLog2e);
      }
      if (c == 0 && own < coded) {
        mass[row] = target.coded_from + row < target.known ? mass[row] + sum : sum;
      }
    }
  }
};

}  // namespace

void add_coded_mass(int bits, const TokenMass& call, const MassTarget* target,
                    cudaStream_t stream) {
  with_rows_of(call.shape.dtype, call.shape.head_dim, [&]<class T, int D>() {
    bits == 4 ? launch_token<T, D, TokenKeyMass<4>>(call, target, stream)
              : launch_token<T, D, TokenKeyMass<8>>(call, target, stream);
  });
}

}  // namespace pith::cuda
