// CSR coding on the GPU (matching pursuit and orthogonal matching pursuit from correlations alone,
// as in pursuit.h). A thread block takes 32 rows of one head: their correlations with all atoms are
// one product on the tensor cores, each warp holding its atoms in registers for all its blocks;
// then a warp follows a row, lanes sharing the atoms. Keys that are coded before RoPE are turned
// back in f32 and multiplied as sums of two f16 numbers.
// Cost a row and chunk: 2 N d operations for the correlations, N a step for the residual's, whose
// row of the Gram matrix comes from L1 or L2; omp N k more at step k.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/turn.cuh"
#include "methods/codecs/csr/csr_pairs.cuh"
#include "methods/codecs/csr/csr_pursuit.cuh"

namespace pith::cuda {
namespace {

constexpr int kRows = 32;

struct CodeParams {
  CodeJob job;
  bool bf16;
  int dim;              // D
  const double* turns;  // [D/2] or null
  int blocks;           // of 32 rows per head
  CsrAtoms atoms;
  CsrLayout layout;
  int step_pairs;  // of a chunk
  int together;    // chunks that a thread block codes: 1, or all where they share a scale
  int followers;   // warps that follow rows: as many as have room
};

/// Where a block's numbers lie in shared memory.
template <int d, int kWide>
struct CodeSpace {
  static constexpr int kStride = kWide + 8;  // of correlations: quads of lanes in different banks
  static constexpr int kRowStride = d + 8;
  static constexpr size_t kBytes =
      sizeof(float) * kRows * (kStride + 1) + 2 * sizeof(__half) * kRows * kRowStride;

  char* shared;

  __device__ float* correlations() const { return reinterpret_cast<float*>(shared); }
  __device__ __half* rows(int part) const {  // [2][32, kRowStride]: what f16 holds, and the rest
    return reinterpret_cast<__half*>(correlations() + kRows * kStride) + part * kRows * kRowStride;
  }
  __device__ float* inverse() const { return reinterpret_cast<float*>(rows(2)); }
  __device__ float* of_warp(int warp, int pairs) const {  // [pairs, kWide] each
    return inverse() + kRows + static_cast<size_t>(warp) * pairs * kWide;
  }
  /// [32, pairs] words of rows whose pairs are packed when all chunks' are known.
  __device__ uint32_t* words(const CodeParams& p, bool orthogonal) const {
    return reinterpret_cast<uint32_t*>(of_warp(orthogonal ? p.followers : 0, p.step_pairs));
  }
};

/// The rows of a block that a warp puts into shared memory, 16 bits as stored: asked for while the
/// block before is worked on.
template <int d, int kWarps>
struct RowsAhead {
  static constexpr int kMine = (d + kWarp - 1) / kWarp, kPer = kRows / kWarps;
  uint16_t x[kPer][kMine];

  /// Row warp + i kWarps of the block, channels 32 j + lane of the chunk.
  __device__ void ask(const uint16_t* block, int dim) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        const int c = j * kWarp + lane;
        x[i][j] = c < d ? block[(warp + i * kWarps) * dim + c] : 0;
      }
    }
  }
};

__device__ inline float number_of(uint16_t x, bool bf16) {
  return bf16 ? __uint_as_float(static_cast<uint32_t>(x) << 16) : __half2float(__ushort_as_half(x));
}

/// x <- a row before RoPE put it at `position`; lanes have channels 32 j + lane of a chunk that
/// begins at `channel`. `row` [D] is where it is stored.
template <int d>
__device__ inline void turn_back(float (&x)[(d + kWarp - 1) / kWarp], const CodeParams& p,
                                 const uint16_t* row, int channel, int64_t position) {
  constexpr int kMine = (d + kWarp - 1) / kWarp;
  const int lane = threadIdx.x % kWarp, half = p.dim / 2;
  float other[kMine];
#pragma unroll
  for (int j = 0; j < kMine; ++j) {  // the channel's partner: this lane's, if the chunk is all
    const int c = channel + j * kWarp + lane;
    other[j] = x[(j + kMine / 2) % kMine];
    if (d != p.dim && c - channel < d) {
      other[j] = number_of(row[c < half ? c + half : c - half], p.bf16);
    }
  }
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    const int c = channel + j * kWarp + lane;
    const float2 angle = turn_at(p.turns[c % half], position);
    x[j] = fmaf(x[j], angle.x, (c < half ? other[j] : -other[j]) * angle.y);
  }
}

