// int4 and int8 rows, and KIVI's values of two bits, from block to block, codes and scales as they
// are: a thread block per block of 32 rows of the target, keys or values. A word of keys belongs to
// one row, each half of a word of values to one. Memory-bound: reads what moves and writes the
// target once.

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/grouped_layout.h"
#include "kernels/cuda/in_groups.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "rows/cuda/grouped_code.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStays = MoveCodesCall::kStays, kZero = MoveCodesCall::kZero;

/// kSides: f16 numbers for 32 codes, a scale and maybe a minimum.
template <int D, int kBits, int kSides = 1>
struct BlockMove {
  static constexpr int kWords = D * kBits, kPerWord = 16 / kBits, kSteps = D / 16;
  static constexpr int kSideNumbers = D * kSides;
  static_assert(2 * kSteps % kPerWord == 0, "a word's codes have the same rows");

  const uint32_t* from;
  uint32_t* to;
  const __half* from_side;
  __half* to_side;

  /// The codes of rows `row` in the lower or upper half of a word, from the word of row `source`.
  template <bool kKeys>
  __device__ uint32_t word_of(int source, int channel) const {
    const int row = source % kBlockRows;
    const int at = kKeys ? layout::key(row, channel, D, kBits).word
                         : layout::value(row, channel, D, kBits).word;
    return from[static_cast<size_t>(source / kBlockRows) * kWords + at];
  }

  /// sources [32]: a row of `from`, kStays or kZero.
  template <bool kKeys>
  __device__ void run(const int* sources) const {
    for (int w = threadIdx.x; w < kWords; w += kThreads) {
      // The inverse of layout::place.
      const int lane = w / 4 % 32, n = (w / 128 * 4 + w % 4) * kPerWord;
      const int outer = n / kSteps, step = n % kSteps;
      int row = outer / 2 * 8, channel = step * 16 + outer % 2 * 8;
      if constexpr (kKeys) {
        row += lane / 4;
        channel += lane % 4 * 2;
        const int source = sources[row];
        if (source != kStays) to[w] = source == kZero ? 0 : word_of<true>(source, channel);
      } else {
        row += lane % 4 * 2;
        channel += lane / 4;
        const int even = sources[row], odd = sources[row + 1];
        const uint32_t before = even == kStays || odd == kStays ? to[w] : 0;
        const auto half = [&](int source, int low) {
          if (source == kStays) return before >> 16 * low & 0xffffu;
          if (source == kZero) return 0u;
          return word_of<false>(source, channel) >> source % 2 * 16 & 0xffffu;
        };
        to[w] = half(even, 0) | half(odd, 1) << 16;
      }
    }
    const auto side_at = [](int row, int group) {
      return kKeys ? layout::key_token_scale(row, group) : layout::value_scale(row, group, D);
    };
    for (int i = threadIdx.x; i < kSideNumbers; i += kThreads) {
      const int row = i % kBlockRows, group = i % D / kBlockRows, source = sources[row];
      if (source == kStays) continue;
      const int first = i / D * D;  // minima lie behind all scales
      to_side[first + side_at(row, group)] =
          source == kZero
              ? __float2half_rn(0)
              : from_side[static_cast<size_t>(source / kBlockRows) * kSideNumbers +
                          static_cast<size_t>(first + side_at(source % kBlockRows, group))];
    }
  }
};

/// Where each row of the target's block comes from: a row of `from`, kStays or kZero.
__device__ inline void find_sources(int (&sources)[kBlockRows], const MoveCodesCall& p, int head,
                                    int block) {
  if (threadIdx.x < kBlockRows) {
    const int row = static_cast<int>(threadIdx.x);
    sources[row] = p.source(head, block * kBlockRows + row);
  }
  __syncthreads();
}

enum class MovedSides { kBoth, kKeys, kValues };

/// Places that one launch takes.
template <size_t kPlaces>
struct CodeMoves {
  MoveCodesCall of[kPlaces];
  MovedSides sides;
};

