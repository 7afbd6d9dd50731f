#pragma once
// The attention mass of one query over dense rows and, where a codec brings a reader of its keys,
// coded ones (see mass.h).

#include "attend/cuda/decode_groups.h"
#include "attend/cuda/decode_parts.cuh"
#include "attend/cuda/dense_tile.cuh"
#include "attend/cuda/mass.h"
#include "attend/cuda/merge.cuh"
#include "attend/cuda/variant.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {

// Few warps per block: in a batch there is one for each KV head of each call, and all are at work
// at once.
inline constexpr int kTokenThreads = 128;
inline constexpr int kTokenBlocks = 192;  // a KV head, at most

struct TokenParams {
  const void* q;
  const float* log_sum;
  const MassTarget* target;
  int group;
  SoftCap cap;                  // of scores to base 2
  const void* table = nullptr;  ///< as DecodeCall's
};
/// The arguments of a launch, of one call or, along z, of several.
struct PlacedMass : PlacedParams {
  size_t target_at, targets_apart;
  int group;
  SoftCap cap;
  const void* table;

  __device__ TokenParams here() const {
    const DecodePlace& own = places ? places[blockIdx.z] : place;
    const size_t at = target_at + blockIdx.x * targets_apart;
    return {own.q,
            own.log_sum,
            reinterpret_cast<const MassTarget*>(static_cast<const char*>(own.note) + at),
            group,
            cap,
            table};
  }
};
inline PlacedMass placed_mass(const TokenMass& call, const MassTarget* target,
                              const void* table = nullptr) {
  PlacedMass placed{};
  placed.place.q = call.q;
  placed.place.log_sum = const_cast<float*>(call.log_sum);
  placed.place.note = target;
  placed.targets_apart = call.targets_apart;
  placed.group = call.shape.query_heads / call.shape.kv_heads;
  placed.cap = SoftCap::of_log2(call.shape.soft_cap);
  placed.table = table;
  return placed;
}
/// Now, or with others like it. Grid: heads, blocks; kernels of PlacedMass take any number of
/// those, and get as many as the card has room for at once.
template <class Params>
void launch_mass(void (*kernel)(Params), LaunchShape shape, Params params, const TokenMass& mass,
                 cudaStream_t stream) {
  constexpr const char* kWhat = "attention mass";
  constexpr bool kPlaced = std::is_base_of_v<PlacedParams, Params>;
  DecodeGroups* groups = mass.company.groups;
  const DecodeGroups::Call call{late_kernel(kernel), kWhat,    shape,
                                mass.company.place,  &dim3::z, kPlaced};
  if constexpr (kPlaced) {
    if (groups) {
      params.target_at = mass.target_at;
      return groups->add(call, params);
    }
    shape.grid.y = blocks_in_room(call, 1);
  } else if (groups) {
    return groups->add_alone(call, params);
  }
  launch_early(kernel, shape, params, stream, kWhat);
}

inline constexpr int kTogether = 4;  // queries, while a coded row is at hand: a number of each

__device__ inline void add_times(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor;
  sum.y += x.y * factor;
  sum.z += x.z * factor;
  sum.w += x.w * factor;
}
/// The probabilities that queries first, ... of a head give a row; `scores` are to base 2.
__device__ inline float sum_of_four(const TokenParams& p, int head, int first,
                                    const float4& scores) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kTogether; ++j) {
    const int h = first + j;
    if (h >= p.group) break;
    const float log_sum = p.log_sum[head * p.group + h] * kLog2e;
    sum += exp2_fast(p.cap(reinterpret_cast<const float*>(&scores)[j]) - log_sum);
  }
  return sum;
}

/// Where dense row `row` stands in the mass.
__device__ inline int mass_index(const MassTarget& target, int row) {
  return row < target.coded_from ? row : row + target.coded;
}

template <class T>
__device__ inline void widen(float (&to)[8], const uint4& from) {
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = to_float(reinterpret_cast<const T*>(&from)[i]);
}