/// Rows of a block as f16 in shared memory, each times a power of two that brings bf16 numbers into
/// f16's range; inverse[32] takes it back. Exact but for numbers 2^-24 of the largest; of rotated
/// rows the rest is kept apart.
template <int d, int kWide, int kWarps>
__device__ inline void stage_rows(const CodeSpace<d, kWide>& space, const CodeParams& p,
                                  const RowsAhead<d, kWarps>& rows, const uint16_t* block,
                                  int channel, int first) {
  using Ahead = RowsAhead<d, kWarps>;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < Ahead::kPer; ++i) {
    const int row = threadIdx.x / kWarp + i * kWarps;
    float x[Ahead::kMine], most = 0;
#pragma unroll
    for (int j = 0; j < Ahead::kMine; ++j) x[j] = number_of(rows.x[i][j], p.bf16);
    if (p.turns) {
      turn_back<d>(x, p, block + row * p.dim, channel,
                   p.job.positions.of(static_cast<int>(blockIdx.y), first + row));
    }
#pragma unroll
    for (int j = 0; j < Ahead::kMine; ++j) most = fmaxf(most, fabsf(x[j]));
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    // 2^(10 - exponent of the largest); 1 where there is nothing to scale.
    const int exponent = static_cast<int>(__float_as_uint(most) >> 23);
    const int raise = most > 0 && exponent > 20 && exponent < 240 ? 264 - exponent : 127;
    const float scale = __uint_as_float(static_cast<uint32_t>(raise) << 23);
    if (lane == 0) space.inverse()[row] = __uint_as_float(static_cast<uint32_t>(254 - raise) << 23);
#pragma unroll
    for (int j = 0; j < Ahead::kMine; ++j) {
      const int c = j * kWarp + lane;
      if (c >= d) continue;
      const __half near = __float2half_rn(x[j] * scale);
      space.rows(0)[row * space.kRowStride + c] = near;
      if (p.turns) {
        space.rows(1)[row * space.kRowStride + c] =
            __float2half_rn(fmaf(x[j], scale, -__half2float(near)));
      }
    }
  }
}

/// sums += rows 16 m + .. of a part times this warp's atoms.
template <int d, int kTiles>
__device__ inline void multiply_rows(float (&sums)[kTiles][4], const __half* rows, int m,
                                     const uint32_t (&b)[kTiles][d / 16][2]) {
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  const auto* top = reinterpret_cast<const uint32_t*>(rows + (16 * m + r) * (d + 8));
  const auto* low = reinterpret_cast<const uint32_t*>(rows + (16 * m + r + 8) * (d + 8));
#pragma unroll
  for (int s = 0; s < d / 16; ++s) {
    const uint32_t a[4] = {top[8 * s + c], low[8 * s + c], top[8 * s + c + 4], low[8 * s + c + 4]};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      mma<__half>(sums[t], a[0], a[1], a[2], a[3], b[t][s][0], b[t][s][1]);
    }
  }
}

/// d: of an atom. kWide: atoms rounded up to 256 or 512. Matching pursuit waits for one number
/// after the other: as many rows are followed at once as registers allow.
template <int d, int kWide, bool kOrthogonal>
struct CodeKernel {
  static constexpr int kWarps = kWide == 256 && !kOrthogonal ? 32 : 16;
};

