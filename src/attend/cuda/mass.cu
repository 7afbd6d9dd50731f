#include "attend/cuda/mass.h"

#include "attend/cuda/causal_tile.cuh"
#include "attend/cuda/running.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {
namespace {

constexpr int kTokenThreads = 256, kTokenBlocks = 96;  // blocks a KV head
constexpr int kRowsALane = 2;                          // on their way together

struct TokenParams {
  const void* q;
  const float* log_sum;
  const MassTarget* target;
  int group;
};

template <class T>
__device__ inline void widen(float (&to)[8], const uint4& from) {
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = to_float(reinterpret_cast<const T*>(&from)[i]);
}

/// Rows of one KV head; D / 8 lanes a row. All of a few thousand rows are asked for at once.
template <class T, int D>
__global__ void __launch_bounds__(kTokenThreads)
    token_mass_kernel(const __grid_constant__ TokenParams p) {
  constexpr int kLanes = D / 8, kRowsAtOnce = kRowsALane * kTokenThreads / kLanes;
  let_successor_start();
  const MassTarget target = *p.target;  // there since the step began
  wait_for_predecessor();
  const int head = blockIdx.x, lane = threadIdx.x % kLanes;
  const auto* q = reinterpret_cast<const uint4*>(static_cast<const T*>(p.q) +
                                                 static_cast<size_t>(head) * p.group * D) +
                  lane;
  const float* log_sums = p.log_sum + head * p.group;
  const float scale = kLog2e * rsqrtf(static_cast<float>(D));
  const T* keys = static_cast<const T*>(target.keys) + head * target.head_stride;
  float* mass = target.mass + head * target.stride;
  for (int first = blockIdx.y * kRowsAtOnce; first < target.rows;
       first += kRowsAtOnce * kTokenBlocks) {
    const int own = first + static_cast<int>(threadIdx.x) / kLanes * kRowsALane;
    uint4 raw[kRowsALane];
    float k[kRowsALane][8], sum[kRowsALane] = {};
#pragma unroll
    for (int i = 0; i < kRowsALane; ++i) {
      const auto row = static_cast<size_t>(min(own + i, target.rows - 1));
      raw[i] = *(reinterpret_cast<const uint4*>(keys + row * D) + lane);
    }
#pragma unroll
    for (int i = 0; i < kRowsALane; ++i) widen<T>(k[i], raw[i]);
#pragma unroll 4
    for (int h = 0; h < p.group; ++h) {
      float query[8];
      widen<T>(query, q[h * kLanes]);
      const float log_sum = log_sums[h] * kLog2e;
#pragma unroll
      for (int i = 0; i < kRowsALane; ++i) {
        float score = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) score += k[i][j] * query[j];
#pragma unroll
        for (int d = kLanes / 2; d > 0; d /= 2) score += __shfl_xor_sync(~0u, score, d);
        sum[i] += exp2_fast(score * scale - log_sum);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsALane; ++i) {
      const int row = own + i;
      if (lane == i && row < target.rows) {
        mass[row] = row < target.known ? mass[row] + sum[i] : sum[i];
      }
    }
  }
}

template <class T, int D>
void launch_token(const TokenMass& call, const MassTarget* target, cudaStream_t stream) {
  const int group = call.shape.query_heads / call.shape.kv_heads;
  const TokenParams params{call.q, call.log_sum, target, group};
  const LaunchShape shape{dim3(call.shape.kv_heads, kTokenBlocks), dim3(kTokenThreads), 0};
  launch_early(token_mass_kernel<T, D>, shape, params, stream, "attention mass");
}

struct ChunkParams {
  ChunkMass call;
  MassTarget target;
};

/// A block: 64 rows of one KV head, that go past the queries of its group's heads.
template <class T, int D>
__global__ void __launch_bounds__(kChunkThreads)
    chunk_mass_kernel(const __grid_constant__ ChunkParams p) {
  extern __shared__ __align__(128) char shared[];
  using Tile = RowTile<T, D>;
  const ChunkMass& call = p.call;
  const int head = blockIdx.y, first_row = blockIdx.x * kTileRows;
  const int group = call.shape.query_heads / call.shape.kv_heads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, r = lane / 4, c = lane % 4;
  const int rows = p.target.rows, first_query = call.tokens - call.queries;
  const T* keys = static_cast<const T*>(p.target.keys) + head * p.target.head_stride;
  char* const keys_at = shared + Tile::kQueryBytes;
  Tile::template fetch<kTileRows>(keys_at, keys, D, first_row, rows);
  const auto queries_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) +
                          Tile::row_bytes(warp * 16 * kBlocks);
  const auto rows_at = static_cast<uint32_t>(__cvta_generic_to_shared(keys_at));
  const float scale = kLog2e * rsqrtf(static_cast<float>(D));
  float sums[kTileRows / 8][2] = {};                                // rows 8 n + 2 c, + 1
  const int seen_from = max(first_query, first_row - call.before);  // the first that sees a row
  for (int h = head * group; h < (head + 1) * group; ++h) {
    const T* q = static_cast<const T*>(call.q) + static_cast<size_t>(h) * D;
    for (int first = seen_from / kTileQueries * kTileQueries; first < call.tokens;
         first += kTileQueries) {
      __syncthreads();  // nobody reads the queries before any more
      Tile::template fetch<kTileQueries>(shared, q, static_cast<size_t>(call.shape.query_heads) * D,
                                         first, call.tokens);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
      Scores s[kBlocks];
      find_scores<T, D>(s, queries_at, rows_at);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = first + (warp * kBlocks + m) * 16 + r + 8 * half;
          const bool counts = token >= first_query && token < call.tokens;
          const float log_sum =
              counts ? call.log_sum[static_cast<size_t>(token) * call.shape.query_heads + h] : 0;
          const int seen = counts ? call.before + token + 1 - first_row : 0;
#pragma unroll
          for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const float x = exp2_fast(s[m][n][2 * half + j] * scale - log_sum);
              sums[n][j] += 8 * n + 2 * c + j < seen ? x : 0;
            }
          }
        }
      }
    }
  }
  __syncthreads();
  auto* parts = reinterpret_cast<float*>(shared);  // [warps, 64]
