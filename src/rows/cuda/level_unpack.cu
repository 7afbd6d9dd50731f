// Rows of levels back to dense ones, moved between blocks, and their attention mass.

#include <algorithm>
#include <type_traits>

#include "attend/cuda/mass_token.cuh"
#include "kernels/cuda/in_groups.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "rows/cuda/level_scores.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

/// A head's records.
__device__ inline const char* records_of(const PlacedSide& f, const void* records, size_t stride,
                                         int head) {
  return static_cast<const char*>(records) + head * stride * f.record_bytes;
}

/// Places that one launch takes.
constexpr size_t kPlaces = 32;
struct UnpackParams {
  PlacedSide side;
  UnpackRowsCall of[kPlaces];
};

/// 16 rows of 16 bits.
template <class T, class Row, int D>
__device__ inline void unpack_rows(T* to, const char* rows) {
  for (int i = threadIdx.x % kWarp; i < kBuiltRows * D; i += kWarp) {
    const float x = to_float(reinterpret_cast<const Row*>(rows)[i]);
    to[i] = from_float<T>(std::is_same_v<T, __half> ? within_f16(x) : x);
  }
}

/// Blocks (block of 32 rows, head, place); a warp takes 16 rows.
template <class T, int D, LevelForm kForm>
__global__ void __launch_bounds__(2 * kWarp)
    unpack_kernel(const __grid_constant__ UnpackParams params) {
  using Builder = LevelBuilder<D, kForm>;
  using Lane = LevelLane<D>;
  auto* right = launched_shared<char>();  // [r, D] f16
  __shared__ __align__(16) __half built[2][kBuiltRows * D];
  __shared__ __half2 table[kPairTable];
  const PlacedSide& f = params.side;
  const UnpackRowsCall& p = params.of[blockIdx.z];
  if (static_cast<int>(blockIdx.x) >= p.blocks || static_cast<int>(blockIdx.y) >= p.heads) return;
  const int head = blockIdx.y, block = blockIdx.x, first_row = threadIdx.x / kWarp * kBuiltRows;
  const int side_stride = f.at.side, share = f.at.share_bytes;
  const size_t first = head * p.block_stride;  // of the head's blocks
  const char* sides = static_cast<const char*>(p.side) + first * side_stride;
  const char* group = sides + block / f.group_blocks * f.group_blocks * side_stride;
  for (int i = threadIdx.x * 16; i < share * f.group_blocks; i += blockDim.x * 16) {
    *reinterpret_cast<uint4*>(right + i) =
        *reinterpret_cast<const uint4*>(group + i / share * side_stride + f.at.share + i % share);
  }
  Builder::fill_table(table, f, head);
  __syncthreads();
  const LevelBlock parts{static_cast<const char*>(p.codes) + (first + block) * f.code_bytes(D),
                         sides + block * side_stride, right,
                         records_of(f, p.records, p.record_stride, head)};
  __half* mine = built[threadIdx.x / kWarp];
  const Builder builder{f, table, head};
  T* out = static_cast<T*>(p.out) + head * p.head_stride +
           static_cast<size_t>(kBlockRows * block + first_row) * D;
  if (f.bits == 16) {  // what bf16 has and f16 has not is for rows of bf16 to keep
    const char* rows = parts.codes + first_row * D * 2;
    return f.bf16 ? unpack_rows<T, __nv_bfloat16, D>(out, rows)
                  : unpack_rows<T, __half, D>(out, rows);
  }
  builder.build(mine, D, parts, first_row, p.position + kBlockRows * block + first_row);
  for (int row = 0; row < kBuiltRows; ++row) {
    float x[Lane::kMine];
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) x[e] = __half2float(mine[row * D + Lane::channel(e)]);
    if (f.meets_rotated()) Lane::turn_back(x, f.flips);
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) out[row * D + Lane::channel(e)] = from_float<T>(x[e]);
  }
}

struct MoveParams {
  PlacedSide side;
  bool keys;
  MoveCodesCall of[kPlaces];
};

/// `bytes` of one row; from a null pointer: zeros.
__device__ inline void move_bytes(char* to, const char* from, int bytes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (bytes % 2 > 0) {
    for (int i = lane; i < bytes; i += kWarp) to[i] = from ? from[i] : char{0};
    return;
  }
  for (int i = lane * 2; i < bytes; i += kWarp * 2) {
    *reinterpret_cast<uint16_t*>(to + i) =
        from ? *reinterpret_cast<const uint16_t*>(from + i) : uint16_t{0};
  }
}

