#pragma once
// The CPU's steps of coding rows of levels (level_format.h), for a thread block that has a group of
// rows in shared memory: a warp per row, except for work by channels.

#include "rows/cuda/level_group.cuh"
#include "rows/cuda/level_row.cuh"

namespace pith::cuda {

inline constexpr int kCoderThreads = 256, kCoderWarps = kCoderThreads / kWarp;

template <int D, LevelForm kForm>
struct Coder {
  using Lane = LevelLane<D>;
  static constexpr int kMine = Lane::kMine;

  const PlacedSide& f;
  GroupSpace<D> space;
  GroupTarget to;
  int head;

  __device__ void load(float (&x)[kMine], int row) const {
#pragma unroll
    for (int e = 0; e < kMine; ++e) x[e] = space.rows()[row * D + Lane::channel(e)];
  }
  __device__ void save(int row, const float (&x)[kMine]) const {
#pragma unroll
    for (int e = 0; e < kMine; ++e) space.rows()[row * D + Lane::channel(e)] = x[e];
  }
  template <class F>
  __device__ void for_rows(const F& each) const {
    for (int row = threadIdx.x / kWarp; row < space.n; row += kCoderWarps) each(row);
  }
  /// Number i of the product's right factors [r, D] goes to its share, or to the group's record.
  __device__ void write_right(int i, __half x) const {
    if constexpr (is_named(kForm)) {
      const int blocks = 1 << f.record_shift;
      char* rights = to.record + blocks * f.channel_bytes(D);
      const int group = to.number % blocks / f.group_blocks;
      reinterpret_cast<__half*>(rights + group * f.right_bytes(D))[i] = x;
      return;
    }
    const int share = f.at.share_bytes / 2;
    reinterpret_cast<__half*>(to.sides + i / share * to.side_stride + f.at.share)[i % share] = x;
  }

  /// The mean as it will be added back goes off all rows, and is stored as they will lie.
  __device__ void take_mean() const {
    auto* mean = reinterpret_cast<float*>(space.spread());  // [D]
    for (int c = threadIdx.x; c < D; c += kCoderThreads) {
      double sum = 0;
#pragma unroll 8
      for (int t = 0; t < space.n; ++t) sum += space.rows()[t * D + c];
      const float whole = __half2float(__float2half_rn(static_cast<float>(sum / space.n)));
      mean[c] = whole;
#pragma unroll 8
      for (int t = 0; t < space.n; ++t) space.rows()[t * D + c] -= whole;
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {
      float x[kMine];
#pragma unroll
      for (int e = 0; e < kMine; ++e) x[e] = mean[Lane::channel(e)];
      if (f.rotated) Lane::turn(x, f.flips);
#pragma unroll
      for (int e = 0; e < kMine; ++e) write_right(Lane::channel(e), __float2half_rn(x[e]));
    }
    __syncthreads();
  }
  __device__ void rotate() const {
    for_rows([&](int row) {
      float x[kMine];
      load(x, row);
      Lane::turn(x, f.flips);
      save(row, x);
    });
    __syncthreads();
  }

  /// Each channel's mean over the group, and one over its deviation's length.
  __device__ void find_spread() const {
    for (int c = threadIdx.x; c < D; c += kCoderThreads) {
      double sum = 0, square = 0;
      for (int t = 0; t < space.n; ++t) sum += space.rows()[t * D + c];
      const double mean = sum / space.n;
      for (int t = 0; t < space.n; ++t) {
        const double d = space.rows()[t * D + c] - mean;
        square += d * d;
      }
      space.spread()[c] = {static_cast<float>(mean),
                           square > 0 ? static_cast<float>(1 / sqrt(square)) : 0.0f};
    }
    __syncthreads();
  }

  /// The f.apart channels of the largest distance, ties to the lower one, into `mask` by element
  /// and, in order of channel, into `list`; the same list in every lane.
  __device__ void find_farthest(uint32_t& mask, int (&list)[LevelSide::kMostApart],
                                const float (&distance)[kMine]) const {
    mask = 0;
    for (int k = 0; k < f.apart; ++k) {
      float best = -1;
      int at = 0;
#pragma unroll
      for (int e = 0; e < kMine; ++e) {  // the lane's channels ascend with e
        if (!(mask >> e & 1) && distance[e] > best) best = distance[e], at = e;
      }
      const uint32_t bits = best >= 0 ? __float_as_uint(best) : 0;  // not negative: in order
      const uint32_t most = __reduce_max_sync(~0u, bits);
      const bool mine = best >= 0 && bits == most;
      const uint32_t channel =
          __reduce_min_sync(~0u, mine ? static_cast<uint32_t>(Lane::channel(at)) : ~0u);
      if (mine && static_cast<int>(channel) == Lane::channel(at)) mask |= 1u << at;
      insert(list, k, static_cast<int>(channel));
    }
  }
  static __device__ void insert(int (&list)[LevelSide::kMostApart], int count, int channel) {
#pragma unroll
    for (int i = LevelSide::kMostApart - 1; i >= 0; --i) {
      if (i > count) continue;
      const int before = i > 0 ? list[i - 1] : -1;
      if (before > channel) {
        list[i] = before;
      } else if (i == count || list[i] > channel) {
        list[i] = channel;
      }
    }
  }

  /// f.missed: numbers that stand out go apart, and their mean takes their place.
  __device__ void take_apart(bool keys) const {
    if (keys) find_spread();
    for_rows([&](int row) {
      float x[kMine], mean[kMine], distance[kMine], sum = 0;
      load(x, row);
#pragma unroll
      for (int e = 0; e < kMine; ++e) sum += x[e];
      sum = sum_of_warp(sum) / D;
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const float2 of = keys ? space.spread()[Lane::channel(e)] : float2{sum, 1};
        mean[e] = of.x;
        distance[e] = fabsf(x[e] - of.x) * of.y;
      }
      uint32_t mask;
      int list[LevelSide::kMostApart];
      find_farthest(mask, list, distance);
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        if (!(mask >> e & 1)) continue;
        const int at = place_in(list, Lane::channel(e));
        space.missed()[row * f.apart + at] = x[e];
        space.channels()[row * f.apart + at] = static_cast<uint8_t>(Lane::channel(e));
        x[e] = mean[e];
      }
      save(row, x);
    });
    __syncthreads();
  }
  __device__ int place_in(const int (&list)[LevelSide::kMostApart], int channel) const {
    int at = 0;
#pragma unroll
    for (int i = 0; i < LevelSide::kMostApart; ++i) {
      if (i < f.apart && list[i] < channel) ++at;
    }
    return at;
  }

