#pragma once
// The decode kernel, for dense spans and one codec's coded spans in one pass.
//
// A warp takes 16 or 32 rows at a time. Dense rows go straight from memory to registers in the
// order that the tensor cores want; coded blocks travel through a ring of shared memory that is the
// warp's own. Scores are S^T = K q^T (rows on M, up to 8 queries on N), sums are out^T = V^T P^T.

#include <type_traits>

#include "attend/cuda/decode_parts.cuh"
#include "attend/cuda/dense_tile.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"

namespace pith::cuda {

/// A codec that is never asked: the kernel for dense spans alone.
struct NoCodec {
  using InCompany = NoCodec;
  static constexpr bool kPresent = false;
  static constexpr int kWarps = 8, kResident = 1, kStages = 0, kBlockBytes = 0, kQueryBytes = 0;
  using Ahead = NothingAhead;
  static __device__ Ahead ask(const void*) { return {}; }
  static __device__ constexpr int warps() { return kWarps; }
  template <int D>
  using Of = NoCodec;
};
/// For kernels of their own: dense rows' walks count tiles beside coded blocks of 32 rows, and all
/// warps of a block share them.
struct BlockTiles : NoCodec {
  static constexpr bool kPresent = true;
  static constexpr int kRows = kBlockRows;
  static __device__ int warps() { return static_cast<int>(blockDim.x) / kWarp; }
};

/// Enough for a model's KV heads with several spans each, or for several sequences.
inline constexpr int kStagedSpans = 64;

/// Shared memory of a block: a space for each warp (its ring, or its part of a merge), the queries,
/// what the codec makes of them, and where each head's tiles end.
template <class Codec, int D>
struct BlockSpace {
  static constexpr int kRing = Codec::kStages * Codec::kBlockBytes;
  static constexpr int kMerge = kPart<D> * 4;
  static constexpr int kPerWarp = kRing > kMerge ? kRing : kMerge;
  static constexpr int kQueryAt = Codec::kWarps * kPerWarp;
  static constexpr int kCodecQueryAt = kQueryAt + kQueries * D * 4;
  static constexpr int kWalkAt = kCodecQueryAt + Codec::kQueryBytes;

  char* shared;

  __device__ char* warp() const { return shared + threadIdx.x / kWarp * kPerWarp; }
  __device__ float* q() const { return reinterpret_cast<float*>(shared + kQueryAt); }
  __device__ char* codec_query() const { return shared + kCodecQueryAt; }
  __device__ char* walk() const { return shared + kWalkAt; }
};

/// Scores of one tile to probabilities to weighted values.
template <class Tiles, int D>
__device__ inline void attend_tile(Running<D>& run, const DeviceSpan& span,
                                   const typename Tiles::Tile& tile,
                                   const typename Tiles::Query& query, int t, const SoftCap& cap) {
  constexpr int kM = Tiles::kRows / 16;
  const bool plain =
      span.log_weights == nullptr && span.log_weight == 0 && (t + 1) * Tiles::kRows <= span.rows;
  float s[kM][4], w[2 * kM];
  if (!plain) ask_weights(w, span, t * Tiles::kRows);
  Tiles::scores(s, tile, query);
  cap.apply(s);
  if (!plain) mask_and_weight(s, w, span, t * Tiles::kRows);
  uint32_t p[kM][2];
  run.template weigh<typename Tiles::Number>(p, s);
  Tiles::accumulate(run, tile, p);
}

/// The dense spans' share of a warp. The next tile is always on its way to registers while one is
/// worked on; the first is asked for before the queries are, and if it may be before the kernel
/// ahead has ended.
template <class T, class Codec, int D>
struct DenseRun {
  using Dense = DenseTiles<T, D>;
  DenseWalk<Codec> walk;
  bool more;
  typename Dense::Tile tile;  // not cleared: 64 registers

  __device__ explicit DenseRun(const DenseWalk<Codec>& walk_in) : walk(walk_in) {}
  /// Whether the first tile's rows are ready; then they are on their way.
  __device__ bool start(bool ready) {
    more = walk.next();
    const bool early = ready && more && (walk.tile + 1) * 16 <= walk.span.ready_rows;
    if (early) load();
    return early;
  }
  __device__ void load() {
    if (more) tile = Dense::load(walk.span, walk.tile);
  }
  __device__ void run(Running<D>& running, const float* q, const SoftCap& cap) {
    if (!more) return;
    const auto query = Dense::prepare(q);
    while (more) {
      const DeviceSpan span = walk.span;
      const int t = walk.tile;
      more = walk.next();
      typename Dense::Tile ahead;
      if (more) ahead = Dense::load(walk.span, walk.tile);
      attend_tile<Dense, D>(running, span, tile, query, t, cap);
      tile = ahead;
    }
  }
};

/// The dense spans around coded ones.
template <class T, class Codec, int D>
__device__ inline void run_dense_ends(Running<D>& run, DenseWalk<Codec> walk, const float* q,
                                      const SoftCap& cap) {
  using Dense = DenseTilesOnDemand<T, D>;
  if (!walk.next()) return;
  const auto query = Dense::prepare(q);
  do {
    attend_tile<Dense, D>(run, walk.span, Dense::load(walk.span, walk.tile), query, walk.tile, cap);
  } while (walk.next());
}

/// The orthonormal Walsh-Hadamard transform of weighted values in a codec's order: a lane's
/// channels 16 t + 8 u + lane / 4.
template <int D>
__device__ inline void transform_sums(Running<D>& run) {
  constexpr int kTiles = D / 16;
#pragma unroll
  for (int bit = 1; bit < 2 * kTiles; bit *= 2) {  // of 2 t + u
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n) {
      if (n & bit) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& a = run.acc[n / 2][n % 2 * 2 + j];
        float& b = run.acc[(n | bit) / 2][(n | bit) % 2 * 2 + j];
        const float sum = a + b;
        b = a - b;
        a = sum;
      }
    }
  }
