// CSR coding on the GPU (matching pursuit and orthogonal matching pursuit from correlations alone,
// as in pursuit.h). A thread block takes 32 rows of one head: their correlations with all atoms are
// one product on the tensor cores, each warp holding its atoms in registers for all its blocks;
// then a warp follows a row, lanes sharing the atoms.
// Cost a row and chunk: 2 N d operations for the correlations, N a step for the residual's, whose
// row of the Gram matrix comes from L1 or L2; omp N k more at step k.

#include <algorithm>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/csr/csr_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kWarps = 16, kRows = 32;
// As on the CPU: an atom that adds less (squared) to the span of those chosen adds rounding.
constexpr float kDependent = 1e-5f;

__global__ void __launch_bounds__(128)
    gram_kernel(float* gram, const __half* atoms, int count, int dim) {
  __shared__ float row[128];
  const __half* mine = atoms + static_cast<size_t>(blockIdx.y) * count * dim;
  for (int c = threadIdx.x; c < dim; c += blockDim.x) {
    row[c] = __half2float(mine[static_cast<size_t>(blockIdx.x) * dim + c]);
  }
  __syncthreads();
  float* out = gram + (static_cast<size_t>(blockIdx.y) * count + blockIdx.x) * count;
  for (int n = threadIdx.x; n < count; n += blockDim.x) {
    float sum = 0;
    for (int c = 0; c < dim; ++c) {
      sum = fmaf(row[c], __half2float(mine[static_cast<size_t>(n) * dim + c]), sum);
    }
    out[n] = sum;
  }
}

/// A warp an atom.
template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    draw_kernel(__half* atoms, const __grid_constant__ CsrDraw p) {
  const int lane = threadIdx.x % kWarp, n = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (n >= p.count) return;
  const int d = p.dim / p.chunks;
  const uint32_t part = p.parts[blockIdx.y * p.count + n];
  const T* from = static_cast<const T*>(p.rows) + blockIdx.y * p.head_stride +
                  static_cast<size_t>(part) / p.chunks * p.dim + part % p.chunks * d;
  float sum = 0;
  for (int c = lane; c < d; c += kWarp) sum += to_float(from[c]) * to_float(from[c]);
#pragma unroll
  for (int w = 16; w > 0; w /= 2) sum += __shfl_xor_sync(~0u, sum, w);
  const float norm = sqrtf(sum);
  __half* to = atoms + (static_cast<size_t>(blockIdx.y) * p.count + n) * d;
  for (int c = lane; c < d; c += kWarp) {
    to[c] = __float2half_rn(norm > 0 ? to_float(from[c]) / norm : 0);
  }
}

struct CodeParams {
  const void* x;
  size_t head_stride, row_stride, block_stride;
  int blocks;  // of 32 rows a head
  const __half* atoms;
  const float* gram;
  int count;       // N
  int pairs;       // of a whole row
  int step_pairs;  // of a chunk
  int followers;   // warps that follow rows: as many as have room
  bool keys;
  uint32_t* codes;
};

/// Word of pair j of row `row` in a block (see csr_cuda.h).
__device__ inline int word_at(bool keys, int pairs, int row, int j) {
  return keys ? (j / 4 * 32 + row) * 4 + j % 4 : (row / 4 * pairs + j) * 4 + row % 4;
}

/// The largest |x| over the warp's N numbers; lane l has numbers 128 i + 4 l + e.
template <int kMine>
struct Largest {
  int atom;
  float value;  // with its sign

  static __device__ Largest find(const float (&x)[kMine]) {
    float best = 0, mine = 0;
    int at = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (fabsf(x[i]) > best) {
        best = fabsf(x[i]);
        mine = x[i];
        at = i;
      }
    }
    const int lane = threadIdx.x % kWarp, atom = at / 4 * 128 + 4 * lane + at % 4;
    const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(best));
    const bool winner = __float_as_uint(best) == most;
    const int first =
        static_cast<int>(__reduce_min_sync(~0u, winner ? static_cast<uint32_t>(atom) : ~0u));
    return {first, __shfl_sync(~0u, mine, first % 128 / 4)};
  }
};

/// The pairs of one row: lane j has the j-th.
struct Pairs {
  int count = 0;
  int atom = -1;
  float coefficient = 0;

  __device__ uint32_t word() const {
    if (static_cast<int>(threadIdx.x % kWarp) >= count) return 0;
    const auto bits = static_cast<uint32_t>(__half_as_ushort(__float2half_rn(coefficient)));
    return bits << 16 | static_cast<uint32_t>(atom) * 16;
  }
};