/// Logarithms, to base 2, of the denominators of a head's queries first + 2 c and the next:
/// infinite past the last, which gives nothing.
__device__ inline float2 log_sums_of(const TokenParams& p, int head, int first) {
  const auto at = [&](int query) {
    return query < p.group ? p.log_sum[head * p.group + query] * kLog2e : INFINITY;
  };
  const int own = first + 2 * (static_cast<int>(threadIdx.x) % 4);
  return {at(own), at(own + 1)};
}
/// Of a tile's rows 8 i + r lane 4 r + c has row 8 c + r: none if that is past the tile's last.
__device__ inline int row_of_lane() {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return lane % 4 * 8 + lane / 4;
}
/// The probabilities that queries give the lane's row; `s`: a tile's scores, to base 2.
template <int M>
__device__ inline float mass_of_lane(float (&s)[M][4], const float2& log_sums, const SoftCap& cap) {
  float own = 0;
  cap.apply(s);
#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    const float* both = &s[i / 2][i % 2 * 2];
    const float sum =
        sum_over_columns(exp2_fast(both[0] - log_sums.x) + exp2_fast(both[1] - log_sums.y));
    if (static_cast<int>(threadIdx.x) % 4 == i) own = sum;
  }
  return own;
}

/// Queries [queries, D] as operands, as they are: times a scale they would be rounded once more.
template <class T, int D>
__device__ inline typename DenseTiles<T, D>::Query read_queries(const T* q, int queries) {
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  typename DenseTiles<T, D>::Query out;
#pragma unroll
  for (int j = 0; j < D / 32; ++j) {
    uint4 x{};
    if (r < queries) x = reinterpret_cast<const uint4*>(q + r * D + 32 * j)[c];
    out.b[2 * j][0] = x.x, out.b[2 * j][1] = x.y;
    out.b[2 * j + 1][0] = x.z, out.b[2 * j + 1][1] = x.w;
  }
  return out;
}

/// Rows of one KV head, 16 of them a warp.
template <class T, int D>
__device__ inline void add_dense_mass(const TokenParams& p, const MassTarget& target) {
  using Tiles = DenseTiles<T, D>;
  constexpr int kWarps = kTokenThreads / kWarp;
  const int head = blockIdx.x;
  DeviceSpan span;
  span.keys = static_cast<const T*>(target.keys) + target.keys_at(head, D);
  span.rows = target.count(head);
  span.row_stride = D;
  const int begin = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int tiles = (span.rows + Tiles::kRows - 1) / Tiles::kRows;
  if (begin >= tiles) return;
  const float scale = kLog2e * rsqrtf(static_cast<float>(D));
  float* mass = target.mass + target.mass_at(head);
  for (int first = 0; first < p.group; first += kQueries) {
    const T* q = static_cast<const T*>(p.q) + (head * p.group + first) * D;
    const auto query = read_queries<T, D>(q, min(kQueries, p.group - first));
    const float2 log_sums = log_sums_of(p, head, first);
    for (int t = begin; t < tiles; t += kWarps * static_cast<int>(gridDim.y)) {
      typename Tiles::Tile tile;
      Tiles::load_keys(tile, span, t);
      const int row = t * Tiles::kRows + row_of_lane(), at = mass_index(target, row);
      const bool own = row_of_lane() < Tiles::kRows && row < span.rows;
      const float before = own && (first > 0 || at < target.known) ? mass[at] : 0;
      float s[1][4];
      Tiles::scores(s, tile, query);
#pragma unroll
      for (float& score : s[0]) score *= scale;
      const float more = mass_of_lane(s, log_sums, p.cap);
      if (own) mass[at] = before + more;
    }
  }
}

/// A reader of coded keys: none.
struct NoCodedMass {
  /// Blocks on a multiprocessor, for heads of so many channels.
  static constexpr int resident(int dim) { return dim > 128 ? 4 : 6; }
  template <class T, int D>
  static __device__ void add(const TokenParams&, const MassTarget&, float*) {}
  template <int D>
  static constexpr size_t kSharedBytes = 0;
};