#pragma unroll
  for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float sum = sum_over_rows(sums[n][j]);
      if (r == 0) parts[warp * kTileRows + 8 * n + 2 * c + j] = sum;
    }
  }
  __syncthreads();
  const int row = first_row + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kTileRows || row >= rows) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kChunkWarps; ++w) sum += parts[w * kTileRows + threadIdx.x];
  float& mass = p.target.mass[head * p.target.stride + row];
  mass = row < p.target.known ? mass + sum : sum;
}

template <class T, int D>
void launch_chunk(const ChunkMass& call, const MassTarget& target, cudaStream_t stream) {
  constexpr size_t kBytes = RowTile<T, D>::kQueryBytes + RowTile<T, D>::kBytes;
  const auto kernel = chunk_mass_kernel<T, D>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes)),
        "attention mass's shared memory");
  const dim3 grid((target.rows + kTileRows - 1) / kTileRows, call.shape.kv_heads);
  kernel<<<grid, kChunkThreads, kBytes, stream>>>({call, target});
  check(cudaGetLastError(), "attention mass");
}

/// Calls f.template operator()<T, D>() for a shape.
template <class F>
void with_shape(const MassShape& shape, const F& f) {
  const bool bf16 = shape.dtype == DType::kBF16;
  if (shape.head_dim == 64) {
    bf16 ? f.template operator()<__nv_bfloat16, 64>() : f.template operator()<__half, 64>();
  } else {
    bf16 ? f.template operator()<__nv_bfloat16, 128>() : f.template operator()<__half, 128>();
  }
}

}  // namespace

void add_token_mass(const TokenMass& call, const MassTarget* target, cudaStream_t stream) {
  with_shape(call.shape, [&]<class T, int D>() { launch_token<T, D>(call, target, stream); });
}

void add_chunk_mass(const ChunkMass& call, const MassTarget& target, cudaStream_t stream) {
  with_shape(call.shape, [&]<class T, int D>() { launch_chunk<T, D>(call, target, stream); });
}

}  // namespace pith::cuda