#pragma unroll
  for (int mask = 4; mask < kWarp; mask *= 2) {
    const float sign = threadIdx.x & mask ? -1.0f : 1.0f;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = run.acc[t][i];
        x = x * sign + __shfl_xor_sync(~0u, x, mask);
      }
    }
  }
  const float scale = rsqrtf(static_cast<float>(D));
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) run.acc[t][i] *= scale;
  }
}

/// The weighted values of a codec's rows as they are, in its order of channels.
template <class Codec, int D>
__device__ inline void to_true_units(Running<D>& run) {
#pragma unroll
  for (int t = 0; t < D / 16; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      run.acc[t][i] = run.acc[t][i] * Codec::unit(t, i / 2) + Codec::shift(run.low, t, i % 2);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) run.low[j] = 0;
  if constexpr (Codec::kRotated) transform_sums(run);
}

/// From there to the order that dense rows are added in. scratch [8, D + 2], the warp's own.
template <class Codec, int D>
__device__ inline void to_dense_order(Running<D>& run, float* scratch) {
  const int c = threadIdx.x % 4;
  __syncwarp();
#pragma unroll
  for (int t = 0; t < D / 16; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scratch[(2 * c + i % 2) * (D + 2) + Codec::channel_of(t, i / 2)] = run.acc[t][i];
    }
  }
  __syncwarp();
#pragma unroll
  for (int t = 0; t < D / 16; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      run.acc[t][i] = scratch[(2 * c + i % 2) * (D + 2) + channel_of(t, i / 2)];
    }
  }
  __syncwarp();
}

/// Asks for the first blocks of a warp's share of a coded span: tiles first, first + kWarps, ...
template <class Codec, int D>
__device__ inline void start_coded(const DeviceSpan& span, const BlockSpace<Codec, D>& space,
                                   int first, int end) {
#pragma unroll
  for (int i = 0; i < Codec::kStages - 1; ++i) {
    const int t = first + i * Codec::kWarps;
    if (t < end) Codec::fetch(space.warp() + i * Codec::kBlockBytes, span, t);
    commit_copies();
  }
}

/// One warp's share of a coded span. `started`: its first blocks are on their way.
template <class Codec, int D>
__device__ inline void run_coded(Running<D>& run, const DeviceSpan& span,
                                 const BlockSpace<Codec, D>& space, int2 tiles, bool started,
                                 const SoftCap& cap) {
  const int first = tiles.x, end = tiles.y;
  constexpr int kStages = Codec::kStages, kWarps = Codec::kWarps;
  char* ring = space.warp();
  if (!started) {
    __syncwarp();  // the span before is done with the ring
    start_coded<Codec, D>(span, space, first, end);
  }
  const typename Codec::Query query = Codec::load_query(space.codec_query(), span);
  int slot = 0;
  for (int t = first; t < end; t += kWarps) {
    wait_for_copies<kStages - 2>();
    __syncwarp();  // also: every lane is done with the slot that is filled next
    const int ahead = t + (kStages - 1) * kWarps;
    const int free_slot = slot == 0 ? kStages - 1 : slot - 1;
    if (ahead < end) Codec::fetch(ring + free_slot * Codec::kBlockBytes, span, ahead);
    commit_copies();
    attend_tile<Codec, D>(run, span, typename Codec::Tile{ring + slot * Codec::kBlockBytes}, query,
                          t, cap);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  wait_for_copies<0>();
}

/// The queries of one head, asked for as soon as the kernel ahead has ended; then into shared
/// memory, with what the codec makes of them and its table, which was asked for before the rows.
template <class T, class Codec, int D>
struct QueryLoad {
  static constexpr int kEach = kQueries * D / 2 / (Codec::kWarps * kWarp);
  uint32_t pairs[kEach];  // of numbers
  typename Codec::Ahead ahead;

  __device__ explicit QueryLoad(const DecodeParams& p) : ahead(Codec::ask(p.table)) {}
  /// Where they are, for ask(): known before what all blocks wait for.
  static __device__ const uint32_t* at(const DecodeParams& p, int head) {
    const T* all = static_cast<const T*>(p.here().q);
    return reinterpret_cast<const uint32_t*>(all + static_cast<size_t>(query_head_of(p, head)) * D);
  }
  __device__ void ask(const uint32_t* q, int queries) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = threadIdx.x + i * Codec::kWarps * kWarp;
      pairs[i] = at < queries * (D / 2) ? q[at] : 0;
    }
  }
  __device__ void put(const BlockSpace<Codec, D>& space, const DecodeParams& p, int queries) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = threadIdx.x + i * Codec::kWarps * kWarp;
      const auto* x = reinterpret_cast<const T*>(&pairs[i]);
      reinterpret_cast<float2*>(space.q())[at] = {static_cast<float>(x[0]) * p.scale,
                                                  static_cast<float>(x[1]) * p.scale};
    }
    __syncthreads();
    if constexpr (Codec::kPresent) {
      Codec::prepare(space.codec_query(), space.q(), queries, p.table, ahead);
      __syncthreads();
    }
  }
};

