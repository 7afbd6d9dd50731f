#pragma once
// Decode attention over rows of levels (level_format.h). A warp's blocks of codes come to shared
// memory, the next keys while values are worked on and the other way round; 16 rows at a
// time are built there as f16 and multiplied like dense ones. Keys that lie as a transform left
// them meet queries that were transformed; values are summed as they lie and the sums transformed
// back, once a warp and head. Dense spans are read as everywhere.
//
// Cost: a block's bytes are read once for its query group; a number is built by about ten
// instructions of a lane, which bounds the kernel, not memory.

#include <algorithm>

#include "attend/cuda/decode_kernel.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "rows/cuda/level_scores.cuh"

namespace pith::cuda {

template <int D>
inline constexpr int kMostLevelWarps = D > 128 ? 8 : 12;  // more have too few registers

/// Bytes of one side's parts at a warp's hand: a block's codes, its side without its share of
/// `right`, and all of `right`.
struct StagePart {
  int codes, side, right;
  __host__ __device__ int bytes() const { return codes + side + right; }
};

/// One format's sides, and their parts of a stage.
struct StagedFormat {
  PlacedSide keys, values;
  StagePart key_part, value_part;
  __host__ __device__ int bytes() const { return key_part.bytes() + value_part.bytes(); }
};

struct LevelParams : DecodeParams {
  StagedFormat formats[kMostLevelFormats];  // a span's is number span.coded - 1
  int stage_bytes, warp_bytes;
  bool rotated_keys;  // of any format: they meet queries in that form
};

/// Of a warp's built rows; its part of a merge fits too.
template <int D>
inline constexpr int kBuiltBytes = 2 * kBuiltRows*(D + 32);

template <int D>
struct WarpSpace {
  static constexpr int kValueStride = D + 8;  // as kBuiltKeyStride
  static_assert(kBuiltBytes<D> >= kPart<D> * 4);

  char* base;
  __device__ __half* built() const { return reinterpret_cast<__half*>(base); }
  __device__ char* codes() const { return base + kBuiltBytes<D>; }
};

__device__ inline void copy_piece(char* to, const char* from, int bytes) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % kWarp * 16; i < bytes; i += kWarp * 16) {
    copy_async(to + i, from + i);
  }
}

/// Block `tile` of one side comes to `to`.
template <int D>
__device__ inline void fetch_side(char* to, const PlacedSide& f, const StagePart& part,
                                  const void* codes, const void* side, int tile) {
  const auto* sides = static_cast<const char*>(side);
  const int stride = f.at.side, share = f.at.share_bytes;
  copy_piece(to, static_cast<const char*>(codes) + static_cast<size_t>(tile) * part.codes,
             part.codes);
  to += part.codes;
  copy_piece(to, sides + static_cast<size_t>(tile) * stride, part.side);
  to += part.side;
  if (part.right == 0) return;
  const char* group = sides + static_cast<size_t>(tile / f.group_blocks * f.group_blocks) * stride;
  for (int i = 0; i < f.group_blocks; ++i) {
    copy_piece(to + i * share, group + i * stride + part.side, share);
  }
}

/// A warp's share of one coded span.
template <int D, LevelForm kForm>
struct LevelRun {
  using Dense = DenseTiles<__half, D>;
  using Space = WarpSpace<D>;
  using Builder = LevelBuilder<D, kForm>;
  const StagedFormat& f;
  Space space;
  const uint4* q;  // [D/32, lanes] the queries as operands
  Builder keys, values;
  const SoftCap& cap;

