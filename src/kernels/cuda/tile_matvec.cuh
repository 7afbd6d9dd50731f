#pragma once
// The kernel of tile_matvec.h, for one format. A block has 16 warps; `split` of them share a
// tile's steps. It stays for all its tiles: a warp asks for its steps some ahead, across tiles, and
// leaves its part of a tile's sums in shared memory until the end.
//
// One token's tensor-core product would use two of eight columns (a 16-bit activation is 256 high +
// low, a column each). So four groups of kSub inputs take a pair of columns each, zeros elsewhere,
// and are summed into the same accumulators: lane c of the four that have the same rows ends up
// with group c's sums, and its scale. Two tokens leave two groups a product, four one.
//
// More than four tokens are coded by a kernel of their own. A block then has one, two or four
// groups of four of them, for which it reads its weights once, and the grid's y goes on to others.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/tile_launch.h"
#include "kernels/cuda/tiles.cuh"

namespace pith::cuda {

inline constexpr int kTileThreads = kTileWarps * kWarp;

/// Four adjacent activations as whole numbers 256 high + low.
struct FourInputs {
  uint32_t high, low;  // a byte each
  float scale;

  /// Eight neighbouring threads have a run of 32.
  __device__ explicit FourInputs(const float4& v) {
    const auto magnitude = [](float a) { return __float_as_uint(a) & 0x7FFFFFFFu; };
    uint32_t top = max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
#pragma unroll
    for (int d = 4; d > 0; d /= 2) top = max(top, __shfl_xor_sync(~0u, top, d));
    const float largest = __uint_as_float(top);
    // Above 2^125 a reciprocal is not a normal number, and sums would not be finite.
    const bool fits = top < 0x7E000000u;
    const bool zero = !fits || largest < 1e-30f;
    const float inverse = zero ? 0 : 32639.0f * reciprocal(largest);
    scale = fits ? (zero ? 0 : largest * (1 / 32639.0f)) : __uint_as_float(0x7FC00000u);
    // 1.5 2^23 + x has the whole number in its last bits.
    const auto whole = [&](float a) {
      return zero ? 0 : __float_as_uint(fmaf(a, inverse, 12582912.0f));
    };
    const uint32_t x = whole(v.x), y = whole(v.y), z = whole(v.z), w = whole(v.w);
    low = __byte_perm(__byte_perm(x, y, 0x0040), __byte_perm(z, w, 0x0040), 0x5410);
    high = __byte_perm(__byte_perm(x + 128, y + 128, 0x0051), __byte_perm(z + 128, w + 128, 0x0051),
                       0x5410);
  }
};

/// A thread's share of a row of `in` numbers, kKept pieces of four from `first` on, all asked for
/// before any is used.
inline constexpr int kKept = 4, kKeptInputs = 4 * kTileThreads * kKept;
__device__ inline void load_row(float4 (&v)[kKept], const float* row, uint32_t first, uint32_t in) {
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const uint32_t i = first + 4 * (j * kTileThreads + threadIdx.x);
    v[j] = i < in ? *reinterpret_cast<const float4*>(row + i) : float4{0, 0, 0, 0};
  }
}