template <class T, class Codec, int D>
__global__ void __launch_bounds__(Codec::kWarps* kWarp, Codec::kResident)
    decode_kernel(const __grid_constant__ DecodeParams p) {
  auto* shared = launched_shared<char>();
  const BlockSpace<Codec, D> space{shared};
  let_successor_start();
  Predecessor ahead;
  for_own_heads<D, Codec, kStagedSpans>(
      p, space.walk(), ahead, [&](const HeadShare& share, const Cut& cut) {
        const HeadEnd end{share.head, shared, BlockSpace<Codec, D>::kPerWarp, Codec::kWarps};
        const int queries = share.queries;
        DenseWalk<Codec> walk{share.spans, p.span_count, share.begin, share.end};
        Running<D> run;
        QueryLoad<T, Codec, D> load(p);
        if constexpr (!Codec::kPresent && D > 128) {
          // Two tiles of 16 rows, sums and queries do not go into 255 registers.
          ahead.wait();
          load.ask(load.at(p, share.head), queries);
          load.put(space, p, queries);
          run_dense_ends<T, Codec, D>(run, walk, space.q(), p.cap);
          end_head(p, cut, run, end);
        } else if constexpr (!Codec::kPresent) {
          DenseRun<T, Codec, D> dense{walk};
          const bool early = dense.start(p.ready);
          const auto* q = load.at(p, share.head);
          ahead.wait();
          load.ask(q, queries);
          if (!early) dense.load();
          load.put(space, p, queries);
          dense.run(run, space.q(), p.cap);
          end_head(p, cut, run, end);
        } else {
          // Coded spans first: their blocks are on their way while the queries come.
          CodedWalk coded{share.spans, p.span_count, share.begin, share.end};
          bool more = coded.template next<Codec>();
          const bool any = more;
          if (more) start_coded<Codec, D>(coded.span, space, coded.tiles.x, coded.tiles.y);
          const auto* q = load.at(p, share.head);
          ahead.wait();
          load.ask(q, queries);
          load.put(space, p, queries);
          for (bool started = true; more; more = coded.template next<Codec>(), started = false) {
            const DeviceSpan span = coded.span;
            run_coded<Codec, D>(run, span, space, coded.tiles, started, p.cap);
          }
          if (any) to_true_units<Codec>(run);
          if (coded.dense) {
            if (any) to_dense_order<Codec>(run, reinterpret_cast<float*>(space.warp()));
            run_dense_ends<T, Codec, D>(run, walk, space.q(), p.cap);
          }
          end_head(p, cut, run, end, [&](int t, int u) {
            return coded.dense ? channel_of(t, u) : Codec::channel_of(t, u);
          });
        }
      });
}

template <class T, class Codec, int D>
void launch_decode_as(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream) {
  const DecodeParams p = make_params(call, scratch);
  const size_t bytes = BlockSpace<Codec, D>::kWalkAt + walk_bytes<kStagedSpans>(p.heads);
  launch_call(decode_kernel<T, Codec, D>, {{}, Codec::kWarps * kWarp, bytes}, p, call, stream,
              "decode attention");
}

/// Launches for the call's dtype and head_dim. `Codec` is NoCodec or a template over D's codec.
template <class Codec>
void launch_decode(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream) {
  call.check();
  constexpr int kMost = std::is_same_v<Codec, NoCodec> ? 256 : 128;
  with_rows_of<kMost>(call.dtype, call.shape.head_dim, [&]<class T, int D>() {
    using Tiles = typename Codec::template Of<D>;
    if (call.company.blocks > 0) {
      launch_decode_as<T, typename Tiles::InCompany, D>(call, scratch, stream);
    } else {
      launch_decode_as<T, Tiles, D>(call, scratch, stream);
    }
  });
}

}  // namespace pith::cuda
