// The prefill kernel of sm_90: three warpgroups of 64 queries each and one that gathers rows.
// Scores of the next tile are on the tensor cores while a tile's are turned into probabilities, and
// its values after that (Shah et al. 2024, "FlashAttention-3", section 3.2).

#include "attend/cuda/prefill_softmax.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace pith::cuda {
namespace {

constexpr int kReaders = 3;           // warpgroups
constexpr int kRows = 64 * kReaders;  // queries of a tile: rows are gathered once for all of them
constexpr int kColumns = 64, kStages = 4;
constexpr int kGroup = 128;                        // threads of a warpgroup
constexpr int kTilesOfBlock = 4;                   // of queries, that share a list
constexpr int kThreads = (1 + kReaders) * kGroup;  // the first one gathers

template <int kRing>
struct RingBarriers {
  SharedBarrier q_full, q_free;
  SharedBarrier k_full[kRing], k_free[kRing], v_full[kRing], v_free[kRing];

  __device__ void init() {
    constexpr int kWarps = kReaders * kGroup / kWarp;  // each reading warp arrives once
    q_full.init(kGroup);
    q_free.init(kWarps);
    for (int i = 0; i < kRing; ++i) {
      k_full[i].init(kGroup);
      v_full[i].init(kGroup);
      k_free[i].init(kWarps);
      v_free[i].init(kWarps);
    }
    publish_barriers();
  }
};
using Barriers = RingBarriers<kStages>;
using Place = RingPlace<kStages>;

template <int D>
struct WgmmaSpace {
  static constexpr int kQueryBytes = kRows * 2 * D, kTileBytes = kColumns * 2 * D;
  static constexpr size_t kTiles = kQueryBytes + size_t{2 * kStages} * kTileBytes;
  char* shared;  // a multiple of 1024

  __device__ char* q() const { return shared; }
  __device__ char* k(int stage) const { return shared + kQueryBytes + stage * kTileBytes; }
  __device__ char* v(int stage) const { return k(kStages + stage); }
  __device__ Barriers& barriers() const { return *reinterpret_cast<Barriers*>(shared + kTiles); }
  __device__ int* numbers() const {
    return reinterpret_cast<int*>(shared + kTiles + sizeof(Barriers));
  }
  static size_t bytes(int list_rows) {
    return kTiles + sizeof(Barriers) + size_t{8} * list_rows + 1024;
  }
};

/// The gathering warpgroup. Copies announce themselves: it waits for free places only.
template <int D>
struct Gatherer {
  static constexpr int kPieces = D / 8;
  static constexpr int kTogether = kGroup / kPieces;  // rows, a multiple of 8: one swizzle
  const WgmmaSpace<D>& space;
  const PrefillParams& p;
  int row, piece, place;

  __device__ Gatherer(const WgmmaSpace<D>& s, const PrefillParams& params)
      : space(s),
        p(params),
        row(threadIdx.x / kPieces),
        piece(threadIdx.x % kPieces),
        place(swizzled_at(kColumns, row, piece)) {}

  __device__ void queries(const QueryTile& tile) const {
    const char* q = static_cast<const char*>(p.q) + tile.first_head * p.q_head + 16 * piece;
#pragma unroll 4
    for (int m = row; m < kRows; m += kTogether) {
      const int query = tile.first + min(m / p.pack, tile.count - 1);
      copy_async(space.q() + swizzled_at(kRows, m, piece),
                 q + query * p.q_row + m % p.pack * p.q_head);
    }
    space.barriers().q_full.arrive_after_copies();
  }
  __device__ void rows(char* to, const char* from, size_t stride, int j) const {
    const int* numbers = space.numbers() + j * kColumns + row;
#pragma unroll 4
    for (int i = 0; i < kColumns; i += kTogether) {
      copy_async(to + place + i * 128, from + numbers[i] * stride);
    }
  }
  /// Keys and values of the list's tiles, for one tile of queries.
  __device__ void list(Place& at, int kv_head, int tiles) const {
    Barriers& b = space.barriers();
    const char* k = static_cast<const char*>(p.k) + kv_head * p.k_head + 16 * piece;
    const char* v = static_cast<const char*>(p.v) + kv_head * p.v_head + 16 * piece;
    for (int j = 0; j < tiles; ++j, ++at.count) {
      const int stage = at.stage();
      if (at.count >= kStages) b.k_free[stage].wait(at.phase() ^ 1);
      rows(space.k(stage), k, p.k_row, j);
      b.k_full[stage].arrive_after_copies();
      if (at.count >= kStages) b.v_free[stage].wait(at.phase() ^ 1);
      rows(space.v(stage), v, p.v_row, j);
      b.v_full[stage].arrive_after_copies();
    }
  }
};

/// One warpgroup's 64 queries.
template <class T, int D>
struct Reader {
  const WgmmaSpace<D>& space;
  const PrefillParams& p;
  const QueryTile& tile;
  int group;   // of the reading ones
  uint64_t q;  // its queries' descriptor