/// Activations x of a group's token `token` to where the group's are, as bytes in the order of the
/// product's operands. `norms`: the norm's first weights.
template <class F, int kTokens>
__device__ inline void load_token(std::byte* group, float* block_sums, const TileMatvecCall& p,
                                  const float* x, const TileShared& at, int token,
                                  const float4 (&norms)[kKept]) {
  const auto in = static_cast<uint32_t>(p.w.in);
  float4 v[kKept];
  float factor = 1;
  if (p.norm) {
    float squares = 0;
    for (uint32_t left = (in - 1) / kKeptInputs + 1; left-- > 0;) {  // ends with the first
      load_row(v, x, left * kKeptInputs, in);
#pragma unroll
      for (int j = 0; j < kKept; ++j)
        squares += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
    }
    squares = block_sum<kTileThreads>(squares, block_sums);
    factor = 1 / sqrtf(squares / static_cast<float>(in) + p.eps);
  } else {
    load_row(v, x, 0, in);
  }
  std::byte* codes = group + token * at.token();
  auto* sides = reinterpret_cast<InputSide*>(group + at.sides()) + token;
  for (uint32_t first = 0; first < at.inputs; first += kKeptInputs) {
    if (first > 0) load_row(v, x, first, in);
    if (p.norm) {
      float4 w[kKept];
      if (first > 0) load_row(w, p.norm, first, in);
#pragma unroll
      for (int j = 0; j < kKept; ++j) {
        if (first == 0) w[j] = norms[j];
        v[j] = {v[j].x * (factor * w[j].x), v[j].y * (factor * w[j].y), v[j].z * (factor * w[j].z),
                v[j].w * (factor * w[j].w)};
      }
    }
    // Runs are whole, and so are the eight threads of each: padding counts as zeros.
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      const uint32_t i = first + 4 * (j * kTileThreads + threadIdx.x);
      if (first + 4 * j * kTileThreads >= at.inputs) break;
      const FourInputs q(v[j]);
      // Sums of high and of low bytes together: 32 of them stay below 2^15.
      int sums = __dp4a(static_cast<int>(q.high), 0x01010101, 0) * 65536 +
                 __dp4a(static_cast<int>(q.low), 0x01010101, 0);
#pragma unroll
      for (int d = F::kSub / 8; d > 0; d /= 2) sums += __shfl_xor_sync(~0u, sums, d);
      if (i >= at.inputs) continue;
      const uint32_t four = i / 4 % 8, run = i / 32;  // inputs 4 four of the run
      auto* to = reinterpret_cast<uint32_t*>(codes + run * 64) + four % 4 * 2 + four / 4;
      to[0] = q.high;
      to[8] = q.low;
      if (four % (F::kSub / 4) == 0) {
        const int low = static_cast<int16_t>(sums), high = (sums - low) >> 16;
        sides[i / F::kSub * kTokens] = {q.scale, q.scale * static_cast<float>(256 * high + low),
                                        -F::kZero * high, -F::kZero * low};
      }
    }
  }
}

/// acc += of rows r and r + 8: one step's products with this lane's token of each group.
template <class F, int kTokens, int kGroups>
__device__ inline void multiply_step(float (&acc)[kGroups][2], const LaneStep<F>& s,
                                     const std::byte* shared, const TileShared& at, uint32_t step,
                                     int lane) {
  constexpr int kPer = 4 / kTokens;  // groups a product
  const int column = lane / 4, c = lane % 4;
  const int my_group = column / 2 / kTokens, my_token = column / 2 % kTokens;
  LaneSides<F> sides;
  load_sides(sides, s, lane);
  const std::byte* codes =
      shared + my_token * at.token() + step * F::kRuns * 64 + column % 2 * 32 + c * 8;
  const auto* inputs =
      reinterpret_cast<const InputSide*>(shared + at.sides()) + step * F::kSubs * kTokens + c;
#pragma unroll
  for (int g = 0; g < F::kSubs / kPer; ++g) {
    // Runs kPer g on have their scales with quad's lanes from kPer g % 4 on.
    const int q = kPer * g / 4, from = (lane & ~3) | ((kPer * g + c / kTokens) % 4);
    float scale[2], low[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = sides.scale[q][h];
      if constexpr (kTokens > 1) scale[h] = __shfl_sync(~0u, scale[h], from);
      if constexpr (F::kMinimum) {
        low[h] = sides.low[q][h];
        if constexpr (kTokens > 1) low[h] = __shfl_sync(~0u, low[h], from);
      }
    }
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      const std::byte* mine_codes = codes + m * at.group();
      const auto* side = reinterpret_cast<const std::byte*>(inputs + 4 * g) + m * at.group();
      const InputSide x = *reinterpret_cast<const InputSide*>(side);
      int sums[4] = {};
      if constexpr (F::kZero != 0) sums[0] = sums[2] = x.high, sums[1] = sums[3] = x.low;
      if constexpr (F::kSub == 32) {
        const uint2 b = *reinterpret_cast<const uint2*>(mine_codes + (kPer * g + my_group) * 64);
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          const int run = kPer * g + i;
          const bool mine = kPer == 1 || my_group == i;
          mma_bytes(sums, codes_of(s, run, 0), codes_of(s, run, 1), codes_of(s, run, 2),
                    codes_of(s, run, 3), mine ? b.x : 0, mine ? b.y : 0);
        }
      } else {
        const int sub = kPer * g + my_group;
        const auto b = *reinterpret_cast<const uint32_t*>(mine_codes + sub / 2 * 64 + sub % 2 * 4);
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          const int run = (kPer * g + i) / 2, half = (kPer * g + i) % 2;
          const bool mine = kPer == 1 || my_group == i;
          mma_bytes(sums, codes_of(s, run, 2 * half), codes_of(s, run, 2 * half + 1), mine ? b : 0);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto whole = static_cast<float>(256 * sums[2 * h] + sums[2 * h + 1]);
        acc[m][h] += scale[h] * (x.scale * whole);
        if constexpr (F::kMinimum) acc[m][h] += low[h] * x.sum;
      }
    }
  }
}

