#include "kernels/cuda/layer.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void embed_kernel(float* hidden, const T* table, const int32_t* ids, size_t width) {
  const T* row = table + ids[blockIdx.x] * width;
  for (size_t i = threadIdx.x; i < width; i += kThreads) {
    hidden[blockIdx.x * width + i] = to_float(row[i]);
  }
}

__global__ void angles_kernel(float* cos_out, float* sin_out, const double* frequencies,
                              const int64_t* first, int half) {
  const size_t at = static_cast<size_t>(blockIdx.x) * half + threadIdx.x;
  double s, c;
  sincos(static_cast<double>(*first + blockIdx.x) * frequencies[threadIdx.x], &s, &c);
  cos_out[at] = static_cast<float>(c);
  sin_out[at] = static_cast<float>(s);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(T* out, const float* hidden, const float* weight, float eps, size_t width) {
  __shared__ float sums[kThreads / 32];
  const float* x = hidden + blockIdx.x * width;
  float squares = 0;
  for (size_t i = threadIdx.x; i < width; i += kThreads) squares += x[i] * x[i];
  squares = block_sum<kThreads>(squares, sums);
  const float factor = 1 / sqrtf(squares / static_cast<float>(width) + eps);
  for (size_t i = threadIdx.x; i < width; i += kThreads) {
    out[blockIdx.x * width + i] = from_float<T>(x[i] * factor * weight[i]);
  }
}

__global__ void bias_kernel(float* hidden, const float* bias, size_t width) {
  for (size_t i = threadIdx.x; i < width; i += kThreads) hidden[blockIdx.x * width + i] += bias[i];
}

/// One block a token and head, one thread a pair of channels.
template <class T, int D>
__global__ void __launch_bounds__(D / 2) heads_kernel(const __grid_constant__ HeadsCall p) {
  __shared__ float sums[D / 64];
  let_successor_start();
  wait_for_predecessor();
  const int head = blockIdx.y, i = threadIdx.x;
  const size_t token = blockIdx.x, heads = p.query_heads + 2 * p.kv_heads;
  const float* x = p.qkv + (token * heads + head) * D;
  float a = x[i], b = x[i + D / 2];
  if (p.bias) {
    a += p.bias[head * D + i];
    b += p.bias[head * D + i + D / 2];
  }
  const bool is_query = head < p.query_heads;
  const int kv_head = (head - p.query_heads) % p.kv_heads;
  const bool is_value = head >= p.query_heads + p.kv_heads;
  if (!is_value) {
    const float* norm = is_query ? p.q_norm : p.k_norm;
    if (norm) {
      const float squares = block_sum<D / 2>(a * a + b * b, sums);
      const float factor = 1 / sqrtf(squares / D + p.eps);
      a *= factor * norm[i];
      b *= factor * norm[i + D / 2];
    }
    const float cos = p.cos[token * (D / 2) + i], sin = p.sin[token * (D / 2) + i];
    const float turned = a * cos - b * sin;
    b = b * cos + a * sin;
    a = turned;
  }
  T* to;
  if (is_query) {
    to = static_cast<T*>(p.q) + (token * p.query_heads + head) * D;
  } else {
    const RowTarget target = p.target_on_device ? *p.target_on_device : p.target;
    to = static_cast<T*>(is_value ? target.v : target.k) + kv_head * target.head_stride +
         (target.row + token) * D;
  }
  to[i] = from_float<T>(a);
  to[i + D / 2] = from_float<T>(b);
}

template <class T>
__global__ void gate_kernel(T* out, const float* gate_up, const float* bias, size_t inner) {
  const size_t i = static_cast<size_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= inner) return;
  const float* x = gate_up + blockIdx.x * 2 * inner;
  float g = x[i], u = x[inner + i];
  if (bias) {
    g += bias[i];
    u += bias[inner + i];
  }
  out[blockIdx.x * inner + i] = from_float<T>(silu(g) * u);
}

unsigned blocks_for(size_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

void embed(const EmbedCall& call, cudaStream_t stream) {
  with_type(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    embed_kernel<T><<<static_cast<unsigned>(call.tokens), kThreads, 0, stream>>>(
        call.hidden, static_cast<const T*>(call.table), call.ids, call.width);
  });
  check(cudaGetLastError(), "embedding");
}

void find_angles(const AnglesCall& call, cudaStream_t stream) {
  angles_kernel<<<static_cast<unsigned>(call.tokens), static_cast<unsigned>(call.half), 0,
                  stream>>>(call.cos, call.sin, call.frequencies, call.first,
                            static_cast<int>(call.half));
  check(cudaGetLastError(), "angles of RoPE");
}

void rms_norm(const NormCall& call, cudaStream_t stream) {
  with_type(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    norm_kernel<T><<<static_cast<unsigned>(call.tokens), kThreads, 0, stream>>>(
        static_cast<T*>(call.out), call.hidden, call.weight, call.eps, call.width);
  });
  check(cudaGetLastError(), "RMSNorm");
}

void add_bias(float* hidden, const float* bias, size_t tokens, size_t width, cudaStream_t stream) {
  bias_kernel<<<static_cast<unsigned>(tokens), kThreads, 0, stream>>>(hidden, bias, width);
  check(cudaGetLastError(), "bias");
}

void make_heads(const HeadsCall& call, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(call.tokens),
                  static_cast<unsigned>(call.query_heads + 2 * call.kv_heads));
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    if (call.head_dim == 64) {
      launch_early(heads_kernel<T, 64>, {grid, 32}, call, stream, "heads");
    } else {
      launch_early(heads_kernel<T, 128>, {grid, 64}, call, stream, "heads");
    }
  };
  call.dtype == DType::kBF16 ? launch(__nv_bfloat16{}) : launch(__half{});
}

void gate(const GateCall& call, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(call.tokens), blocks_for(call.inner));
  with_type(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    gate_kernel<T><<<grid, kThreads, 0, stream>>>(static_cast<T*>(call.out), call.gate_up,
                                                  call.bias, call.inner);
  });
  check(cudaGetLastError(), "SwiGLU");
}

}  // namespace pith::cuda