template <int kMine>
__device__ inline void read_row(float (&x)[kMine], const float* row, int count) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kMine / 4; ++i) {
    const int n = 128 * i + 4 * lane;
    if (count % 4 == 0) {
      const float4 v = n < count ? *reinterpret_cast<const float4*>(row + n) : float4{0, 0, 0, 0};
      x[4 * i] = v.x;
      x[4 * i + 1] = v.y;
      x[4 * i + 2] = v.z;
      x[4 * i + 3] = v.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[4 * i + e] = n + e < count ? row[n + e] : 0;
    }
  }
}

/// Matching pursuit: an atom chosen again adds to its coefficient.
template <int kMine>
__device__ inline Pairs pursue(float (&left)[kMine], const float* gram, int count, int pairs) {
  const int lane = threadIdx.x % kWarp;
  Pairs chosen;
  for (int step = 0; step < pairs; ++step) {
    const auto best = Largest<kMine>::find(left);
    if (best.value == 0) break;
    const float* row = gram + static_cast<size_t>(best.atom) * count;
    const float coefficient = best.value / row[best.atom];
    const bool again = __any_sync(~0u, lane < chosen.count && chosen.atom == best.atom);
    if (!again && lane == chosen.count) chosen.atom = best.atom;
    if (chosen.atom == best.atom) chosen.coefficient += coefficient;
    if (!again) ++chosen.count;
    if (step + 1 == pairs) break;
    float g[kMine];
    read_row(g, row, count);
#pragma unroll
    for (int i = 0; i < kMine; ++i) left[i] = fmaf(-coefficient, g[i], left[i]);
  }
  return chosen;
}

/// Orthogonal matching pursuit. With u_k the correlations of all atoms with the k-th direction that
/// the chosen atoms add (Gram and Schmidt), the residual's correlations are D^T x - sum z_k u_k,
/// z_k being the best one's share; coefficients come from L^T c = z, L[k][j] = u_j[atom k].
/// `space` [pairs, 32 kMine] is the warp's.
template <int kMine>
__device__ inline Pairs pursue_orthogonal(float (&left)[kMine], const float* gram, int count,
                                          int pairs, float* space) {
  constexpr int kWide = kMine * kWarp;
  const int lane = threadIdx.x % kWarp;
  Pairs chosen;
  float z = 0;  // lane k has z_k
  for (int k = 0; k < pairs; ++k) {
    const auto best = Largest<kMine>::find(left);
    const bool again = __any_sync(~0u, lane < k && chosen.atom == best.atom);
    if (best.value == 0 || again) break;
    float u[kMine];
    read_row(u, gram + static_cast<size_t>(best.atom) * count, count);
    float outside = gram[static_cast<size_t>(best.atom) * count + best.atom];
    for (int j = 0; j < k; ++j) {
      const float along = space[j * kWide + best.atom];
      outside = fmaf(-along, along, outside);
      float before[kMine];
      read_row(before, space + j * kWide, kWide);
#pragma unroll
      for (int i = 0; i < kMine; ++i) u[i] = fmaf(-along, before[i], u[i]);
    }
    if (!(outside > kDependent)) break;
    const float inverse = rsqrtf(outside), share = best.value * inverse;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      u[i] *= inverse;
      left[i] = fmaf(-share, u[i], left[i]);
    }
#pragma unroll
    for (int i = 0; i < kMine / 4; ++i) {
      reinterpret_cast<float4*>(space + k * kWide)[32 * i + lane] =
          make_float4(u[4 * i], u[4 * i + 1], u[4 * i + 2], u[4 * i + 3]);
    }
    if (lane == k) {
      chosen.atom = best.atom;
      z = share;
    }
    chosen.count = k + 1;
    __syncwarp();
  }
  for (int i = chosen.count - 1; i >= 0; --i) {  // lane j keeps what is left of its equation
    const int atom = __shfl_sync(~0u, chosen.atom, i);
    const float c = __shfl_sync(~0u, z, i) / space[i * kWide + atom];
    if (lane == i) chosen.coefficient = c;
    if (lane < i) z = fmaf(-space[lane * kWide + atom], c, z);
  }
  __syncwarp();
  return chosen;
}