/// Correlations of the staged rows with this warp's atoms.
template <int d, int kWide, int kTiles>
__device__ inline void correlate(const CodeSpace<d, kWide>& space, bool parts,
                                 const uint32_t (&b)[kTiles][d / 16][2]) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    float sums[kTiles][4] = {};
    multiply_rows<d, kTiles>(sums, space.rows(0), m, b);
    if (parts) multiply_rows<d, kTiles>(sums, space.rows(1), m, b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * m + 8 * i + r;
      const float back = space.inverse()[row];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        *reinterpret_cast<float2*>(space.correlations() + row * space.kStride +
                                   (warp * kTiles + t) * 8 + 2 * c) =
            make_float2(sums[t][2 * i] * back, sums[t][2 * i + 1] * back);
      }
    }
  }
}

/// The pairs of a chunk of all rows: into the block's codes, or where they wait to be packed.
template <int d, int kWide, bool kOrthogonal>
__device__ inline void pursue_rows(const CodeSpace<d, kWide>& space, const CodeParams& p,
                                   const float* gram, int chunk, void* codes) {
  constexpr int kMine = kWide / kWarp;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int row = warp; row < kRows && warp < p.followers; row += p.followers) {
    float left[kMine];
    read_row(left, space.correlations() + row * space.kStride, kWide);
    Pairs chosen;
    if constexpr (kOrthogonal) {
      chosen = pursue_orthogonal(left, gram, p.atoms.count, p.step_pairs,
                                 space.of_warp(warp, p.step_pairs));
    } else {
      chosen = pursue(left, gram, p.atoms.count, p.step_pairs);
    }
    if (lane >= p.step_pairs) continue;
    const int pair = chunk * p.step_pairs + lane;
    uint32_t* to = p.layout.packed ? space.words(p, kOrthogonal) + row * p.layout.pairs + pair
                                   : static_cast<uint32_t*>(codes) + p.layout.at(row, pair);
    *to = chosen.word();
  }
}

template <int d, int kWide, bool kOrthogonal>
__global__ void __launch_bounds__(CodeKernel<d, kWide, kOrthogonal>::kWarps* kWarp, 1)
    code_kernel(const __grid_constant__ CodeParams p) {
  constexpr int kWarps = CodeKernel<d, kWide, kOrthogonal>::kWarps;
  constexpr int kTiles = kWide / (8 * kWarps), kSteps = d / 16;
  auto* shared = launched_shared<char>();
  const CodeSpace<d, kWide> space{shared};
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  const int head = blockIdx.y, first = blockIdx.z, count = p.atoms.count;
  const __half* atoms = atoms_of(p.atoms, head, d);
  const float* gram = p.atoms.gram + static_cast<size_t>(p.atoms.common ? 0 : head) * count * count;
  uint32_t b[kTiles][kSteps][2];  // this warp's atoms, the columns of B
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int atom = (warp * kTiles + t) * 8 + r;
    const auto* row = reinterpret_cast<const uint32_t*>(atoms + static_cast<size_t>(atom) * d);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      b[t][s][0] = atom < count ? row[8 * s + c] : 0;
      b[t][s][1] = atom < count ? row[8 * s + c + 4] : 0;
    }
  }
  const auto* of_head = static_cast<const uint16_t*>(p.job.x) + head * p.job.head_stride;
  const auto block_at = [&](int block) {
    return of_head + static_cast<size_t>(block) * kRows * p.dim;
  };
  RowsAhead<d, kWarps> rows;
  if (blockIdx.x < p.blocks) rows.ask(block_at(blockIdx.x) + first * d, p.dim);
  for (int block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    char* codes = static_cast<char*>(p.job.codes) +
                  (head * p.job.block_stride + block) * p.layout.block_bytes();
    for (int chunk = first; chunk < first + p.together; ++chunk) {
      stage_rows(space, p, rows, block_at(block), chunk * d, block * kRows);
      __syncthreads();
      correlate<d, kWide>(space, p.turns != nullptr, b);
      __syncthreads();
      const bool last = chunk + 1 == first + p.together;
      const int next = last ? block + static_cast<int>(gridDim.x) : block;
      if (next < p.blocks) {
        rows.ask(block_at(next) + (last ? first : chunk + 1) * d, p.dim);
      }
      pursue_rows<d, kWide, kOrthogonal>(space, p, gram, chunk, codes);
      __syncthreads();  // the next rows and correlations take these places
    }
    for (int row = warp; p.layout.packed && row < kRows; row += kWarps) {
      pack_row(codes, p.layout, row, space.words(p, kOrthogonal) + row * p.layout.pairs);
    }
  }
}