  __device__ void free(SharedBarrier& barrier) const {
    if (threadIdx.x % kWarp == 0) barrier.arrive();
  }
  __device__ void start_scores(float (&s)[kColumns / 8][4], int stage) const {
    const uint64_t k = tile_descriptor(space.k(stage), 128 * kColumns);
    pin(s);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const int half = i / 4 * 128, step = i % 4 * 32;  // 16 channels on
      multiply_tiles<T>(s, advance(q, half * kRows + step), advance(k, half * kColumns + step),
                        i > 0);
    }
    wgmma_commit();
  }
  __device__ void start_values(float (&acc)[D / 8][4], const uint32_t (&a)[kColumns / 16][4],
                               int stage) const {
    const uint64_t v = tile_descriptor(space.v(stage), 128 * kColumns);
    pin(acc);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      multiply_values<T>(acc, a[i], advance(v, i * 16 * 128));  // 16 rows on
    }
    wgmma_commit();
  }
  static __device__ void round_all(uint32_t (&a)[kColumns / 16][4],
                                   const float (&s)[kColumns / 8][4]) {
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[i][j] = pack<T>(s[2 * i + j / 2][2 * (j % 2)], s[2 * i + j / 2][2 * (j % 2) + 1]);
      }
    }
  }

  /// Waits for a tile; copies are seen by products only after the fence.
  __device__ void await(SharedBarrier& barrier, int phase) const {
    barrier.wait(phase);
    publish_to_products();
  }

  __device__ void run(Place& at, int round) const {
    Barriers& b = space.barriers();
    const int m0 = 64 * group + threadIdx.x / kWarp % 4 * 16 + threadIdx.x % kWarp / 4;
    const int limit[2] = {tile.limit(m0), tile.limit(m0 + 8)};
    const int tiles = (tile.rows() + kColumns - 1) / kColumns, least = tile.limit(64 * group);
    const auto* weights = reinterpret_cast<const float*>(space.numbers() + p.list_rows);
    float s[kColumns / 8][4], acc[D / 8][4] = {}, factor[2];
    uint32_t a[kColumns / 16][4];
    QuerySums sums;
    const auto soften_tile = [&](int j) {
      return soften(s, sums, factor, p.scale, weights + j * kColumns, (j + 1) * kColumns > least,
                    j * kColumns, limit);
    };
    await(b.q_full, round % 2);
    await(b.k_full[at.stage()], at.phase());
    start_scores(s, at.stage());
    wgmma_wait<0>();
    pin(s);
    free(b.k_free[at.stage()]);
    if (tiles == 1) free(b.q_free);
    soften_tile(0);
    round_all(a, s);
    for (int j = 1; j < tiles; ++j) {
      const Place before = at;
      ++at.count;
      await(b.k_full[at.stage()], at.phase());
      start_scores(s, at.stage());
      await(b.v_full[before.stage()], before.phase());
      start_values(acc, a, before.stage());
      wgmma_wait<1>();
      pin(s);
      free(b.k_free[at.stage()]);
      if (j + 1 == tiles) free(b.q_free);
      const bool rises = soften_tile(j);
      wgmma_wait<0>();
      pin(acc);
      free(b.v_free[before.stage()]);
      if (rises) {
#pragma unroll
        for (int g = 0; g < D / 8; ++g) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[g][i] *= factor[i / 2];
        }
      }
      round_all(a, s);
    }
    await(b.v_full[at.stage()], at.phase());
    start_values(acc, a, at.stage());
    wgmma_wait<0>();
    pin(acc);
    free(b.v_free[at.stage()]);
    ++at.count;
    write(acc, sums, m0);
  }

  __device__ void write(const float (&acc)[D / 8][4], const QuerySums& sums, int m0) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = inverse_sum(sums.sum[i]);
      const int m = m0 + 8 * i;
      if (m / p.pack >= tile.count) continue;
      char* out = static_cast<char*>(p.out) + (tile.first + m / p.pack) * p.q_row +
                  (tile.first_head + m % p.pack) * p.q_head;