  static __device__ LevelBlock block_at(const char* codes, const StagePart& part,
                                        const DeviceSpan& span) {
    return {codes, codes + part.codes, codes + part.codes + part.side,
            static_cast<const char*>(is_named(kForm) ? span.records() : nullptr)};
  }
  __device__ char* value_codes() const { return space.codes() + f.key_part.bytes(); }
  /// Both end a group of copies, an empty one past the end.
  __device__ void fetch_keys(const DeviceSpan& span, int tile, int end) const {
    if (tile < end) {
      fetch_side<D>(space.codes(), f.keys, f.key_part, span.keys, span.key_side, tile);
    }
    commit_copies();
  }
  __device__ void fetch_values(const DeviceSpan& span, int tile, int end) const {
    if (tile < end) {
      fetch_side<D>(value_codes(), f.values, f.value_part, span.values, span.value_side, tile);
    }
    commit_copies();
  }
  __device__ void accumulate(Running<D>& run, const uint32_t (&probabilities)[1][2]) const {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    typename Dense::Tile tile;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 2 * c + (i & 1) + 8 * (i >> 1);
      const __half* row = space.built() + at * Space::kValueStride + 8 * r;
#pragma unroll
      for (int h = 0; h < D / 64; ++h) {
        tile.v[i][h] = *reinterpret_cast<const uint4*>(row + 64 * h);
      }
    }
    Dense::accumulate(run, tile, probabilities);
  }

  /// Tiles first, first + warps, ... below `end`; the first one's copies have been asked for.
  __device__ void span(Running<D>& run, const DeviceSpan& span, int first, int end) const {
    const int warps = BlockTiles::warps();
    const LevelBlock key_block = block_at(space.codes(), f.key_part, span);
    const LevelBlock value_block = block_at(value_codes(), f.value_part, span);
    for (int t = first; t < end; t += warps) {
      wait_for_copies<1>();  // all but the values
      __syncwarp();
      float s[2][4];
#pragma unroll 1
      for (int m = 0; m < 2; ++m) {  // one body: less to fetch
        keys.build(space.built(), kBuiltKeyStride<D>, key_block, kBuiltRows * m,
                   span.position + int64_t{kBlockRows} * t + kBuiltRows * m);
        float half[1][4];
        score_built<D>(half, space.built(), q);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (m == 0) s[0][j] = half[0][j];
          if (m == 1) s[1][j] = half[0][j];
        }
      }
      cap.apply(s);
      fetch_keys(span, t + warps, end);
      if (span.log_weights || span.log_weight != 0 || (t + 1) * kBlockRows > span.rows) {
        mask_and_weight(s, span, t * kBlockRows);
      }
      uint32_t probabilities[2][2];
      run.template weigh<__half>(probabilities, s);
      wait_for_copies<1>();  // all but the next keys
      __syncwarp();
#pragma unroll 1
      for (int m = 0; m < 2; ++m) {
        values.build(space.built(), Space::kValueStride, value_block, kBuiltRows * m, 0);
        const uint32_t half[1][2] = {{m == 0 ? probabilities[0][0] : probabilities[1][0],
                                      m == 0 ? probabilities[0][1] : probabilities[1][1]}};
        accumulate(run, half);
      }
      fetch_values(span, t + warps, end);
    }
    wait_for_copies<0>();
    __syncwarp();
  }
};

/// The transform of a warp's weighted values, which is its own inverse.
template <int D>
__device__ inline void rotate_sums(Running<D>& run, const WarpSpace<D>& space) {
  using Lane = LevelLane<D>;
  auto* sums = reinterpret_cast<float*>(space.base);  // [8, D + 2]
  const int c = threadIdx.x % 4;
  const auto at = [&](int t, int i) -> float& {
    return sums[(2 * c + i % 2) * (D + 2) + channel_of(t, i / 2)];
  };
  __syncwarp();
#pragma unroll
  for (int t = 0; t < D / 16; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) at(t, i) = run.acc[t][i];
  }
  __syncwarp();
#pragma unroll 4
  for (int query = 0; query < kQueries; ++query) {
    float x[Lane::kMine];
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) x[e] = sums[query * (D + 2) + Lane::channel(e)];
    Lane::hadamard(x);
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) sums[query * (D + 2) + Lane::channel(e)] = x[e];
  }
  __syncwarp();
#pragma unroll
  for (int t = 0; t < D / 16; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) run.acc[t][i] = at(t, i);
  }
  __syncwarp();
}

