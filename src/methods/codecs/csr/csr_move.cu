// CSR rows that are selected again: codes from block to block as they are, and the attention mass
// of one query over coded keys. Of keys that are coded as they are attended to it comes from the
// products of the query with all atoms; others are built and turned to their positions.
//
// Cost of a move: what moves is read and the target written once. Of the mass: s look-ups a row and
// query; N D multiply-adds per query for each 256 rows or fewer. Of rotated keys: s D multiply-adds
// and 40 D / 2 operations per row, D multiply-adds per row and query.

#include "attend/cuda/mass_token.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "methods/codecs/csr/csr_rows.cuh"

namespace pith::cuda {
namespace {

constexpr int kMoveThreads = 128, kMassThreads = 256;
constexpr int kMassBlocks = 32;  // a KV head; those past the last row return at once

/// A block 32 rows of the target, keys or values. T: what a pair is, a word or packed; then a row's
/// scale is moved as one pair more.
template <class T>
__global__ void __launch_bounds__(kMoveThreads)
    move_kernel(const __grid_constant__ MoveCodesCall call, int pairs, bool positions) {
  constexpr bool kPacked = sizeof(T) == 2;
  const int head = blockIdx.y, block = call.first_block() + static_cast<int>(blockIdx.x);
  const bool keys = blockIdx.z == 0;
  const auto block_of = [&](const CodeBlocks& blocks, int which) {
    auto* codes = static_cast<T*>(keys ? blocks.key_codes : blocks.value_codes);
    return codes + (head * blocks.stride + which) * kBlockRows * (pairs + kPacked);
  };
  const auto place = [&](int row, int pair) {
    return pair < pairs ? csr_word(keys, pairs, row, pair) : kBlockRows * pairs + row;
  };
  T* to = block_of(call.to, block);
  for (int n = threadIdx.x; n < kBlockRows * (pairs + kPacked); n += kMoveThreads) {
    const int row = n % kBlockRows, pair = n / kBlockRows;
    const int from = call.source(head, block * kBlockRows + row);
    if (from == MoveCodesCall::kStays) continue;
    T moved = 0;
    if (from >= 0) {
      moved = block_of(call.from, from / kBlockRows)[place(from % kBlockRows, pair)];
    }
    to[place(row, pair)] = moved;
  }
  if (!keys || !positions || threadIdx.x >= kBlockRows) return;
  const int row = block * kBlockRows + static_cast<int>(threadIdx.x);
  const int from = call.source(head, row);
  if (from == MoveCodesCall::kStays) return;
  static_cast<int*>(call.to.key_side)[head * call.to.stride * kBlockRows + row] =
      from < 0 ? 0
               : static_cast<const int*>(
                     call.from.key_side)[head * call.from.stride * kBlockRows + from];
}

struct MassParams {
  CsrCoding coding;
  CsrAtoms atoms;
  TokenParams token;
  CsrLayout layout;
  CsrSide side;  ///< of keys whose words are at hand
};

/// products [chunks, N] <- those of queries first, ..., side by side in q [D], with the atoms;
/// queries that are not there are 0.
template <class T, int D>
__device__ inline void multiply_atoms(float4* products, float4* q, const MassParams& p, int head,
                                      int first, const __half* atoms) {
  const int d = D / p.coding.key_chunks, count = p.atoms.count;
  const float scale = kLog2e * rsqrtf(static_cast<float>(D));
  const T* from = static_cast<const T*>(p.token.q) + static_cast<size_t>(head) * p.token.group * D;
  for (int i = threadIdx.x; i < kTogether * D; i += kMassThreads) {
    const int h = first + i / D;
    reinterpret_cast<float*>(&q[i % D])[i / D] =
        h < p.token.group ? to_float(from[h * D + i % D]) * scale : 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.coding.key_chunks * count; i += kMassThreads) {
    const float4* chunk = q + i / count * d;
    const auto* atom = reinterpret_cast<const uint4*>(atoms + static_cast<size_t>(i % count) * d);
    float4 sum{};
#pragma unroll 4
    for (int c = 0; c < d; c += 8) {
      float x[8];
      widen<__half>(x, atom[c / 8]);
#pragma unroll
      for (int j = 0; j < 8; ++j) add_times(sum, chunk[c + j], x[j]);
    }
    products[i] = sum;
  }
}

template <class T, int D>
__global__ void __launch_bounds__(kMassThreads) mass_kernel(const __grid_constant__ MassParams p) {
  auto* products = launched_shared<float4>();  // [chunks, N]
  __shared__ float4 q[D];
  let_successor_start();
  const MassTarget target = *p.token.target;  // there since the step began
  wait_for_predecessor();
  const int begin = blockIdx.y * kMassThreads;
  if (begin >= target.coded) return;
  const int head = blockIdx.x, pairs = p.coding.pairs, of_chunk = pairs / p.coding.key_chunks;
  const __half* atoms = atoms_of(p.atoms, head, D / p.coding.key_chunks);
  const size_t block_bytes = p.layout.block_bytes();
  const char* codes =
      static_cast<const char*>(target.codes) + head * target.block_stride * block_bytes;
  float* mass = target.mass + head * target.stride + target.coded_from;
  for (int first = 0; first < p.token.group; first += kTogether) {
    __syncthreads();
    multiply_atoms<T, D>(products, q, p, head, first, atoms);
    __syncthreads();
    for (int row = begin + static_cast<int>(threadIdx.x); row < target.coded;
         row += kMassThreads * kMassBlocks) {
      const char* block = codes + static_cast<size_t>(row / kBlockRows) * block_bytes;
      float4 scores{};
#pragma unroll 4
      for (int j = 0; j < pairs; ++j) {
        const uint32_t word = word_of_pair(p.layout, block, row % kBlockRows, j);
        add_times(scores, products[j / of_chunk * p.atoms.count + (word & 0xffff) / 16],
                  coefficient_of(word));
      }
      const float own = sum_of_four(p.token, head, first, scores);
      const bool more = first > 0 || target.coded_from + row < target.known;
      mass[row] = more ? mass[row] + own : own;
    }
  }
}

/// The same over keys that are rotated: a thread block 32 rows, a warp per row.
template <class T, int D>
__global__ void __launch_bounds__(kMassThreads)
    turned_mass_kernel(const __grid_constant__ MassParams p) {
  constexpr int kMostPairs = 32, kHalf = D / 2 / CsrSide::kPiece;
  __shared__ float rows[kBlockRows][D];
  __shared__ __align__(16) uint32_t codes[kBlockRows * kMostPairs];
  let_successor_start();
  const MassTarget target = *p.token.target;  // there since the step began
  wait_for_predecessor();
  const int head = blockIdx.x, lane = threadIdx.x % kWarp;
  const float scale = kLog2e * rsqrtf(static_cast<float>(D));
  float* mass = target.mass + head * target.stride + target.coded_from;
  for (int first = static_cast<int>(blockIdx.y) * kBlockRows; first < target.coded;
       first += static_cast<int>(gridDim.y) * kBlockRows) {
    const size_t block = head * target.block_stride + first / kBlockRows;
    const int* positions = static_cast<const int*>(target.code_side) + block * kBlockRows;
    __syncthreads();
    read_words(codes, p.layout,
               static_cast<const char*>(target.codes) + block * p.layout.block_bytes(),
               static_cast<int>(threadIdx.x), kMassThreads);
    __syncthreads();
    for (int i = threadIdx.x; i < kBlockRows * kHalf; i += kMassThreads) {
      const int row = i / kHalf, channel = i % kHalf * CsrSide::kPiece;
      float a[CsrSide::kPiece], b[CsrSide::kPiece];
      p.side.build_halves(a, b, codes, head, row, channel, positions[row]);
#pragma unroll
      for (int c = 0; c < CsrSide::kPiece; ++c) {
        rows[row][channel + c] = a[c];
        rows[row][channel + c + D / 2] = b[c];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x / kWarp; i < kBlockRows && first + i < target.coded;
         i += kMassThreads / kWarp) {
      float own = 0;
      for (int h = 0; h < p.token.group; ++h) {
        const size_t query = static_cast<size_t>(head) * p.token.group + h;
        const T* q = static_cast<const T*>(p.token.q) + query * D;
        float score = 0;
#pragma unroll
        for (int c = lane; c < D; c += kWarp) score += rows[i][c] * to_float(q[c]);
#pragma unroll
        for (int d = kWarp / 2; d > 0; d /= 2) score += __shfl_xor_sync(~0u, score, d);
        own += exp2_fast(p.token.cap(score * scale) - p.token.log_sum[query] * kLog2e);
      }
      const int row = first + i;
      if (lane == 0) mass[row] = target.coded_from + row < target.known ? mass[row] + own : own;
    }
  }
}

}  // namespace

void move_csr_rows(const CsrCoding& coding, const MoveCodesCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  const auto kernel = coding.packed ? move_kernel<uint16_t> : move_kernel<uint32_t>;
  launch_kernel(kernel, {dim3(call.blocks(), call.heads, 2), kMoveThreads}, stream,
                "moving CSR rows", call, coding.pairs, coding.positions);
}

void add_csr_mass(const CsrCoding& coding, const CsrAtoms& keys, const TokenMass& call,
                  const MassTarget* target, cudaStream_t stream) {
  add_token_mass(call, target, stream);
  const MassShape& shape = call.shape;
  CsrCoding words = coding;  // those that turned_mass_kernel has at hand
  words.packed = false;
  const MassParams params{coding,
                          keys,
                          {call.q, call.log_sum, target, shape.query_heads / shape.kv_heads,
                           SoftCap::of_log2(shape.soft_cap)},
                          coding.layout(true),
                          CsrSide::of(words, keys, true, shape.head_dim)};
  const size_t bytes = sizeof(float4) * static_cast<size_t>(coding.key_chunks * keys.count);
  with_rows_of(shape.dtype, shape.head_dim, [&]<class T, int D>() {
    const LaunchShape launch{dim3(shape.kv_heads, kMassBlocks), dim3(kMassThreads),
                             coding.turns ? 0 : bytes};
    const auto kernel = coding.turns ? turned_mass_kernel<T, D> : mass_kernel<T, D>;
    launch_mass(kernel, launch, params, call, stream);
  });
}

}  // namespace pith::cuda
