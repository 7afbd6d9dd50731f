#include "kernels/cuda/tile_rows.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/tiles.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// A warp makes a step: each lane gathers its codes from two rows.
template <WeightType kType>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const __grid_constant__ PackCall p, uint32_t steps) {
  using F = TileFormat<kType>;
  const int lane = threadIdx.x % kWarp;
  const size_t at = static_cast<size_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const size_t tile = at / steps, step = at % steps, row_bytes = p.in / F::kBlock * F::kBytes;
  if (tile * kTileRows >= p.count) return;
  const auto row = [&](size_t r) {
    return r < p.count ? reinterpret_cast<const uint8_t*>(p.rows) + r * row_bytes : nullptr;
  };
  const size_t first_row = tile * kTileRows + lane / 4;
  const uint8_t* const rows[2] = {row(first_row), row(first_row + 8)};
  LaneStep<F> s;
  pack_step(s, rows, lane, step * F::kStep, p.in);
  std::byte* to = p.tiles + (p.first / kTileRows * steps + at) * F::kStepBytes;
  visit_words(s, lane,
              [&](uint32_t word, int byte) { *reinterpret_cast<uint32_t*>(to + byte) = word; });
}

/// Calls f(row 0 or 1 for r or r + 8, input of the step, four numbers) for all of a lane's.
template <class F, class Take>
__device__ inline void decode_step(const LaneStep<F>& s, int lane, const Take& f) {
  LaneSides<F> sides;
  load_sides(sides, s, lane);
  // A code's float: 2^23 + its byte, less what the byte is above the code.
  constexpr uint32_t kFlip = F::kSigned ? 0x80808080u : 0;
  constexpr float kBias = 8388608.0f + (F::kSigned ? 128 : F::kZero);
#pragma unroll
  for (int run = 0; run < F::kRuns; ++run) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = i & 1, sub = F::kSub == 32 ? run : 2 * run + (i >> 1);
      const int from = (lane & ~3) | sub % 4;
      const float scale = __shfl_sync(~0u, sides.scale[sub / 4][h], from);
      float low = 0;
      if constexpr (F::kMinimum) low = __shfl_sync(~0u, sides.low[sub / 4][h], from);
      const uint32_t codes = codes_of(s, run, i) ^ kFlip;
      float y[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float code = __uint_as_float(__byte_perm(codes, 0x4B000000u, 0x7440u | k)) - kBias;
        y[k] = __fmul_rn(scale, code);
        if constexpr (F::kMinimum) y[k] = __fadd_rn(y[k], low);
      }
      f(h, 32 * run + 16 * (i >> 1) + 4 * (lane % 4), y);
    }
  }
}

/// A warp decodes a step. Bytes: the codes once, the numbers once.
template <WeightType kType, class T>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const __grid_constant__ UnpackCall p, uint32_t steps) {
  using F = TileFormat<kType>;
  const int lane = threadIdx.x % kWarp;
  const size_t at = static_cast<size_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const size_t first_row = at / steps * kTileRows, first = at % steps * F::kStep;
  if (first_row >= p.count) return;
  LaneStep<F> s;
  load_step(s, p.w.data + (p.first / kTileRows * steps + at) * F::kStepBytes, lane);
  decode_step(s, lane, [&](int h, int input, const float(&y)[4]) {
    const size_t row = first_row + lane / 4 + 8 * h;
    if (row >= p.count || first + input >= p.w.in) return;
    store_four(static_cast<T*>(p.out) + row * p.w.in + first + input, y);
  });
}

/// A block copies a row, a warp one step at a time: what its tile has of other rows is not used.
template <WeightType kType>
__global__ void __launch_bounds__(kThreads)
    pick_kernel(const __grid_constant__ PickCall p, uint32_t steps) {
  using F = TileFormat<kType>;
  const int lane = threadIdx.x % kWarp;
  const size_t id = static_cast<size_t>(p.ids[blockIdx.x]), tile = id / kTileRows;
  for (uint32_t step = threadIdx.x / kWarp; step < steps; step += kWarps) {
    const size_t first = static_cast<size_t>(step) * F::kStep;
    LaneStep<F> s;
    load_step(s, p.w.data + (tile * steps + step) * F::kStepBytes, lane);
    decode_step(s, lane, [&](int h, int input, const float(&y)[4]) {
      if (lane / 4 + 8 * h != id % kTileRows || first + input >= p.w.in) return;
      const float scaled[4] = {p.scale * y[0], p.scale * y[1], p.scale * y[2], p.scale * y[3]};
      store_four(p.out + blockIdx.x * p.w.in + first + input, scaled);
    });
  }
}

template <class To, class From>
__global__ void convert_kernel(To* to, const From* from, size_t n) {
  const size_t stride = static_cast<size_t>(gridDim.x) * kThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    to[i] = from_float<To>(to_float(from[i]));
  }
}

uint32_t steps_of(WeightType type, size_t in) {
  return static_cast<uint32_t>(tile_counts(type, 1, in).steps);
}
unsigned blocks_for(size_t rows, uint32_t steps) {
  const size_t warps = (rows + kTileRows - 1) / kTileRows * steps;
  return static_cast<unsigned>((warps + kWarps - 1) / kWarps);
}

}  // namespace

void pack_tiles(const PackCall& call, cudaStream_t stream) {
  const uint32_t steps = steps_of(call.type, call.in);
  with_block_type(call.type, [&]<WeightType kType> {
    launch_kernel(pack_kernel<kType>, {blocks_for(call.count, steps), kThreads}, stream,
                  "weights into tiles", call, steps);
  });
}

void unpack_tiles(const UnpackCall& call, cudaStream_t stream) {
  const uint32_t steps = steps_of(call.w.type, call.w.in);
  with_block_type(call.w.type, [&]<WeightType kType> {
    with_type(call.dtype, [&](auto zero) {
      launch_kernel(unpack_kernel<kType, decltype(zero)>, {blocks_for(call.count, steps), kThreads},
                    stream, "weights out of tiles", call, steps);
    });
  });
}

void pick_rows(const PickCall& call, cudaStream_t stream) {
  const uint32_t steps = steps_of(call.w.type, call.w.in);
  with_block_type(call.w.type, [&]<WeightType kType> {
    launch_kernel(pick_kernel<kType>, {static_cast<unsigned>(call.tokens), kThreads}, stream,
                  "rows of a table in tiles", call, steps);
  });
}

void convert_numbers(const ConvertCall& call, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(8 * device_info().multiprocessors);
  with_type(call.to_dtype, [&](auto to) {
    with_type(call.from_dtype, [&](auto from) {
      launch_kernel(convert_kernel<decltype(to), decltype(from)>, {blocks, kThreads}, stream,
                    "weights of another type", static_cast<decltype(to)*>(call.to),
                    static_cast<const decltype(from)*>(call.from), call.n);
    });
  });
}

}  // namespace pith::cuda
