// The prefill kernel of sm_90: two warpgroups of 64 queries each and one that gathers rows. Scores
// of the next tile are on the tensor cores while a tile's are turned into probabilities, and its
// values after that (Shah et al. 2024, "FlashAttention-3", section 3.2).

#include "attend/cuda/prefill_softmax.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace pith::cuda {
namespace {

constexpr int kRows = 128, kColumns = 128, kStages = 2;
constexpr int kGroup = 128;           // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;  // the first one gathers

struct Barriers {
  SharedBarrier k_full[kStages], k_free[kStages], v_full[kStages], v_free[kStages];
};

template <int D>
struct WgmmaSpace {
  static constexpr int kTileBytes = kColumns * 2 * D;  // of keys, of values and of queries
  static constexpr size_t kTiles = size_t{1 + 2 * kStages} * kTileBytes;
  char* shared;  // a multiple of 1024

  __device__ char* q() const { return shared; }
  __device__ char* k(int stage) const { return shared + (1 + stage) * kTileBytes; }
  __device__ char* v(int stage) const { return shared + (1 + kStages + stage) * kTileBytes; }
  __device__ Barriers& barriers() const { return *reinterpret_cast<Barriers*>(shared + kTiles); }
  __device__ int* numbers() const {
    return reinterpret_cast<int*>(shared + kTiles + sizeof(Barriers));
  }
  static size_t bytes(int list_rows) {
    return kTiles + sizeof(Barriers) + size_t{8} * list_rows + 1024;
  }
};

template <int D>
__device__ inline void load_query_tile(const WgmmaSpace<D>& space, const PrefillParams& p,
                                       const QueryTile& tile) {
  constexpr int kPieces = D / 8;
  for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
    const int m = i / kPieces, piece = i % kPieces;
    const char* from = static_cast<const char*>(p.q) +
                       (tile.first + min(m / p.pack, tile.count - 1)) * p.q_row +
                       (tile.first_head + m % p.pack) * p.q_head + 16 * piece;
    copy_async(space.q() + swizzled_at(kRows, m, piece), from);
  }
  commit_copies();
}

/// The gathering warpgroup. Copies of three tiles are under way at most; a tile is announced when
/// its own have arrived.
template <int D>
__device__ inline void gather(const WgmmaSpace<D>& space, const PrefillParams& p, int kv_head,
                              int tiles) {
  constexpr int kPieces = D / 8, kAhead = 2;
  Barriers& b = space.barriers();
  const int row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
  constexpr int kTogether = kGroup / kPieces;  // rows, a multiple of 8: one place in the swizzle
  const int place = swizzled_at(kColumns, row, piece);
  const char* k = static_cast<const char*>(p.k) + kv_head * p.k_head + 16 * piece;
  const char* v = static_cast<const char*>(p.v) + kv_head * p.v_head + 16 * piece;
  const auto announce = [&](int item) {  // item 2 j: keys of tile j, 2 j + 1: its values
    publish_to_products();
    SharedBarrier* full = item % 2 ? b.v_full : b.k_full;
    full[item / 2 % kStages].arrive();
  };
  for (int item = 0; item < 2 * tiles; ++item) {
    const int j = item / 2, stage = j % kStages, round = j / kStages, values = item % 2;
    if (round > 0) (values ? b.v_free : b.k_free)[stage].wait((round - 1) % 2);
    char* to = (values ? space.v(stage) : space.k(stage)) + place;
    const char* from = values ? v : k;
    const size_t stride = values ? p.v_row : p.k_row;
    const int* numbers = space.numbers() + j * kColumns + row;
#pragma unroll 4
    for (int i = 0; i < kColumns; i += kTogether) {
      copy_async(to + i * 128, from + numbers[i] * stride);
    }
    commit_copies();
    if (item >= kAhead) {
      wait_for_copies<kAhead>();
      announce(item - kAhead);
    }
  }
  wait_for_copies<0>();
  for (int item = max(2 * tiles - kAhead, 0); item < 2 * tiles; ++item) announce(item);
}

