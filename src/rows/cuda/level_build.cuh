#pragma once
// Rows of levels back from their codes: a warp builds 16 rows as f16 in its shared memory, lanes by
// channels (level_lane.cuh), eight rows side by side. Two neighbouring codes of a lane are one
// look-up in a table of pairs; what a format does not have costs a branch for eight rows.
//
// Cost a row and lane at D = 128, instructions: 9 to 11 for the levels, 2 to 8 for the scales, 3 a
// rank, 24 for a turn, 2 to store.

#include "rows/cuda/level_lane.cuh"
#include "rows/cuda/level_vectors.cuh"

namespace pith::cuda {

/// One block's parts, wherever they are.
struct LevelBlock {
  const char *codes, *side, *right;  // right [r, D] f16, whole
  const char* records = nullptr;     // of the head, if rows name them
};

/// The nearest number that f16 does not take for infinity.
__device__ inline float within_f16(float x) {
  constexpr float kMost = 65504;
  return fabsf(x) > kMost ? copysignf(kMost, x) : x;
}

/// Levels of all pairs of codes, the first one's in the lower half: of codes up to 4 bits.
inline constexpr int kPairTable = 256;

template <int D, LevelForm kForm>
struct LevelBuilder {
  using Lane = LevelLane<D>;
  static constexpr int kPairs = Lane::kPairs, kTogether = 8;
  using Rows = __half2[kTogether][kPairs];

  const PlacedSide& f;
  const __half2* table;  // [kPairTable] in shared memory
  int head;              // of all sequences' KV heads

  /// All threads of the block call it; a barrier must follow.
  static __device__ void fill_table(__half2* table, const PlacedSide& f, int head) {
    if constexpr (has_vectors(kForm)) {
      if (f.by_vectors()) return fill_levels(reinterpret_cast<__half*>(table), f.along);
    }
    if (f.bits > 4) return;
    const auto level = [&](int code) {
      if (f.choice == LevelChoice::kEven) return static_cast<float>(code - f.zero);
      return f.head_levels ? f.head_levels[head * LevelSide::kMostLevels + code] : f.levels[code];
    };
    for (int i = threadIdx.x; i < 1 << (2 * f.bits); i += blockDim.x) {
      table[i] = __floats2half2_rn(level(i & ((1 << f.bits) - 1)), level(i >> f.bits));
    }
  }