/// A warp's way through the steps that are its own, [first, last) of each tile.
struct TileWalk {
  uint32_t unit, part, round, step;
};
struct TileRange {
  uint32_t first, last, parts, stride;

  /// True at a tile's end.
  __device__ bool advance(TileWalk& w) const {
    if (++w.step < last) return false;
    w.step = first;
    if (++w.part == parts) {
      w.part = 0;
      ++w.round;
      w.unit += stride;
    }
    return true;
  }
};

/// Writes the block's results, once all sums are in shared memory: four threads a result.
template <int kTokens, int kGroups>
__device__ inline void end_tiles(const TileMatvecParams& p, const float* sums, uint32_t parts) {
  constexpr uint32_t kAll = kGroups * kTokens;
  const TileMatvecCall& call = p.call;
  const uint32_t together = p.together(), split = p.split(), quarter = threadIdx.x % 4;
  const auto results = static_cast<uint32_t>(call.w.out) / parts;
  const uint32_t count = p.rounds * together * kAll * kTileRows;
  for (uint32_t i = threadIdx.x / 4; i < count; i += kTileThreads / 4) {
    const uint32_t row = i % kTileRows, of_block = i / kTileRows % kAll;
    const uint32_t group = of_block / kTokens, column = of_block % kTokens;
    const uint32_t token = blockIdx.y * kAll + of_block;
    const uint32_t slot = i / (kTileRows * kAll);  // [rounds, together]
    const uint32_t round = slot >> (kTileWarpsLog - p.split_log), which = slot % together;
    const uint32_t unit = (round * gridDim.x + blockIdx.x) * together + which;
    const uint32_t o = unit * kTileRows + row;
    const bool there = unit < p.units && o < results && token < call.tokens;
    float* y = call.y + token * call.ld + o;
    const float old = there && call.end == MatvecEnd::kAdd ? *y : 0;
    const auto sum_of = [&](uint32_t part) {
      const float* from =
          sums + (((slot * parts + part) << p.split_log) * kGroups + group) * 64 + row * 4 + column;
      float sum = 0;
      if (there) {
        for (uint32_t s = quarter; s < split; s += 4) {
#pragma unroll
          for (int c = 0; c < 4; c += kTokens) sum += from[s * kGroups * 64 + c];
        }
      }
      sum = sum_over_columns(sum);
      return there && call.bias ? sum + call.bias[part * results + o] : sum;
    };
    const float sum = sum_of(0), second = parts == 2 ? sum_of(1) : 0;
    if (!there || quarter != 0) continue;
    switch (call.end) {
      case MatvecEnd::kStore: *y = sum; break;
      case MatvecEnd::kAdd: *y = old + sum; break;
      case MatvecEnd::kGate: *y = silu(sum) * second; break;
      case MatvecEnd::kGelu: *y = gelu(sum) * second; break;
    }
  }
}
static_assert(kTileRows % (kWarp / 4) == 0, "a warp goes through end_tiles together");