#pragma unroll
      for (int g = 0; g < D / 8; ++g) {
        reinterpret_cast<uint32_t*>(out)[4 * g + threadIdx.x % 4] =
            pack<T>(acc[g][2 * i] * scale, acc[g][2 * i + 1] * scale);
      }
    }
  }
};

template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_kernel(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto* unaligned = launched_shared<char>();
  const int blocks = (p.tiles + kTilesOfBlock - 1) / kTilesOfBlock;  // of a chunk
  const PrefillChunk chunk = p.chunks[blockIdx.x / blocks];
  const int first = static_cast<int>(blockIdx.x) % blocks * kTilesOfBlock;
  const int last = min(p.tiles, first + kTilesOfBlock);
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(unaligned));
  const WgmmaSpace<D> space{unaligned + (1024 - at % 1024) % 1024};
  if (query_tile<kRows>(p, chunk, first).empty()) return;
  if (threadIdx.x == 0) space.barriers().init();
  const int weighted =
      make_list(space.numbers(), reinterpret_cast<float*>(space.numbers() + p.list_rows), p, chunk);
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  Place place;
  if (group == 0) {
    give_registers<32>();
    const Gatherer<D> gatherer(space, p);
    for (int t = first; t < last; ++t) {
      const QueryTile tile = query_tile<kRows>(p, chunk, t, weighted);
      if (tile.empty()) break;
      if (t > first) space.barriers().q_free.wait((t - first - 1) % 2);
      gatherer.queries(tile);
      gatherer.list(place, tile.kv_head, (tile.rows() + kColumns - 1) / kColumns);
    }
    wait_for_copies<0>();
  } else {
    take_registers<160>();
    const uint64_t q = advance(tile_descriptor(space.q(), 128 * kRows), (group - 1) * 64 * 128);
    for (int t = first; t < last; ++t) {
      const QueryTile tile = query_tile<kRows>(p, chunk, t, weighted);
      if (tile.empty()) break;
      Reader<T, D>{space, p, tile, group - 1, q}.run(place, t - first);
    }
  }
#else
  asm volatile("trap;");  // prefill_chunks() never launches it elsewhere
#endif
}

template <class T, int D>
void launch(const PrefillCall& call, cudaStream_t stream) {
  const PrefillParams p = prefill_params(call, kRows, kColumns);
  const size_t bytes = WgmmaSpace<D>::bytes(p.list_rows);
  const int blocks = (p.tiles + kTilesOfBlock - 1) / kTilesOfBlock;
  const dim3 grid(call.chunk_count * blocks, call.query_heads / p.pack);
  launch_kernel(wgmma_kernel<T, D>, {grid, kThreads, bytes}, stream, "prefill attention", p);
}

}  // namespace

void prefill_chunks_wgmma(const PrefillCall& call, cudaStream_t stream) {
  call.check();
  const bool bf16 = call.dtype == DType::kBF16;
  if (call.head_dim == 64) {
    bf16 ? launch<__nv_bfloat16, 64>(call, stream) : launch<__half, 64>(call, stream);
  } else {
    bf16 ? launch<__nv_bfloat16, 128>(call, stream) : launch<__half, 128>(call, stream);
  }
}

}  // namespace pith::cuda