/// One warpgroup's 64 queries.
template <class T, int D>
struct Reader {
  const WgmmaSpace<D>& space;
  const PrefillParams& p;
  const QueryTile& tile;
  int group;  // 0 or 1
  uint64_t q;

  __device__ void free(SharedBarrier& barrier) const {
    if (threadIdx.x % kWarp == 0) barrier.arrive();
  }
  __device__ void start_scores(float (&s)[kColumns / 8][4], int stage) const {
    const uint64_t k = tile_descriptor(space.k(stage), 128 * kColumns);
    pin(s);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const int at = i / 4 * 128 * kColumns + i % 4 * 32;  // 16 channels on
      multiply_tiles<T>(s, advance(q, at), advance(k, at), i > 0);
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

  __device__ void run() const {
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
    b.k_full[0].wait(0);
    start_scores(s, 0);
    wgmma_wait<0>();
    pin(s);
    free(b.k_free[0]);
    soften_tile(0);
    round_all(a, s);
    for (int j = 1; j < tiles; ++j) {
      const int stage = j % kStages, before = (j - 1) % kStages;
      b.k_full[stage].wait(j / kStages % 2);
      start_scores(s, stage);
      b.v_full[before].wait((j - 1) / kStages % 2);
      start_values(acc, a, before);
      wgmma_wait<1>();
      pin(s);
      free(b.k_free[stage]);
      const bool rises = soften_tile(j);
      wgmma_wait<0>();
      pin(acc);
      free(b.v_free[before]);
      if (rises) {
#pragma unroll
        for (int g = 0; g < D / 8; ++g) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[g][i] *= factor[i / 2];
        }
      }
      round_all(a, s);
    }
    b.v_full[(tiles - 1) % kStages].wait((tiles - 1) / kStages % 2);
    start_values(acc, a, (tiles - 1) % kStages);
    wgmma_wait<0>();
    pin(acc);
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
  extern __shared__ char unaligned[];
  const PrefillChunk chunk = p.chunks[blockIdx.x / p.tiles];
  QueryTile tile = query_tile<kRows>(p, chunk);
  if (tile.empty()) return;
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(unaligned));
  const WgmmaSpace<D> space{unaligned + (1024 - at % 1024) % 1024};
  if (threadIdx.x == 0) {
    Barriers& b = space.barriers();
    for (int i = 0; i < kStages; ++i) {
      b.k_full[i].init(kGroup);
      b.v_full[i].init(kGroup);
      b.k_free[i].init(2 * kGroup / kWarp);  // each reading warp arrives once
      b.v_free[i].init(2 * kGroup / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  load_query_tile(space, p, tile);
  make_list(space.numbers(), reinterpret_cast<float*>(space.numbers() + p.list_rows), tile, p,
            chunk);
  wait_for_copies<0>();
  publish_to_products();
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group == 0) {
    give_registers<40>();
    gather(space, p, tile.kv_head, (tile.rows() + kColumns - 1) / kColumns);
  } else {
    take_registers<232>();
    const uint64_t q = advance(tile_descriptor(space.q(), 128 * kRows), (group - 1) * 64 * 128);
    Reader<T, D>{space, p, tile, group - 1, q}.run();
  }
#else
  asm volatile("trap;");  // prefill_chunks() never launches it elsewhere
#endif
}

template <class T, int D>
void launch(const PrefillCall& call, cudaStream_t stream) {
  const PrefillParams p = prefill_params(call, kRows, kColumns);
  const auto kernel = wgmma_kernel<T, D>;
  const size_t bytes = WgmmaSpace<D>::bytes(p.list_rows);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "prefill attention's shared memory");
  const dim3 grid(call.chunk_count * p.tiles, call.query_heads / p.pack);
  kernel<<<grid, kThreads, bytes, stream>>>(p);
  check(cudaGetLastError(), "prefill attention");
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