/// Steps that a warp has under way: about 54 registers' worth.
template <class F>
PITH_BOTH_SIDES constexpr int tile_depth() {
  return F::kWords > 20 ? 2 : F::kWords > 13 ? 3 : F::kWords > 11 ? 4 : F::kWords > 9 ? 5 : 6;
}
/// Asks for this block's share of what the next product begins with.
__device__ inline void prefetch_next(const NextWeights& next) {
  const auto share = static_cast<uint32_t>(next.bytes / gridDim.x) & ~15u;
  if (share == 0) return;
  for (const std::byte* part : next.parts) {
    if (part) prefetch_to_l2(part + static_cast<size_t>(blockIdx.x) * share, share);
  }
}

/// The coded activations of the block's groups, to shared memory.
template <int kGroups>
__device__ inline void copy_coded(std::byte* shared, const TileMatvecCall& call,
                                  const TileShared& at) {
  const uint32_t first = blockIdx.y * kGroups;
  const auto all = static_cast<uint32_t>((call.tokens - 1) / kTokensAtOnce + 1);
  const uint32_t count = min(all - first, uint32_t{kGroups}) * at.group();
  const std::byte* from = call.coded + static_cast<size_t>(first) * at.group();
  for (uint32_t i = 16 * threadIdx.x; i < count; i += 16 * kTileThreads)
    copy_async(shared + i, from + i);
  commit_copies();
  wait_for_copies<0>();
}

/// Bytes: the matrix once for each of the grid's y. A block asks for its first steps before the
/// kernel ahead has ended; when it has none left to ask for, it lets the next kernel's blocks come,
/// and asks for their weights.
template <WeightType kType, int kTokens, int kGroups>
__global__ void __launch_bounds__(kTileThreads, 1)
    tile_matvec_kernel(const __grid_constant__ TileMatvecParams p) {
  using F = TileFormat<kType>;
  constexpr int kDepth = tile_depth<F>();
  auto* shared = launched_shared<std::byte>();
  __shared__ float block_sums[kTileWarps];
  const int lane = threadIdx.x % kWarp;
  const uint32_t warp = threadIdx.x / kWarp;
  const uint32_t place = warp >> p.split_log, slice = warp % p.split();
  const uint32_t together = p.together();
  const TileRange range{slice * p.steps >> p.split_log, (slice + 1) * p.steps >> p.split_log,
                        static_cast<uint32_t>(parts_of(p.call.end)), gridDim.x * together};
  const TileShared at{p.steps * F::kStep, kTokens, F::kSub, kGroups};

  TileWalk now{blockIdx.x * together + place, 0, 0, range.first};
  TileWalk ahead = now;
  LaneStep<F> steps[kDepth];
  const auto begin_tile = [&] {
    const size_t tile = ahead.part * p.units + ahead.unit;
    return p.call.w.data + (tile * p.steps + range.first) * F::kStepBytes;
  };
  const std::byte* next_step = begin_tile();
  const auto load_ahead = [&](LaneStep<F>& to) {
    load_step(to, next_step, lane);
    next_step += F::kStepBytes;
    if (!range.advance(ahead)) return;
    next_step = begin_tile();
    if (ahead.unit >= p.units) {
      let_successor_start();
      if (threadIdx.x == 0 && blockIdx.y == 0) prefetch_next(p.call.next);
    }
  };
  if (now.unit >= p.units) let_successor_start();
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    if (ahead.unit < p.units) load_ahead(steps[d]);
  }
  if (kTokens == kTokensAtOnce && p.call.coded) {
    wait_for_predecessor();
    copy_coded<kGroups>(shared, p.call, at);
  } else {
    float4 norms[kKept];
    if (p.call.norm) load_row(norms, p.call.norm, 0, static_cast<uint32_t>(p.call.w.in));
    wait_for_predecessor();
    for (int t = 0; t < kTokens; ++t) {
      if (t >= p.call.tokens) break;
      load_token<F, kTokens>(shared, block_sums, p.call, p.call.x + t * p.call.w.in, at, t, norms);
    }
  }
  __syncthreads();

  auto* sums = reinterpret_cast<float*>(shared + at.sums());
  float acc[kGroups][2] = {};
  const auto end_tile = [&](uint32_t round, uint32_t part) {
    const uint32_t slot =
        (((round * together + place) * range.parts + part) << p.split_log) + slice;
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      float* to = sums + (slot * kGroups + m) * 64 + lane;
      to[0] = acc[m][0];
      to[32] = acc[m][1];
      acc[m][0] = acc[m][1] = 0;
    }
  };
  while (now.unit < p.units) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (now.unit >= p.units) break;
      multiply_step<F, kTokens, kGroups>(acc, steps[d], shared, at, now.step, lane);
      if (ahead.unit < p.units) load_ahead(steps[d]);
      const uint32_t round = now.round, part = now.part;
      if (range.advance(now)) end_tile(round, part);
    }
  }
  __syncthreads();
  end_tiles<kTokens, kGroups>(p, sums, range.parts);
}