/// Rows of a block as f16 in shared memory, [32][d + 8], each times a power of two that brings bf16
/// numbers into f16's range; inverse[32] takes it back. Exact but for numbers 2^-24 of the largest.
template <class T, int d>
__device__ inline void stage_rows(__half* to, float* inverse, const T* from, size_t row_stride) {
  const int lane = threadIdx.x % kWarp;
  for (int row = threadIdx.x / kWarp; row < kRows; row += kWarps) {
    float x[d / kWarp], most = 0;
#pragma unroll
    for (int i = 0; i < d / kWarp; ++i) {
      x[i] = to_float(from[row * row_stride + i * kWarp + lane]);
      most = fmaxf(most, fabsf(x[i]));
    }
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    // 2^(10 - exponent of the largest); 1 where there is nothing to scale.
    const int exponent = static_cast<int>(__float_as_uint(most) >> 23);
    const int raise = most > 0 && exponent > 20 && exponent < 240 ? 264 - exponent : 127;
    const float scale = __uint_as_float(static_cast<uint32_t>(raise) << 23);
    if (lane == 0) inverse[row] = __uint_as_float(static_cast<uint32_t>(254 - raise) << 23);
#pragma unroll
    for (int i = 0; i < d / kWarp; ++i) {
      to[row * (d + 8) + i * kWarp + lane] = __float2half_rn(x[i] * scale);
    }
  }
}

/// d: of an atom. kWide: atoms rounded up to 256 or 512.
template <class T, int d, int kWide, bool kOrthogonal>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    code_kernel(const __grid_constant__ CodeParams p) {
  constexpr int kTiles = kWide / (8 * kWarps), kSteps = d / 16, kMine = kWide / kWarp;
  constexpr int kStride = kWide + 8;  // of the correlations: quads of lanes in different banks
  extern __shared__ __align__(16) char shared[];
  auto* correlations = reinterpret_cast<float*>(shared);  // [32, kStride]
  auto* rows = reinterpret_cast<__half*>(correlations + kRows * kStride);
  auto* inverse = reinterpret_cast<float*>(rows + kRows * (d + 8));
  [[maybe_unused]] auto* spaces = inverse + kRows;  // [kWarps, pairs, kWide]
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  const int head = blockIdx.y, chunk = blockIdx.z;
  const __half* atoms = p.atoms + static_cast<size_t>(head) * p.count * d;
  const float* gram = p.gram + static_cast<size_t>(head) * p.count * p.count;
  uint32_t b[kTiles][kSteps][2];  // this warp's atoms, the columns of B
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int atom = (warp * kTiles + t) * 8 + r;
    const auto* row = reinterpret_cast<const uint32_t*>(atoms + static_cast<size_t>(atom) * d);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      b[t][s][0] = atom < p.count ? row[8 * s + c] : 0;
      b[t][s][1] = atom < p.count ? row[8 * s + c + 4] : 0;
    }
  }
  for (int block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const T* from = static_cast<const T*>(p.x) + head * p.head_stride +
                    static_cast<size_t>(block) * kRows * p.row_stride + chunk * d;
    stage_rows<T, d>(rows, inverse, from, p.row_stride);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float sums[kTiles][4] = {};
      const auto* top = reinterpret_cast<const uint32_t*>(rows + (16 * m + r) * (d + 8));
      const auto* low = reinterpret_cast<const uint32_t*>(rows + (16 * m + r + 8) * (d + 8));
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint32_t a[4] = {top[8 * s + c], low[8 * s + c], top[8 * s + c + 4],
                               low[8 * s + c + 4]};
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma<__half>(sums[t], a[0], a[1], a[2], a[3], b[t][s][0], b[t][s][1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 16 * m + 8 * i + r;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          *reinterpret_cast<float2*>(correlations + row * kStride + (warp * kTiles + t) * 8 +
                                     2 * c) =
              make_float2(sums[t][2 * i] * inverse[row], sums[t][2 * i + 1] * inverse[row]);
        }
      }
    }
    __syncthreads();
    uint32_t* codes =
        p.codes + (head * p.block_stride + block) * kRows * static_cast<size_t>(p.pairs);
    for (int row = warp; row < kRows && warp < p.followers; row += p.followers) {
      float left[kMine];
      read_row(left, correlations + row * kStride, kWide);
      Pairs chosen;
      if constexpr (kOrthogonal) {
        chosen = pursue_orthogonal(left, gram, p.count, p.step_pairs,
                                   spaces + warp * p.step_pairs * kWide);
      } else {
        chosen = pursue(left, gram, p.count, p.step_pairs);
      }
      if (lane < p.step_pairs) {
        codes[word_at(p.keys, p.pairs, row, chunk * p.step_pairs + lane)] = chosen.word();
      }
    }
    __syncthreads();  // the next block's rows and correlations take these places
  }
}