/// Keys whose scores are those of attention: a warp takes a block of 32 rows. `Codec` has them as
/// Keys<D>, and says how many blocks a multiprocessor holds.
template <class Codec>
struct BlockKeyMass {
  static constexpr int kWarps = kTokenThreads / kWarp;
  static constexpr int resident(int dim) { return Codec::resident(dim); }
  template <int D>
  using Keys = typename Codec::template Keys<D>;
  /// Eight queries in f32, and what the keys make of them.
  template <int D>
  static constexpr size_t kSharedBytes = sizeof(float) * kQueries* D + Keys<D>::kQueryBytes;

  /// Of so many queries, from `first` on; all threads call it.
  template <class T, int D>
  static __device__ void prepare(const TokenParams& p, float* shared, int first, int queries) {
    const T* q = static_cast<const T*>(p.q) + static_cast<size_t>(blockIdx.x) * p.group * D;
    if (first > 0) __syncthreads();  // the queries before are done with
    load_queries<T, D>(shared, q + first * D, queries, kLog2e * rsqrtf(static_cast<float>(D)));
    __syncthreads();
    char* made = reinterpret_cast<char*>(shared + kQueries * D);
    Keys<D>::prepare(made, shared, queries, p.table, Keys<D>::ask(p.table));
    __syncthreads();
  }

  template <class T, int D>
  static __device__ void add(const TokenParams& p, const MassTarget& target, float* shared) {
    // Dense rows begin at the first block of the grid, coded ones at the last.
    const int blocks = static_cast<int>(gridDim.y), head = blockIdx.x;
    const int begin = (blocks - 1 - static_cast<int>(blockIdx.y)) * kWarps;
    const int coded = target.coded_count(head), tiles = (coded + kBlockRows - 1) / kBlockRows;
    if (begin >= tiles) return;
    const size_t first_block = target.first_block(head);
    const auto* codes = static_cast<const char*>(target.codes) + first_block * Keys<D>::kCodeBytes;
    const auto* sides =
        static_cast<const char*>(target.code_side) + first_block * Keys<D>::kSideBytes;
    float* mass = target.mass + target.mass_at(head) + target.coded_from;
    for (int first = 0; first < p.group; first += kQueries) {
      prepare<T, D>(p, shared, first, min(kQueries, p.group - first));
      const char* made = reinterpret_cast<const char*>(shared + kQueries * D);
      const typename Keys<D>::Query query = Keys<D>::load_query(made, {});
      const float2 log_sums = log_sums_of(p, head, first);
      for (int t = begin + static_cast<int>(threadIdx.x) / kWarp; t < tiles; t += kWarps * blocks) {
        const int row = t * static_cast<int>(kBlockRows) + row_of_lane();
        const bool more = first > 0 || target.coded_from + row < target.known;
        const float before = row < coded && more ? mass[row] : 0;
        float s[2][4];
        Keys<D>::scores(s, codes + static_cast<size_t>(t) * Keys<D>::kCodeBytes,
                        sides + static_cast<size_t>(t) * Keys<D>::kSideBytes, query);
        const float own = mass_of_lane(s, log_sums, p.cap);
        if (row < coded) mass[row] = before + own;
      }
    }
  }
};

template <class T, int D, class Coded>
__global__ void __launch_bounds__(kTokenThreads, Coded::resident(D))
    token_mass_kernel(const __grid_constant__ PlacedMass placed) {
  auto* shared_queries = launched_shared<float>();
  let_successor_start();
  const TokenParams p = placed.here();
  const MassTarget target = *p.target;  // there since the step began
  wait_for_predecessor();
  add_dense_mass<T, D>(p, target);
  Coded::template add<T, D>(p, target, shared_queries);
}

template <class T, int D, class Coded>
void launch_token(const TokenMass& call, const MassTarget* target, cudaStream_t stream,
                  const void* table = nullptr) {
  const LaunchShape shape{dim3(call.shape.kv_heads, kTokenBlocks), dim3(kTokenThreads),
                          Coded::template kSharedBytes<D>};
  launch_mass(token_mass_kernel<T, D, Coded>, shape, placed_mass(call, target, table), call,
              stream);
}

}  // namespace pith::cuda