template <int d, int kWide, bool kOrthogonal>
void launch(CodeParams p, int heads, int chunks, cudaStream_t stream) {
  constexpr int kWarps = CodeKernel<d, kWide, kOrthogonal>::kWarps;
  const size_t own = kOrthogonal ? sizeof(float) * p.step_pairs * kWide : 0;  // of a warp
  size_t bytes = CodeSpace<d, kWide>::kBytes +
                 (p.layout.packed ? sizeof(uint32_t) * kRows * p.layout.pairs : 0);
  p.followers = kWarps;
  while (p.followers > 1 && bytes + p.followers * own > device_info().shared_per_block) {
    p.followers /= 2;
  }
  bytes += p.followers * own;
  const int parts = chunks / p.together;
  const int most = std::max(1, 2 * device_info().multiprocessors / (heads * parts));
  const dim3 grid(std::min(p.blocks, most), heads, parts);
  launch_kernel(code_kernel<d, kWide, kOrthogonal>, {grid, kWarps * kWarp, bytes}, stream,
                "CSR coding", p);
}

template <int d>
void launch_for(const CsrCoding& coding, const CodeParams& p, int heads, int chunks,
                cudaStream_t stream) {
  const bool omp = coding.solver == CsrSolver::kOmp;
  if (p.atoms.count <= 256) {
    omp ? launch<d, 256, true>(p, heads, chunks, stream)
        : launch<d, 256, false>(p, heads, chunks, stream);
  } else {
    omp ? launch<d, 512, true>(p, heads, chunks, stream)
        : launch<d, 512, false>(p, heads, chunks, stream);
  }
}

/// side [heads, block_stride, 32] <- positions, a row a thread.
__global__ void position_kernel(int* side, size_t block_stride,
                                const __grid_constant__ RowPositions positions) {
  const int head = blockIdx.y;
  const int row = static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x);
  side[head * block_stride * kRows + row] = static_cast<int>(positions.of(head, row));
}

}  // namespace

void code_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, const CodeBatch& batch,
              const CodeJob& job, cudaStream_t stream) {
  coding.check(batch.head_dim, atoms, atoms);
  if (batch.rows == 0) return;
  const int chunks = coding.chunks(keys);
  CodeParams p{};
  p.job = job;
  p.bf16 = batch.dtype == DType::kBF16;
  p.dim = batch.head_dim;
  p.turns = keys ? coding.turns : nullptr;
  p.blocks = batch.rows / kRows;
  p.atoms = atoms;
  p.layout = coding.layout(keys);
  p.step_pairs = coding.pairs / chunks;
  p.together = coding.packed ? chunks : 1;
  if (keys && coding.positions) {
    launch_kernel(position_kernel, {dim3(p.blocks, batch.heads), kRows}, stream,
                  "positions of CSR keys", static_cast<int*>(job.side), job.block_stride,
                  job.positions);
  }
  switch (batch.head_dim / chunks) {
    case 16: return launch_for<16>(coding, p, batch.heads, chunks, stream);
    case 32: return launch_for<32>(coding, p, batch.heads, chunks, stream);
    case 64: return launch_for<64>(coding, p, batch.heads, chunks, stream);
    default: return launch_for<128>(coding, p, batch.heads, chunks, stream);
  }
}

}  // namespace pith::cuda