template <class T, int d, int kWide, bool kOrthogonal>
void launch(CodeParams p, int heads, int chunks, cudaStream_t stream) {
  const auto kernel = code_kernel<T, d, kWide, kOrthogonal>;
  const size_t space = kOrthogonal ? sizeof(float) * p.step_pairs * kWide : 0;  // of a warp
  size_t bytes = sizeof(float) * kRows * (kWide + 8) + sizeof(__half) * kRows * (d + 8) + 4 * kRows;
  p.followers = kWarps;
  while (bytes + p.followers * space > device_info().shared_per_block) p.followers /= 2;
  bytes += p.followers * space;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "CSR coding's shared memory");
  const int most = std::max(1, 2 * device_info().multiprocessors / (heads * chunks));
  const dim3 grid(std::min(p.blocks, most), heads, chunks);
  kernel<<<grid, kWarps * kWarp, bytes, stream>>>(p);
  check(cudaGetLastError(), "CSR coding");
}

template <class T, int d>
void launch_for(const CsrCoding& coding, const CodeParams& p, int heads, int chunks,
                cudaStream_t stream) {
  const bool omp = coding.solver == CsrSolver::kOmp;
  if (p.count <= 256) {
    omp ? launch<T, d, 256, true>(p, heads, chunks, stream)
        : launch<T, d, 256, false>(p, heads, chunks, stream);
  } else {
    omp ? launch<T, d, 512, true>(p, heads, chunks, stream)
        : launch<T, d, 512, false>(p, heads, chunks, stream);
  }
}

template <class T>
void launch_as(const CsrCoding& coding, const CodeParams& p, int heads, int chunks, int dim,
               cudaStream_t stream) {
  switch (dim / chunks) {
    case 32: return launch_for<T, 32>(coding, p, heads, chunks, stream);
    case 64: return launch_for<T, 64>(coding, p, heads, chunks, stream);
    default: return launch_for<T, 128>(coding, p, heads, chunks, stream);
  }
}

}  // namespace

void make_csr_gram(float* gram, const void* atoms, int heads, int count, int dim,
                   cudaStream_t stream) {
  gram_kernel<<<dim3(count, heads), 128, 0, stream>>>(gram, static_cast<const __half*>(atoms),
                                                      count, dim);
  check(cudaGetLastError(), "CSR's Gram matrix");
}

void draw_csr_atoms(void* atoms, const CsrDraw& draw, cudaStream_t stream) {
  const dim3 grid((draw.count + kWarps - 1) / kWarps, draw.heads);
  auto* to = static_cast<__half*>(atoms);
  draw.dtype == DType::kBF16
      ? draw_kernel<__nv_bfloat16><<<grid, kWarps * kWarp, 0, stream>>>(to, draw)
      : draw_kernel<__half><<<grid, kWarps * kWarp, 0, stream>>>(to, draw);
  check(cudaGetLastError(), "CSR's atoms");
}

namespace {

void code(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, const CodeBatch& batch,
          const CodeJob& job, size_t row_stride, cudaStream_t stream) {
  coding.check(batch.head_dim, atoms);
  if (batch.rows == 0) return;
  const int chunks = coding.chunks(keys);
  CodeParams p{};
  p.x = job.x;
  p.head_stride = job.head_stride;
  p.row_stride = row_stride;
  p.block_stride = job.block_stride;
  p.blocks = batch.rows / kRows;
  p.atoms = static_cast<const __half*>(atoms.rows);
  p.gram = atoms.gram;
  p.count = atoms.count;
  p.pairs = coding.pairs;
  p.step_pairs = coding.pairs / chunks;
  p.keys = keys;
  p.codes = static_cast<uint32_t*>(job.codes);
  batch.dtype == DType::kBF16
      ? launch_as<__nv_bfloat16>(coding, p, batch.heads, chunks, batch.head_dim, stream)
      : launch_as<__half>(coding, p, batch.heads, chunks, batch.head_dim, stream);
}

}  // namespace

void code_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, const CodeRowsCall& call,
              cudaStream_t stream) {
  call.check();
  code(coding, atoms, keys, {call.dtype, call.heads, call.rows, call.head_dim},
       {call.x, call.head_stride, call.codes, nullptr, static_cast<size_t>(call.rows) / kRows},
       call.row_stride, stream);
}

void code_csr_job(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, const CodeBatch& batch,
                  const CodeJob& job, cudaStream_t stream) {
  code(coding, atoms, keys, batch, job, static_cast<size_t>(batch.head_dim), stream);
}

}  // namespace pith::cuda