/// Blocks (block of 32 rows, head, place, of both sides x keys or values).
template <int D, int kBits, size_t kPlaces>
__global__ void __launch_bounds__(kThreads)
    move_kernel(const __grid_constant__ CodeMoves<kPlaces> moves) {
  const bool both = moves.sides == MovedSides::kBoth;
  const MoveCodesCall& p = moves.of[kPlaces == 1 ? 0 : both ? blockIdx.z / 2 : blockIdx.z];
  const int head = blockIdx.y;
  if (kPlaces > 1 && (static_cast<int>(blockIdx.x) >= p.blocks() || head >= p.heads)) return;
  __shared__ int sources[kBlockRows];
  const int block = p.first_block() + static_cast<int>(blockIdx.x);
  find_sources(sources, p, head, block);
  const bool keys = both ? blockIdx.z % 2 == 0 : moves.sides == MovedSides::kKeys;
  const size_t from = head * p.from.stride, to = head * p.to.stride + block;
  const auto move_of = [&](const void* codes, const void* side, void* to_codes, void* to_side) {
    return BlockMove<D, kBits>{static_cast<const uint32_t*>(codes) + from * D * kBits,
                               static_cast<uint32_t*>(to_codes) + to * D * kBits,
                               static_cast<const __half*>(side) + from * D,
                               static_cast<__half*>(to_side) + to * D};
  };
  if (keys) {
    move_of(p.from.key_codes, p.from.key_side, p.to.key_codes, p.to.key_side)
        .template run<true>(sources);
  } else {
    move_of(p.from.value_codes, p.from.value_side, p.to.value_codes, p.to.value_side)
        .template run<false>(sources);
  }
}

/// KIVI's values in two bits.
template <int D>
__global__ void __launch_bounds__(kThreads) move_values(const __grid_constant__ MoveCodesCall p) {
  using Move = BlockMove<D, 2, 2>;
  __shared__ int sources[kBlockRows];
  const int head = blockIdx.y;
  const int block = p.first_block() + static_cast<int>(blockIdx.x);
  find_sources(sources, p, head, block);
  const size_t from = head * p.from.stride, to = head * p.to.stride + block;
  Move{static_cast<const uint32_t*>(p.from.value_codes) + from * Move::kWords,
       static_cast<uint32_t*>(p.to.value_codes) + to * Move::kWords,
       static_cast<const __half*>(p.from.value_side) + from * Move::kSideNumbers,
       static_cast<__half*>(p.to.value_side) + to * Move::kSideNumbers}
      .template run<false>(sources);
}

template <size_t kPlaces>
void move_some(int bits, std::span<const MoveCodesCall> calls, MovedSides sides,
               cudaStream_t stream) {
  CodeMoves<kPlaces> moves;
  moves.sides = sides;
  std::ranges::copy(calls, moves.of);
  dim3 grid = grid_of(calls, [](const MoveCodesCall& call) { return call.blocks(); });
  if (grid.x == 0) return;
  const MoveCodesCall& any = calls.front();
  const auto kernel =
      any.head_dim == 64
          ? (bits == 4 ? move_kernel<64, 4, kPlaces> : move_kernel<64, 8, kPlaces>)
          : (bits == 4 ? move_kernel<128, 4, kPlaces> : move_kernel<128, 8, kPlaces>);
  if (sides == MovedSides::kBoth) grid.z *= 2;
  launch_kernel(kernel, {grid, kThreads}, stream, "moving coded rows", moves);
}

void move_all(int bits, std::span<const MoveCodesCall> calls, MovedSides sides,
              cudaStream_t stream) {
  constexpr size_t kPlaces = 64;
  if (calls.size() == 1 && calls.front().count == 0) return;
  if (calls.size() == 1) return move_some<1>(bits, calls, sides, stream);
  in_groups(calls, kPlaces, [&](auto some) { move_some<kPlaces>(bits, some, sides, stream); });
}

}  // namespace

void move_kivi2_values(const MoveCodesCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  const dim3 grid(call.blocks(), call.heads);
  call.head_dim == 64
      ? launch_kernel(move_values<64>, {grid, kThreads}, stream, "moving coded values", call)
      : launch_kernel(move_values<128>, {grid, kThreads}, stream, "moving coded values", call);
}

void move_coded_rows(int bits, std::span<const MoveCodesCall> calls, cudaStream_t stream) {
  move_all(bits, calls, MovedSides::kBoth, stream);
}

void move_coded_sides(int bits, bool keys, std::span<const MoveCodesCall> calls,
                      cudaStream_t stream) {
  move_all(bits, calls, keys ? MovedSides::kKeys : MovedSides::kValues, stream);
}

}  // namespace pith::cuda