  /// Minimum and scale of numbers between two, as f16.
  __device__ float2 range_of(float least, float most) const {
    const auto top = static_cast<float>((1 << f.bits) - 1);
    const float scale =
        f.minima ? (most - least) / top : fmaxf(-least, most) / static_cast<float>(f.zero - 1);
    return {f.minima ? __half2float(__float2half_rn(least)) : 0,
            __half2float(__float2half_rn(scale))};
  }
  /// Where scales [D] of a block's channels go, and minima behind them.
  __device__ __half* channels_of(int block) const {
    if constexpr (is_named(kForm)) {
      const int at = to.number % (1 << f.record_shift) + block;
      return reinterpret_cast<__half*>(to.record + at * f.channel_bytes(D));
    }
    return &to.half(kBlockRows * block, 0, 0);
  }
  /// Of numbers in f16: so they wait on the CPU until a group is full.
  __device__ void find_channel_ranges() const {
    for (int i = threadIdx.x; i < space.n * D; i += kCoderThreads) {
      space.rows()[i] = __half2float(__float2half_rn(space.rows()[i]));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < f.group_blocks * D; i += kCoderThreads) {
      const int block = i / D, c = i % D;
      float least = INFINITY, most = -INFINITY;
      for (int t = kBlockRows * block; t < kBlockRows * (block + 1); ++t) {
        const float x = space.rows()[t * D + c];
        least = fminf(least, x);
        most = fmaxf(most, x);
      }
      const float2 range = range_of(least, most);
      space.ranges()[i] = range;
      channels_of(block)[c] = __float2half_rn(range.y);
      if (f.minima) channels_of(block)[D + c] = __float2half_rn(range.x);
    }
    __syncthreads();
  }

  /// Of rows that stand alone: the numbers of their records, and their positions.
  __device__ void write_names(const RowPositions& positions, int first) const {
    for (int row = threadIdx.x; row < space.n; row += kCoderThreads) {
      const auto of = [&](int part) -> int& {
        return reinterpret_cast<int*>(to.side(row) + part)[row % kBlockRows];
      };
      if (f.record_bytes > 0) of(f.at.numbers) = to.number + row / kBlockRows;
      if (f.positions) of(f.at.positions) = static_cast<int>(positions.of(head, first + row));
    }
  }