/// A block codes a token's activations, normalised if they are.
template <WeightType kType>
__global__ void __launch_bounds__(kTileThreads)
    code_inputs_kernel(const __grid_constant__ TileMatvecParams p) {
  using F = TileFormat<kType>;
  __shared__ float block_sums[kTileWarps];
  constexpr int kTokens = kTokensAtOnce;
  const TileShared at{p.steps * F::kStep, kTokens, F::kSub};
  let_successor_start();
  float4 norms[kKept];
  if (p.call.norm) load_row(norms, p.call.norm, 0, static_cast<uint32_t>(p.call.w.in));
  wait_for_predecessor();
  const size_t token = blockIdx.x;
  load_token<F, kTokens>(p.call.coded + token / kTokens * at.group(), block_sums, p.call,
                         p.call.x + token * p.call.w.in, at, static_cast<int>(token % kTokens),
                         norms);
}

template <WeightType kType, int kTokens, int kGroups = 1>
void launch_tiles(const TileMatvecParams& p, cudaStream_t stream) {
  const auto tokens = static_cast<uint32_t>(p.call.tokens);
  const uint32_t all = (tokens - 1) / (kTokens * kGroups) + 1;
  launch_early(tile_matvec_kernel<kType, kTokens, kGroups>,
               {dim3(p.blocks, all), kTileThreads, p.shared_bytes}, p, stream,
               "a product of tiles");
}

template <WeightType kType>
void launch_tiles(const TileMatvecParams& p, int tokens, cudaStream_t stream) {
  switch (tokens) {
    case 1: return launch_tiles<kType, 1>(p, stream);
    case 2: return launch_tiles<kType, 2>(p, stream);
    default: return launch_tiles<kType, 4>(p, stream);
  }
}

/// Codes the tokens, and multiplies them unless each block has one group.
template <WeightType kType>
void launch_groups(const TileMatvecParams& p, cudaStream_t stream) {
  launch_early(code_inputs_kernel<kType>, {static_cast<uint32_t>(p.call.tokens), kTileThreads}, p,
               stream, "coded inputs of tiles");
  if (p.groups == 2) launch_tiles<kType, kTokensAtOnce, 2>(p, stream);
  if (p.groups == 4) launch_tiles<kType, kTokensAtOnce, 4>(p, stream);
}

}  // namespace pith::cuda