/// kFormats: 1, so that what a format says is known where it is read, or 2. kForm: of both sides;
/// the named ones also serve a side that has no names, those along vectors one without.
template <class T, int D, int kFormats, LevelForm kForm>
__global__ void __launch_bounds__(kMostLevelWarps<D>* kWarp, 1)
    level_kernel(const __grid_constant__ LevelParams p) {
  using Builder = LevelBuilder<D, kForm>;
  auto* shared = launched_shared<char>();
  auto* q = reinterpret_cast<float*>(shared + BlockTiles::warps() * p.warp_bytes);
  float* turned = q + kQueries * D;  // [formats, 8, D] as their keys lie
  // [1 + formats, D/32, lanes] of the queries and of those
  auto* operands = reinterpret_cast<uint4*>(turned + kFormats * kQueries * D);
  auto* tables = reinterpret_cast<__half2*>(operands + (1 + kFormats) * D);  // [formats, 2, pairs]
  auto* walk_space = reinterpret_cast<char*>(tables + 2 * kFormats * kPairTable);
  const WarpSpace<D> space{shared + threadIdx.x / kWarp * p.warp_bytes};
  let_successor_start();
  Predecessor ahead;
  for_own_heads<D, BlockTiles, kStagedSpans>(
      p, walk_space, ahead, [&](const HeadShare& share, const Cut& cut) {
        const int kv_head = p.kv_head_of(share.head);
        const auto run_of = [&](const DeviceSpan& span) -> LevelRun<D, kForm> {
          const int which = kFormats == 1 ? 0 : span.coded - 1;
          const StagedFormat& f = p.formats[which];
          const __half2* table = tables + 2 * which * kPairTable;
          return {f,
                  space,
                  operands + (f.keys.meets_rotated() ? (1 + which) * D : 0),
                  {f.keys, table, kv_head},
                  {f.values, table + kPairTable, kv_head},
                  p.cap};
        };
        const auto start = [&](const CodedWalk& at) {
          const DeviceSpan span = at.span;
          const LevelRun<D, kForm> rows = run_of(span);
          rows.fetch_keys(span, at.tiles.x, at.tiles.y);
          rows.fetch_values(span, at.tiles.x, at.tiles.y);
        };
        // The first blocks are on their way while the kernel ahead ends and the queries come.
        CodedWalk walk{share.spans, p.span_count, share.begin, share.end};
        bool more = walk.next<BlockTiles>();
        if (more) start(walk);
        for (int i = 0; i < kFormats; ++i) {
          Builder::fill_table(tables + 2 * i * kPairTable, p.formats[i].keys, kv_head);
          Builder::fill_table(tables + (2 * i + 1) * kPairTable, p.formats[i].values, kv_head);
        }
        ahead.wait();
        load_queries<T, D>(q, p, share);
        __syncthreads();
        if (p.rotated_keys) {
          for (int i = 0; i < kFormats; ++i) {
            rotate_queries<D>(turned + i * kQueries * D, q,
                              LevelLane<D>::flips_of(p.formats[i].keys.flips));
          }
          __syncthreads();
        }
        const int warp = static_cast<int>(threadIdx.x) / kWarp;
        if (warp == 0) write_operands<D>(operands, q);
        for (int i = 0; warp == 1 && p.rotated_keys && i < kFormats; ++i) {
          write_operands<D>(operands + (1 + i) * D, turned + i * kQueries * D);
        }
        __syncthreads();
        Running<D> run;
        bool rotated = false;  // the sums
        while (more) {
          const DeviceSpan span = walk.span;
          const LevelRun<D, kForm> rows = run_of(span);
          if (rows.f.values.rotated != rotated) rotate_sums<D>(run, space);
          rotated = rows.f.values.rotated;
          rows.span(run, span, walk.tiles.x, walk.tiles.y);
          more = walk.next<BlockTiles>();
          if (more) start(walk);
        }
        if (rotated) rotate_sums<D>(run, space);
        if (walk.dense) {
          run_dense_ends<T, BlockTiles, D>(
              run, DenseWalk<BlockTiles>{share.spans, p.span_count, share.begin, share.end}, q,
              p.cap);
        }
        end_head(p, cut, run,
                 {share.head, shared, static_cast<size_t>(p.warp_bytes), BlockTiles::warps()});
      });
}

template <int D>
StagePart part_of(const PlacedSide& side) {
  return {side.code_bytes(D), side.at.share, side.at.share_bytes * side.group_blocks};
}

template <class T, int D, int kFormats, LevelForm kForm>
void launch_levels(std::span<const LevelFormat> formats, const DecodeCall& call,
                   const DecodeScratch& scratch, cudaStream_t stream) {
  LevelParams p{};
  static_cast<DecodeParams&>(p) = make_params(call, scratch);
  for (size_t i = 0; i < formats.size(); ++i) {
    const LevelFormat& format = formats[i];
    StagedFormat& staged = p.formats[i];
    staged.keys = {format.keys, D};
    staged.values = {format.values, D};
    staged.key_part = part_of<D>(staged.keys);
    staged.value_part = part_of<D>(staged.values);
    p.stage_bytes = std::max(p.stage_bytes, staged.bytes());
    p.rotated_keys |= format.keys.meets_rotated();
  }
  p.warp_bytes = kBuiltBytes<D> + p.stage_bytes;
  const size_t fixed = (1 + formats.size()) * (kQueries * D * 4 + D * sizeof(uint4)) +
                       formats.size() * 8 * kPairTable + walk_bytes<kStagedSpans>(p.heads);
  const size_t room = device_info().shared_per_block - fixed;
  const int warps = std::min(kMostLevelWarps<D>, static_cast<int>(room / p.warp_bytes));
  // The second warp writes the transformed queries.
  check_level_room("attention over these codes", fixed + size_t{2} * p.warp_bytes);
  const size_t bytes = fixed + static_cast<size_t>(warps) * p.warp_bytes;
  launch_call(level_kernel<T, D, kFormats, kForm>,
              {{}, static_cast<unsigned>(warps * kWarp), bytes}, p, call, stream,
              "attention over rows of levels");
}

}  // namespace pith::cuda