  /// Ranges of the row's groups of 32 channels: element e's share a group with those of its quarter
  /// of the lanes (D = 256), of its half (D = 128) or of all (D = 64).
  __device__ void find_group_ranges(float2 (&range)[kMine], const float (&x)[kMine],
                                    int row) const {
    constexpr int kLanes = 32 / Lane::kHalf;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float least = INFINITY, most = -INFINITY;
#pragma unroll
      for (int i = 0; i < Lane::kHalf; ++i) {
        least = fminf(least, x[half * Lane::kHalf + i]);
        most = fmaxf(most, x[half * Lane::kHalf + i]);
      }
#pragma unroll
      for (int d = kLanes / 2; d > 0; d /= 2) {
        least = fminf(least, __shfl_xor_sync(~0u, least, d));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
      }
      const float2 of = range_of(least, most);
      const int e = half * Lane::kHalf;
#pragma unroll
      for (int i = 0; i < Lane::kHalf; ++i) range[e + i] = of;
      if (threadIdx.x % kWarp % kLanes != 0) continue;
      const int at = row % kBlockRows * (D / 32) + Lane::group(e);
      to.half(row, 0, at) = __float2half_rn(of.y);
      if (f.minima) to.half(row, f.at.minima, at) = __float2half_rn(of.x);
    }
  }
  __device__ void write_row_range(float2 range, int row) const {
    if (threadIdx.x % kWarp != 0) return;
    to.half(row, 0, row % kBlockRows) = __float2half_rn(range.y);
    if (f.minima) to.half(row, f.at.minima, row % kBlockRows) = __float2half_rn(range.x);
  }

  /// kSigns and kTight: one scale for the row, which lies as its levels do around 0.
  __device__ void choose_around_zero(int (&code)[kMine], float2 (&range)[kMine],
                                     const float (&x)[kMine], int row) const {
    const RowLevels<D> levels{f};
    float2 of{};
    if (f.choice == LevelChoice::kSigns) {
      of.y = __half2float(__float2half_rn(levels.choose_signs(code, x)));
      write_row_range(of, row);
    } else {
      const uint8_t scale = levels.choose_tight(code, x);
      of.y = RowLevels<D>::scale_of(scale);
      if (threadIdx.x % kWarp == 0) to.side(row)[row % kBlockRows] = static_cast<char>(scale);
    }
#pragma unroll
    for (int e = 0; e < kMine; ++e) range[e] = of;
  }

  __device__ float level_at(int code) const {
    return f.head_levels ? f.head_levels[head * LevelSide::kMostLevels + code] : f.levels[code];
  }
  /// kNearest: of a table whose levels ascend. Values: the row's range without its farthest
  /// numbers.
  __device__ void choose_nearest(int (&code)[kMine], float2 (&range)[kMine], uint32_t& mask,
                                 int (&list)[LevelSide::kMostApart], const float (&x)[kMine],
                                 int row) const {
    if (f.scale == LevelScale::kHeadChannel) {
      const auto* ranges = reinterpret_cast<const __half*>(f.ranges) + head * 2 * D;
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        range[e] = {__half2float(ranges[Lane::channel(e)]),
                    __half2float(ranges[D + Lane::channel(e)])};
      }
    } else {
      const float2 of = row_range(mask, list, x);
#pragma unroll
      for (int e = 0; e < kMine; ++e) range[e] = of;
      write_row_range(of, row);
    }
    float distance[kMine];
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      const float at = range[e].y > 0 ? (x[e] - range[e].x) / range[e].y : 0;
      code[e] = 0;
      for (int i = 0; i + 1 < 1 << f.bits; ++i) {
        code[e] += at > (level_at(i) + level_at(i + 1)) / 2;
      }
      distance[e] = fabsf(x[e] - (range[e].x + range[e].y * level_at(code[e])));
    }
    if (f.scale == LevelScale::kHeadChannel) find_farthest(mask, list, distance);
  }
  __device__ float2 row_range(uint32_t& mask, int (&list)[LevelSide::kMostApart],
                              const float (&x)[kMine]) const {
    float sum = 0, distance[kMine];
#pragma unroll
    for (int e = 0; e < kMine; ++e) sum += x[e] / D;
    sum = sum_of_warp(sum);
#pragma unroll
    for (int e = 0; e < kMine; ++e) distance[e] = fabsf(x[e] - sum);
    find_farthest(mask, list, distance);
    float least = 65504, most = -65504;
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      if (mask >> e & 1) continue;
      least = fminf(least, x[e]);
      most = fmaxf(most, x[e]);
    }