  static __device__ const __half* halves(const char* bytes) {
    return reinterpret_cast<const __half*>(bytes);
  }
  /// Rows first, ... of a block <- their levels.
  template <int kBits>
  __device__ void read_levels(Rows& x, const char* codes, int first) const {
    constexpr int kMine = 2 * kPairs * kBits, kStride = D * kBits / 32;  // bits; words of a row
    constexpr bool kWhole = kMine % 32 == 0 || 32 % kMine == 0;          // words have whole lanes
    const int at = static_cast<int>(threadIdx.x % kWarp) * kMine;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(codes) + first * kStride + at / 32;
    const int next = at % 32 + kMine > 32;  // some lie in two words; the last lane's never
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const uint32_t word = words[i * kStride];
      const uint32_t mine =
          kWhole ? word >> (at % 32) : __funnelshift_r(word, words[i * kStride + next], at % 32);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        if constexpr (kBits == 8) {
          // A byte below 0x64 is 1024 and the byte.
          const uint32_t bytes = p < 2 ? mine : words[i * kStride + 1];
          const uint32_t raised = __byte_perm(bytes, 0x64646464u, p % 2 == 0 ? 0x4140 : 0x4342);
          x[i][p] = __hsub2(*reinterpret_cast<const __half2*>(&raised),
                            __float2half2_rn(1024.0f + static_cast<float>(f.zero)));
        } else {
          constexpr int kDown = 2 * kBits;  // codes of a pair; its place in the table is in bytes
          const uint32_t down = p == 0 ? mine << 2 : mine >> (p * kDown - 2);
          const uint32_t place = down & ((4u << kDown) - 4);
          x[i][p] = *reinterpret_cast<const __half2*>(reinterpret_cast<const char*>(table) + place);
        }
      }
    }
  }
  /// The same of codes in fragments; `first` is a multiple of 8.
  template <int kBits, bool kLookedUp>
  __device__ void read_fragments(Rows& x, const char* codes, int first) const {
    uint32_t place[kTogether][kPairs] = {};
#pragma unroll
    for (int i = 0; i < layout::code_parts(kBits, kLookedUp); ++i) {
      const CodePart part = layout::code_part(kBits, i, kLookedUp);
      const uint32_t mask = (1u << part.width) - 1;
      const int words = part.width * D / 32, piece = words < 4 ? words : 4;
      const bool keys = f.order == LevelOrder::kKeyFragments;
      const auto* from =
          reinterpret_cast<const uint32_t*>(codes) + layout::words_before(kBits, i, D);
#pragma unroll
      for (int e = 0; e < Lane::kMine; ++e) {
        const CodePlace at = layout::code_fragment(keys, first, Lane::channel(e), D, part);
#pragma unroll
        for (int row = 0; row < kTogether; ++row) {  // the next rows' words are others' beside it
          const uint32_t word = from[at.word + (keys ? 4 * row : row / 2) * piece];
          const uint32_t code =
              word >> (at.bit + (keys ? 0 : row % 2 * (kLookedUp ? 8 : 16))) & mask;
          place[row][e / 2] |= code << (part.shift + e % 2 * kBits);
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kTogether; ++row) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) x[row][p] = table[place[row][p]];
    }
  }
  static __device__ __half2 twice(uint32_t two, bool upper) {
    const uint32_t x = __byte_perm(two, 0, upper ? 0x3232 : 0x1010);
    return *reinterpret_cast<const __half2*>(&x);
  }
  /// Scales, or minima, of the pairs of rows first, ...; `first` is even.
  template <bool kGroups>
  static __device__ void read_sides(Rows& s, const __half* numbers, int first) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if constexpr (!kGroups) {
        const uint32_t two = reinterpret_cast<const uint32_t*>(numbers + first)[i / 2];
#pragma unroll
        for (int p = 0; p < kPairs; ++p) s[i][p] = twice(two, i % 2 == 1);
      } else if constexpr (kPairs == 4) {  // groups 0 and 4, 1 and 5, 2 and 6, or 3 and 7
        const uint4 eight = reinterpret_cast<const uint4*>(numbers)[first + i];
        const bool late = lane >= kWarp / 2, upper = lane / (kWarp / 4) % 2 == 1;
        s[i][0] = s[i][1] = twice(late ? eight.y : eight.x, upper);
        s[i][2] = s[i][3] = twice(late ? eight.w : eight.z, upper);
      } else if constexpr (kPairs == 2) {  // groups 0 and 2, or 1 and 3
        const uint2 four = reinterpret_cast<const uint2*>(numbers)[first + i];
        s[i][0] = twice(four.x, lane >= kWarp / 2);
        s[i][1] = twice(four.y, lane >= kWarp / 2);
      } else {
        s[i][0] = reinterpret_cast<const __half2*>(numbers)[first + i];
      }
    }
  }
  template <bool kGroups>
  __device__ void scale_by_rows(Rows& x, const LevelBlock& block, int first) const {
    Rows scale, low;
    read_sides<kGroups>(scale, halves(block.side), first);
    if (f.minima) {
      read_sides<kGroups>(low, halves(block.side + f.at.minima), first);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int p = 0; p < kPairs; ++p) x[i][p] = __hfma2(x[i][p], scale[i][p], low[i][p]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int p = 0; p < kPairs; ++p) x[i][p] = __hmul2(x[i][p], scale[i][p]);
      }
    }
  }
  /// Of tight rows: scales are bytes. `first` is a multiple of 8.
  __device__ void scale_by_bytes(Rows& x, const LevelBlock& block, int first) const {
    const uint2 eight = *reinterpret_cast<const uint2*>(block.side + first);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const uint32_t twice = __byte_perm(i < 4 ? eight.x : eight.y, 0, 0x4040 + i % 4 * 0x0101)
                             << 7;
      const __half2 scale = *reinterpret_cast<const __half2*>(&twice);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) x[i][p] = __hmul2(x[i][p], scale);
    }
  }
  /// The number of a row's record times record_blocks, and its block among them.
  __device__ int number_of(const LevelBlock& block, int row) const {
    return reinterpret_cast<const int*>(block.side + f.at.numbers)[row];
  }
  /// This side's part of the record with that number.
  __device__ const char* record_of(const LevelBlock& block, int number) const {
    return block.records + static_cast<size_t>(number >> f.record_shift) * f.record_bytes +
           f.record_at;
  }
  /// Each row by the channels of its own record.
  __device__ void scale_by_records(Rows& x, const LevelBlock& block, int first) const {
    const int blocks = 1 << f.record_shift, bytes = f.channel_bytes(D);
    Rows scale, low;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int number = number_of(block, first + i);
      const char* channels = record_of(block, number) + (number & (blocks - 1)) * bytes;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        scale[i][p] = Lane::pair_of(halves(channels), p);
        low[i][p] = f.minima ? Lane::pair_of(halves(channels) + D, p) : __float2half2_rn(0);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) x[i][p] = __hfma2(x[i][p], scale[i][p], low[i][p]);
    }
  }
  __device__ void scale_rows(Rows& x, const LevelBlock& block, int first,
                             const __half2 (&scale)[kPairs], const __half2 (&low)[kPairs]) const {
    if (f.choice == LevelChoice::kTight) return scale_by_bytes(x, block, first);
    if (f.scale == LevelScale::kRow) return scale_by_rows<false>(x, block, first);
    if (f.scale == LevelScale::kRowGroup) return scale_by_rows<true>(x, block, first);
    if constexpr (is_named(kForm)) {
      if (f.scale == LevelScale::kBlockChannel) return scale_by_records(x, block, first);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) x[i][p] = __hfma2(x[i][p], scale[p], low[p]);
    }
  }
  __device__ void add_product(Rows& x, const LevelBlock& block, int first) const {
    const __half* left = halves(block.side + f.at.left) + first * f.rank;
    const __half* own[kTogether];  // of rows that name records
    if constexpr (is_named(kForm)) {
      const int blocks = 1 << f.record_shift;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int number = number_of(block, first + i);
        const int group = (number & (blocks - 1)) / f.group_blocks;
        own[i] = halves(record_of(block, number) + blocks * f.channel_bytes(D) +
                        group * f.right_bytes(D));
      }
    }
    for (int j = 0; j < f.rank; ++j) {
      __half2 right[kPairs];
      if constexpr (!is_named(kForm)) {
#pragma unroll
        for (int p = 0; p < kPairs; ++p) right[p] = Lane::pair_of(halves(block.right) + j * D, p);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if constexpr (is_named(kForm)) {
#pragma unroll
          for (int p = 0; p < kPairs; ++p) right[p] = Lane::pair_of(own[i] + j * D, p);
        }
        const __half2 factor = f.centred ? __float2half2_rn(1) : __half2half2(left[i * f.rank + j]);
#pragma unroll
        for (int p = 0; p < kPairs; ++p) x[i][p] = __hfma2(factor, right[p], x[i][p]);
      }
    }
  }
  /// Scales and minima that channels of the block, or of the head, share.
  __device__ void read_channels(__half2 (&scale)[kPairs], __half2 (&low)[kPairs],
                                const LevelBlock& block) const {
    const bool own = f.scale == LevelScale::kHeadChannel;
    if (!own && (f.scale != LevelScale::kBlockChannel || is_named(kForm))) return;
    const __half* ranges = reinterpret_cast<const __half*>(f.ranges) + head * 2 * D;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      scale[p] = Lane::pair_of(own ? ranges + D : halves(block.side), p);
      low[p] = own        ? Lane::pair_of(ranges, p)
               : f.minima ? Lane::pair_of(halves(block.side + f.at.minima), p)
                          : __float2half2_rn(0);
    }
  }

  /// Numbers apart of 16 rows: no two of a row have the same channel.
  __device__ void put_apart(__half* to, int stride, const LevelBlock& block, int first) const {
    for (int i = threadIdx.x % kWarp; i < kBuiltRows * f.apart; i += kWarp) {
      const int row = i % kBuiltRows, at = (first + row) * f.apart + i / kBuiltRows;
      const int channel = static_cast<uint8_t>(block.side[f.at.channels + at]);
      __half& x = to[row * stride + channel];
      const __half number = halves(block.side + f.at.apart)[at];
      x = f.missed ? __hadd(x, number) : number;
    }
  }

  /// The signs and the mean that lead from a key's codes to the key before RoPE.
  struct Rest {
    uint32_t flips = 0;
    float mean[Lane::kMine] = {};
  };
  __device__ Rest rest() const {
    Rest rest;
    if (f.rotated) rest.flips = Lane::flips_of(f.flips);
#pragma unroll
    for (int e = 0; f.means && e < Lane::kMine; ++e)
      rest.mean[e] = head_mean<D>(f, head, Lane::channel(e));
    return rest;
  }
  __device__ void add_rest(float (&a)[Lane::kHalf], float (&b)[Lane::kHalf],
                           const Rest& rest) const {
    float x[Lane::kMine];
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) x[e] = e < Lane::kHalf ? a[e] : b[e - Lane::kHalf];
    if (f.rotated) Lane::hadamard(x), Lane::flip(x, rest.flips);
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e)
      (e < Lane::kHalf ? a[e] : b[e - Lane::kHalf]) = x[e] + rest.mean[e];
  }
  /// 16 rows to their positions, the first one's and those that follow.
  __device__ void turn(__half* to, int stride, int64_t position) const {
    constexpr int kHalf = Lane::kHalf;
    float2 angle[kHalf], step[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      angle[i] = turn_at(f.turns[Lane::channel(i)], position);
      step[i] = turn_at(f.turns[Lane::channel(i)], 1);
    }
    const Rest rest = this->rest();
#pragma unroll 4
    for (int row = 0; row < kBuiltRows; ++row) {
      float a[kHalf], b[kHalf];
      Lane::load_halves(a, b, to + row * stride);
      add_rest(a, b, rest);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float2 t = angle[i], s = step[i];
        const float x = a[i];
        a[i] = x * t.x - b[i] * t.y;
        b[i] = x * t.y + b[i] * t.x;
        angle[i] = {t.x * s.x - t.y * s.y, t.x * s.y + t.y * s.x};
      }
      Lane::store_halves(to + row * stride, a, b);
    }
  }

  /// 16 rows to the positions that lie beside them.
  __device__ void turn_each(__half* to, int stride, const LevelBlock& block, int first) const {
    const int* positions = reinterpret_cast<const int*>(block.side + f.at.positions) + first;
    const Rest rest = this->rest();
#pragma unroll 4
    for (int row = 0; row < kBuiltRows; ++row) {
      float a[Lane::kHalf], b[Lane::kHalf];
      Lane::load_halves(a, b, to + row * stride);
      add_rest(a, b, rest);
#pragma unroll
      for (int i = 0; i < Lane::kHalf; ++i) {
        const float2 t = turn_at(f.turns[Lane::channel(i)], positions[row]);
        const float x = a[i];
        a[i] = x * t.x - b[i] * t.y;
        b[i] = x * t.y + b[i] * t.x;
      }
      Lane::store_halves(to + row * stride, a, b);
    }
  }

  template <int kBits>
  __device__ void build_levels(__half* to, int stride, const LevelBlock& block, int first) const {
    __half2 scale[kPairs], low[kPairs];
    read_channels(scale, low, block);
#pragma unroll 1
    for (int row = 0; row < kBuiltRows; row += kTogether) {
      Rows x;
      if constexpr (kForm == LevelForm::kFragments) {
        if (kBits <= 3 && f.looked_up()) {
          read_fragments<kBits, true>(x, block.codes, first + row);
        } else {
          read_fragments<kBits, false>(x, block.codes, first + row);
        }
      } else {
        read_levels<kBits>(x, block.codes, first + row);
      }
      scale_rows(x, block, first + row, scale, low);
      if (f.rank > 0) add_product(x, block, first + row);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int p = 0; p < kPairs; ++p) Lane::put_pair(to + (row + i) * stride, p, x[i][p]);
      }
    }
  }

  /// bf16 as f16, which has more digits and ends sooner.
  static __device__ __half2 narrowed(__half2 pair) {
    const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
    return __floats2half2_rn(within_f16(x.x), within_f16(x.y));
  }
  /// Rows of 16 bits.
  __device__ void copy_rows(__half* to, int stride, const LevelBlock& block, int first) const {
    const __half* from = halves(block.codes) + first * D;
#pragma unroll
    for (int row = 0; row < kBuiltRows; ++row) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const __half2 pair = Lane::pair_of(from + row * D, p);
        Lane::put_pair(to + row * stride, p, f.bf16 ? narrowed(pair) : pair);
      }
    }
  }

  /// to [16, stride] <- rows first, ... of a block, the first of which stands at `position`; first
  /// is 0 or 16. The warp sees them when it returns.
  __device__ void build(__half* to, int stride, const LevelBlock& block, int first,
                        int64_t position) const {
    __syncwarp();  // nobody reads the rows before any more
    if constexpr (has_vectors(kForm)) {
      if (f.by_vectors()) {
        const VectorRows<D> rows{f, reinterpret_cast<const __half*>(table), head};
        rows.build(to, stride, {block.codes, block.side}, first);
        return finish(to, stride, block, first, position);
      }
    }
    switch (f.bits) {
      case 1: build_levels<1>(to, stride, block, first); break;
      case 2: build_levels<2>(to, stride, block, first); break;
      case 3: build_levels<3>(to, stride, block, first); break;
      case 4: build_levels<4>(to, stride, block, first); break;
      default:
        if constexpr (kForm != LevelForm::kFragments) {
          f.bits == 8 ? build_levels<8>(to, stride, block, first)
                      : copy_rows(to, stride, block, first);
        }
    }
    finish(to, stride, block, first, position);
  }
  __device__ void finish(__half* to, int stride, const LevelBlock& block, int first,
                         int64_t position) const {
    __syncwarp();
    if (f.apart > 0) {
      put_apart(to, stride, block, first);
      __syncwarp();
    }
    if (f.turns) {
      if constexpr (is_named(kForm)) {
        turn_each(to, stride, block, first);
      } else {
        turn(to, stride, position);
      }
      __syncwarp();
    }
  }
};

}  // namespace pith::cuda