/// A row of a block of codes in fragments.
struct FragmentRow {
  char* codes;  ///< of the block; null: zeros
  int row;
};
__device__ inline void move_fragments(const PlacedSide& f, int dim, const FragmentRow& to,
                                      const FragmentRow& from) {
  const bool keys = f.order == LevelOrder::kKeyFragments;
  for (int i = 0; i < layout::code_parts(f.bits, false); ++i) {
    const CodePart part = layout::code_part(f.bits, i, false);
    const int first = 4 * layout::words_before(f.bits, i, dim);
    for (int at = threadIdx.x % kWarp; at < dim * part.width / 8; at += kWarp) {
      const auto place = [&](int row) {
        return first + layout::fragment_byte(keys, row, at, dim, part);
      };
      to.codes[place(to.row)] = from.codes ? from.codes[place(from.row)] : char{0};
    }
  }
}

/// Blocks (rows, head, place); a warp takes a row.
__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ MoveParams p) {
  const MoveCodesCall& c = p.of[blockIdx.z];
  const PlacedSide& f = p.side;
  const int dim = c.head_dim, head = blockIdx.y;
  if (head >= c.heads || c.count == 0) return;
  const int row =
      c.first + static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= (c.first_block() + c.blocks()) * kBlockRows) return;
  const int from = c.source(head, row);
  const int code_row = f.row_bytes(dim), side_stride = f.at.side;
  const auto block_at = [&](const CodeBlocks& blocks, int at) {
    auto* codes = static_cast<char*>(p.keys ? blocks.key_codes : blocks.value_codes);
    return codes + (head * blocks.stride + at / kBlockRows) * f.code_bytes(dim);
  };
  const auto code_at = [&](const CodeBlocks& blocks, int at) {
    return block_at(blocks, at) + at % kBlockRows * code_row;
  };
  const auto side_at = [&](const CodeBlocks& blocks, int at) {
    auto* sides = static_cast<char*>(p.keys ? blocks.key_side : blocks.value_side);
    return sides + (head * blocks.stride + at / kBlockRows) * side_stride;
  };
  if (f.order == LevelOrder::kRows) {
    move_bytes(code_at(c.to, row), from < 0 ? nullptr : code_at(c.from, from), code_row);
  } else {
    move_fragments(f, dim, {block_at(c.to, row), row % kBlockRows},
                   {from < 0 ? nullptr : block_at(c.from, from), from % kBlockRows});
  }
  const auto move_part = [&](int part, int bytes) {
    move_bytes(side_at(c.to, row) + part + row % kBlockRows * bytes,
               from < 0 ? nullptr : side_at(c.from, from) + part + from % kBlockRows * bytes,
               bytes);
  };
  const int of_row = f.at.scales / kBlockRows * f.scale_bytes();
  move_part(0, of_row);
  if (f.minima) move_part(f.at.minima, of_row);
  move_part(f.at.apart, 2 * f.apart);
  move_part(f.at.channels, f.apart);
  if (!f.centred) move_part(f.at.left, 2 * f.rank);
  if (f.record_bytes > 0) move_part(f.at.numbers, 4);
  if (f.positions) move_part(f.at.positions, 4);
}