#pragma unroll
    for (int d = kWarp / 2; d > 0; d /= 2) {
      least = fminf(least, __shfl_xor_sync(~0u, least, d));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    }
    return {__half2float(__float2half_rn(least)), __half2float(__float2half_rn(most - least))};
  }

  __device__ void choose_even(int (&code)[kMine], float2 (&range)[kMine], const float (&x)[kMine],
                              int row) const {
    if (f.scale == LevelScale::kBlockChannel) {
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        range[e] = space.ranges()[row / kBlockRows * D + Lane::channel(e)];
      }
    } else {
      find_group_ranges(range, x, row);
    }
    const auto top = static_cast<float>((1 << f.bits) - 1);
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      const float inverse = range[e].y > 0 ? 1 / range[e].y : 0;
      const float low = f.minima ? range[e].x : -range[e].y * static_cast<float>(f.zero);
      code[e] = static_cast<int>(fminf(fmaxf(rintf((x[e] - low) * inverse), 0), top));
    }
  }

  /// Codes a row; what the code misses takes the row's place where a product is to be made of it.
  __device__ void code_row(int row) const {
    float x[kMine];
    float2 range[kMine];
    int code[kMine], list[LevelSide::kMostApart];
    uint32_t mask = 0;
    load(x, row);
    if (f.choice == LevelChoice::kEven) choose_even(code, range, x, row);
    if (f.choice == LevelChoice::kSigns || f.choice == LevelChoice::kTight)
      choose_around_zero(code, range, x, row);
    if (f.choice == LevelChoice::kNearest) choose_nearest(code, range, mask, list, x, row);
    put(row, code);
    if (!f.missed) {
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        if (mask >> e & 1) write_apart(row, place_in(list, Lane::channel(e)), e, x[e]);
      }
      return;
    }
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      const float number = range[e].x + range[e].y * static_cast<float>(code[e] - f.zero);
      x[e] -= number;
      for (int i = row * f.apart; i < (row + 1) * f.apart; ++i) {
        if (space.channels()[i] != Lane::channel(e)) continue;
        space.missed()[i] -= number;
        x[e] = 0;
      }
    }
    save(row, x);
  }
  __device__ void put(int row, const int (&code)[kMine]) const {
    if constexpr (kForm != LevelForm::kFragments) {
      Lane::put(space.codes() + row * (D * f.bits / 32), f.bits, code);
      return;
    }
    uint32_t* block = space.codes() + row / kBlockRows * D * f.bits;
    switch (f.bits) {
      case 1: return Lane::template put_fragments<1>(block, f, row % kBlockRows, code);
      case 2: return Lane::template put_fragments<2>(block, f, row % kBlockRows, code);
      case 3: return Lane::template put_fragments<3>(block, f, row % kBlockRows, code);
      default: return Lane::template put_fragments<4>(block, f, row % kBlockRows, code);
    }
  }
  __device__ void write_apart(int row, int i, int e, float x) const {
    const int at = row % kBlockRows * f.apart + i;
    to.half(row, f.at.apart, at) = __float2half_rn(x);
    to.side(row)[f.at.channels + at] = static_cast<char>(Lane::channel(e));
  }

  /// The product of what the codes miss, and what both miss of the numbers apart.
  __device__ void write_product(const Philox& random) const {
    const LevelProduct<D> product{space.product(), space.n, f.rank};
    product.find(space.rows(), random);
    for (int i = threadIdx.x; i < f.rank * D; i += kCoderThreads) {
      write_right(i, product.right_at(i / D, i % D));
    }
    for (int i = threadIdx.x; i < space.n * f.rank; i += kCoderThreads) {
      const int row = i / f.rank;
      to.half(row, f.at.left, row % kBlockRows * f.rank + i % f.rank) =
          product.left_at(row, i % f.rank);
    }
  }
  __device__ void write_missed() const {
    const LevelProduct<D> product{space.product(), space.n, f.rank};
    for (int i = threadIdx.x; i < space.n * f.apart; i += kCoderThreads) {
      const int row = i / f.apart, channel = space.channels()[i];
      float x = space.missed()[i];
      for (int j = 0; j < f.rank; ++j) {
        x -= __half2float(product.left_at(row, j)) * __half2float(product.right_at(j, channel));
      }
      const int at = row % kBlockRows * f.apart + i % f.apart;
      to.half(row, f.at.apart, at) = __float2half_rn(x);
      to.side(row)[f.at.channels + at] = static_cast<char>(channel);
    }
  }

  __device__ void write_codes() const {
    const int words = space.n * (D * f.bits / 32);  // blocks follow each other
    for (int i = threadIdx.x; i < words / 4; i += kCoderThreads) {
      reinterpret_cast<uint4*>(to.codes)[i] = reinterpret_cast<const uint4*>(space.codes())[i];
    }
  }
};

}  // namespace pith::cuda
