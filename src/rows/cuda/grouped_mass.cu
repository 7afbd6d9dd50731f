// The attention mass of one query over int4 and int8 keys, straight from the codes: a warp takes a
// block of 32 rows, whose scores are those of attention (grouped_tiles.cuh). Memory-bound: reads
// each key's codes once for eight query heads of a group.

#include <type_traits>

#include "attend/cuda/grouped_tiles.cuh"
#include "attend/cuda/head_walk.cuh"
#include "attend/cuda/mass_token.cuh"
#include "attend/cuda/merge.cuh"
#include "rows/cuda/grouped_code.h"
#include "rows/cuda/rotated_tiles.cuh"

namespace pith::cuda {
namespace {

template <int kBits, bool kRotated>
struct TokenKeyMass {
  static constexpr int kWarps = kTokenThreads / kWarp;
  template <int D>
  using Keys = std::conditional_t<kRotated, RotatedKeys<D, kBits>, TokenKeys<D, kBits>>;
  static constexpr int resident(int dim) { return kBits * dim > 512 ? 4 : 6; }

  static int query_blocks(int group) { return (group + kQueries - 1) / kQueries; }
  /// Queries in f32, eight at a time, and what the keys make of them.
  static size_t shared_bytes(int group, int dim) {
    const auto made =
        static_cast<size_t>(dim == 64 ? Keys<64>::kQueryBytes : Keys<128>::kQueryBytes);
    return sizeof(float) * kQueries * static_cast<size_t>(dim) +
           made * static_cast<size_t>(query_blocks(group));
  }

  /// Of all blocks of queries; all threads call it.
  template <class T, int D>
  static __device__ void prepare(const TokenParams& p, float* shared, char* made) {
    const T* q = static_cast<const T*>(p.q) + static_cast<size_t>(blockIdx.x) * p.group * D;
    const float scale = kLog2e * rsqrtf(static_cast<float>(D));
    for (int first = 0; first < p.group; first += kQueries, made += Keys<D>::kQueryBytes) {
      load_queries<T, D>(shared, q + first * D, min(kQueries, p.group - first), scale);
      __syncthreads();
      Keys<D>::prepare(made, shared, 0, nullptr, {});
      __syncthreads();
    }
  }

  template <class T, int D>
  static __device__ void add(const TokenParams& p, const MassTarget& target, float* shared) {
    // Dense rows begin at the first block of the grid, coded ones at the last.
    const int blocks = static_cast<int>(gridDim.y), head = blockIdx.x;
    const int begin = (blocks - 1 - static_cast<int>(blockIdx.y)) * kWarps;
    const int coded = target.coded_count(head), tiles = (coded + kBlockRows - 1) / kBlockRows;
    if (begin >= tiles) return;
    char* made = reinterpret_cast<char*>(shared + kQueries * D);
    prepare<T, D>(p, shared, made);
    const size_t first_block = target.first_block(head);
    const auto* codes = static_cast<const char*>(target.codes) + first_block * Keys<D>::kCodeBytes;
    const auto* sides =
        static_cast<const char*>(target.code_side) + first_block * Keys<D>::kSideBytes;
    float* mass = target.mass + target.mass_at(head) + target.coded_from;
    for (int first = 0; first < p.group; first += kQueries, made += Keys<D>::kQueryBytes) {
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

}  // namespace

void add_coded_mass(GroupedCodec keys, const TokenMass& call, const MassTarget* target,
                    cudaStream_t stream) {
  with_rows_of(call.shape.dtype, call.shape.head_dim, [&]<class T, int D>() {
    const auto launch = keys == GroupedCodec::kInt4   ? launch_token<T, D, TokenKeyMass<4, false>>
                        : keys == GroupedCodec::kInt8 ? launch_token<T, D, TokenKeyMass<8, false>>
                        : keys == GroupedCodec::kRotatedInt4
                            ? launch_token<T, D, TokenKeyMass<4, true>>
                            : launch_token<T, D, TokenKeyMass<8, true>>;
    launch(call, target, stream);
  });
}

}  // namespace pith::cuda