/// The mass of coded keys, a warp 16 rows.
struct MassParams : PlacedMass {
  PlacedSide keys;
};
template <int D>
inline constexpr int kMassWarps = D > 128 ? 2 : kWarps;  // as shared memory allows
template <class T, int D, LevelForm kForm>
__global__ void __launch_bounds__(kMassWarps<D>* kWarp)
    level_mass_kernel(const __grid_constant__ MassParams params) {
  constexpr int kWarps = kMassWarps<D>, kThreads = kWarps * kWarp;
  __shared__ __align__(16) __half built[kWarps][kBuiltRows * kBuiltKeyStride<D>];
  __shared__ __half2 table[kPairTable];
  __shared__ float q[kDecodeQueries * D], turned[kDecodeQueries * D];
  __shared__ uint4 operands[D];
  let_successor_start();
  const TokenParams p = params.here();
  const MassTarget target = *p.target;  // there since the step began
  wait_for_predecessor();
  const int head = blockIdx.x, warp = threadIdx.x / kWarp;
  const int begin = (static_cast<int>(blockIdx.y) * kWarps + warp) * kBuiltRows;
  const int coded = target.coded_count(head);
  if (static_cast<int>(blockIdx.y) * kWarps * kBuiltRows >= coded) return;
  const PlacedSide& f = params.keys;
  float* mass = target.mass + target.mass_at(head);
  const LevelBuilder<D, kForm> builder{f, table, head};
  builder.fill_table(table, f, head);
  const int step = kBuiltRows * kWarps * static_cast<int>(gridDim.y);
  const float scale = kLog2e * rsqrtf(static_cast<float>(D));
  for (int query = 0; query < p.group; query += kDecodeQueries) {
    const int queries = min(kDecodeQueries, p.group - query);
    const size_t first_query = static_cast<size_t>(head) * p.group + query;
    const T* from = static_cast<const T*>(p.q) + first_query * D;
    __syncthreads();
    for (int i = threadIdx.x; i < kDecodeQueries * D; i += kThreads) {
      q[i] = i < queries * D ? to_float(from[i]) * scale : 0;
    }
    __syncthreads();
    if (f.meets_rotated()) rotate_queries<D>(turned, q, LevelLane<D>::flips_of(f.flips));
    __syncthreads();
    if (warp == 0) write_operands<D>(operands, f.meets_rotated() ? turned : q);
    __syncthreads();
    const float2 log_sums = log_sums_of(p, head, query);
    for (int first = begin; first < coded; first += step) {
      const size_t block = target.first_block(head) + first / kBlockRows;
      const LevelBlock parts{
          static_cast<const char*>(target.codes) + block * f.code_bytes(D),
          static_cast<const char*>(target.code_side) + block * f.at.side, nullptr,
          records_of(f, target.records, target.record_stride, static_cast<int>(target.own(head)))};
      builder.build(built[warp], kBuiltKeyStride<D>, parts, first % kBlockRows, 0);
      float s[1][4];
      score_built<D>(s, built[warp], operands);
      const float own = mass_of_lane(s, log_sums, p.cap);
      const int row = first + row_of_lane(), at = target.coded_from + row;
      if (row_of_lane() >= kBuiltRows || row >= coded) continue;
      mass[at] = query > 0 || at < target.known ? mass[at] + own : own;
    }
  }
}

}  // namespace

void unpack_levels(const LevelSide& side, std::span<const UnpackRowsCall> calls,
                   cudaStream_t stream) {
  in_groups(calls, kPlaces, [&](std::span<const UnpackRowsCall> some) {
    const UnpackRowsCall& any = some.front();
    with_rows_of<256>(any.dtype, any.head_dim, [&]<class T, int D>() {
      UnpackParams params{{side, D}, {}};
      std::ranges::copy(some, params.of);
      const dim3 grid = grid_of(some, [](const UnpackRowsCall& call) { return call.blocks; });
      const auto kernel =
          for_form<D>(side.form(), [&]<LevelForm kForm>() { return unpack_kernel<T, D, kForm>; });
      const size_t share = static_cast<size_t>(params.side.at.share_bytes) * side.group_blocks;
      if (grid.x > 0)
        launch_kernel(kernel, {grid, 2 * kWarp, share}, stream, "unpacking rows of levels", params);
    });
  });
}

void move_level_rows(const LevelSide& side, bool keys, std::span<const MoveCodesCall> calls,
                     cudaStream_t stream) {
  in_groups(calls, kPlaces, [&](std::span<const MoveCodesCall> some) {
    MoveParams params{{side, some.front().head_dim}, keys, {}};
    std::ranges::copy(some, params.of);
    const dim3 grid = grid_of(some, [](const MoveCodesCall& call) {
      return call.count > 0 ? (call.blocks() * kBlockRows + kWarps - 1) / kWarps : 0;
    });
    if (grid.x > 0)
      launch_kernel(move_kernel, {grid, kThreads}, stream, "moving rows of levels", params);
  });
}

void add_level_mass(const LevelSide& keys, const TokenMass& call, const MassTarget* target,
                    cudaStream_t stream) {
  add_token_mass(call, target, stream);
  with_rows_of<256>(call.shape.dtype, call.shape.head_dim, [&]<class T, int D>() {
    const LaunchShape shape{dim3(call.shape.kv_heads, kTokenBlocks), dim3(kMassWarps<D> * kWarp),
                            0};
    const auto kernel =
        for_form<D>(keys.form(), [&]<LevelForm kForm>() { return level_mass_kernel<T, D, kForm>; });
    const MassParams params{placed_mass(call, target), {keys, D}};
    launch_mass(kernel, shape, params, call, stream);
  });
}

}  // namespace pith::cuda
