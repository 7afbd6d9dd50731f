#include "kernels/cuda/layer.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/skinny_product.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void embed_kernel(float* hidden, const T* table, const int32_t* ids, size_t width,
                             float scale) {
  const T* row = table + ids[blockIdx.x] * width;
  for (size_t i = threadIdx.x; i < width; i += kThreads) {
    hidden[blockIdx.x * width + i] = scale * to_float(row[i]);
  }
}

__global__ void angles_kernel(const AnglesCall p) {
  const size_t at = static_cast<size_t>(blockIdx.x) * p.half + threadIdx.x;
  const AngleSource own =
      p.sources ? p.sources[blockIdx.x] : AngleSource{p.frequencies, *p.first + blockIdx.x};
  double s, c;
  sincos(static_cast<double>(own.position) * own.frequencies[threadIdx.x], &s, &c);
  p.cos[at] = static_cast<float>(c);
  p.sin[at] = static_cast<float>(s);
}

/// Row blockIdx.x of a part: parts' rows lie gridDim.x apart.
__device__ inline const float* row_of_part(const Parts& p, size_t width, int part) {
  return p.data + (part * static_cast<size_t>(gridDim.x) + blockIdx.x) * width;
}
/// Number i of that row of what is added.
__device__ inline float sum_of_parts(const Parts& p, size_t width, size_t i) {
  float sum = row_of_part(p, width, 0)[i];
  for (int part = 1; part < p.count; ++part) sum += row_of_part(p, width, part)[i];
  return p.bias ? sum + p.bias[i] : sum;
}
/// Four of them from 4 i on.
__device__ inline float4 four_of_parts(const Parts& p, size_t width, size_t i) {
  const auto four = [](const float* from, size_t at) {
    return reinterpret_cast<const float4*>(from)[at];
  };
  const auto add = [](float4& a, const float4& b) {
    a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
  };
  float4 parts[kMostSkinnyParts];
#pragma unroll
  for (int part = 0; part < kMostSkinnyParts; ++part) {
    if (part < p.count) parts[part] = four(row_of_part(p, width, part), i);
  }
#pragma unroll
  for (int part = 1; part < kMostSkinnyParts; ++part) {
    if (part < p.count) add(parts[0], parts[part]);
  }
  if (p.bias) add(parts[0], four(p.bias, i));
  return parts[0];
}

/// A block per row. All of a row is asked for at once: few rows are few blocks, and each trip to
/// memory that waits for another is a microsecond.
template <class T>
__global__ void __launch_bounds__(kThreads) norm_kernel(const __grid_constant__ NormCall p) {
  // Pieces of four numbers per thread: of 8192 a row; later ones are read twice.
  constexpr int kHeld = 8;
  __shared__ float sums[kThreads / 32];
  let_successor_start();
  wait_for_predecessor();
  auto* x = reinterpret_cast<float4*>(p.hidden + blockIdx.x * p.width);
  const auto* w = reinterpret_cast<const float4*>(p.weight);
  T* to = static_cast<T*>(p.out) + blockIdx.x * p.width;
  const auto pieces = static_cast<int>(p.width / 4);
  float4 held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * kThreads + static_cast<int>(threadIdx.x);
    held[j] = i < pieces ? x[i] : float4{0, 0, 0, 0};
  }
  if (p.added.count > 0) {
    const auto add = [&](int i, float4& v) {
      const float4 by = four_of_parts(p.added, p.width, i);
      v.x += by.x, v.y += by.y, v.z += by.z, v.w += by.w;
      x[i] = v;
    };
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x);
      if (i < pieces) add(i, held[j]);
    }
    for (int i = kHeld * kThreads + static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
      float4 v = x[i];
      add(i, v);
    }
  }
  const auto for_all = [&](const auto& f) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x);
      if (i < pieces) f(i, held[j]);
    }
    for (int i = kHeld * kThreads + static_cast<int>(threadIdx.x); i < pieces; i += kThreads)
      f(i, x[i]);
  };
  if (!p.weight) {
    return for_all([&](int i, const float4& v) { store_four(to + 4 * i, {v.x, v.y, v.z, v.w}); });
  }
  float squares = 0;
  for_all([&](int, const float4& v) { squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; });
  squares = block_sum<kThreads>(squares, sums);
  const float factor = 1 / sqrtf(squares / static_cast<float>(p.width) + p.eps);
  for_all([&](int i, const float4& v) {
    const float4 by = w[i];
    store_four(to + 4 * i, {v.x * factor * by.x, v.y * factor * by.y, v.z * factor * by.z,
                            v.w * factor * by.w});
  });
}

__global__ void __launch_bounds__(kThreads)
    add_normed_kernel(const __grid_constant__ AddNormedCall p) {
  __shared__ float sums[kThreads / 32];
  float* x = p.hidden + blockIdx.x * p.width;
  const auto at = [&](size_t i) { return sum_of_parts(p.update, p.width, i); };
  float squares = 0;
  for (size_t i = threadIdx.x; i < p.width; i += kThreads) squares += at(i) * at(i);
  squares = block_sum<kThreads>(squares, sums);
  const float factor = 1 / sqrtf(squares / static_cast<float>(p.width) + p.eps);
  for (size_t i = threadIdx.x; i < p.width; i += kThreads) x[i] += at(i) * factor * p.weight[i];
}

__global__ void soft_cap_kernel(float* x, float cap, size_t width) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= width) return;
  float& own = x[blockIdx.y * width + i];
  own = cap * tanhf(own / cap);
}

__global__ void bias_kernel(float* hidden, const float* bias, size_t width) {
  for (size_t i = threadIdx.x; i < width; i += kThreads) hidden[blockIdx.x * width + i] += bias[i];
}

/// Sum over all heads of a token's queries or keys, of which `head` is one, of their squares. Every
/// block forms it for itself.
template <int D>
__device__ float whole_squares(const HeadsCall& p, const float* token_row, bool is_query,
                               float* sums) {
  const int first = is_query ? 0 : p.query_heads * D;
  const int count = (is_query ? p.query_heads : p.kv_heads) * D;
  float squares = 0;
  for (int i = threadIdx.x; i < count; i += D / 2) {
    const float x = token_row[first + i] + (p.bias ? p.bias[first + i] : 0);
    squares += x * x;
  }
  return block_sum<D / 2>(squares, sums) / static_cast<float>(count);
}

/// One block per token and head, one thread per pair of channels. Where RoPE turns only the first
/// channels of a head, pairs stand closer; they are brought to where the cache's RoPE has them.
template <class T, int D>
__global__ void __launch_bounds__(D / 2) heads_kernel(const __grid_constant__ HeadsCall p) {
  __shared__ float sums[D / 64];
  let_successor_start();
  wait_for_predecessor();
  const int head = blockIdx.y, i = threadIdx.x;
  const size_t token = blockIdx.x, heads = p.query_heads + 2 * p.kv_heads;
  const float* x = p.qkv + (token * heads + head) * D;
  const bool is_query = head < p.query_heads;
  const int kv_head = (head - p.query_heads) % p.kv_heads;
  const bool is_value = head >= p.query_heads + p.kv_heads;
  int from_a = i, from_b = i + D / 2;
  if (!is_value && p.rotated != 0) {
    from_a = i < p.rotated / 2 ? i : i + p.rotated / 2;
    from_b = i < p.rotated / 2 ? i + p.rotated / 2 : i + D / 2;
  }
  float a = x[from_a], b = x[from_b];
  if (p.bias) {
    a += p.bias[head * D + from_a];
    b += p.bias[head * D + from_b];
  }
  if (!is_value) {
    const float* norm = is_query ? p.q_norm : p.k_norm;
    if (norm) {
      float mean;
      if (p.whole_norms) {
        mean = whole_squares<D>(p, p.qkv + token * heads * D, is_query, sums);
        norm += (is_query ? head : kv_head) * D;
      } else {
        mean = block_sum<D / 2>(a * a + b * b, sums) / D;
      }
      const float factor = 1 / sqrtf(mean + p.eps);
      a *= factor * norm[from_a];
      b *= factor * norm[from_b];
    }
    if (p.factors) {
      a *= p.factors[from_a];
      b *= p.factors[from_b];
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
    const RowTarget target = p.targets ? p.targets[token] : p.target;
    to = static_cast<T*>(is_value ? target.v : target.k) + kv_head * target.head_stride +
         (target.row + (p.targets ? 0 : token)) * D;
  }
  to[i] = from_float<T>(a);
  to[i + D / 2] = from_float<T>(b);
}

template <class T>
__global__ void gate_kernel(T* out, const float* gate_up, const float* bias, size_t inner,
                            GateKind kind) {
  const size_t i = static_cast<size_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= inner) return;
  const float* x = gate_up + blockIdx.x * 2 * inner;
  float g = x[i], u = x[inner + i];
  if (bias) {
    g += bias[i];
    u += bias[inner + i];
  }
  out[blockIdx.x * inner + i] = from_float<T>((kind == GateKind::kSilu ? silu(g) : gelu(g)) * u);
}

/// A block per row; which way the row goes is the caller's.
__global__ void __launch_bounds__(kThreads)
    move_rows_kernel(float* const* places, float* rows, size_t width, bool scatter) {
  float* here = rows + blockIdx.x * width;
  float* there = places[blockIdx.x];
  for (size_t i = threadIdx.x; i < width; i += kThreads) {
    scatter ? there[i] = here[i] : here[i] = there[i];
  }
}

unsigned blocks_for(size_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

void embed(const EmbedCall& call, cudaStream_t stream) {
  with_type(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_kernel(embed_kernel<T>, {static_cast<unsigned>(call.tokens), kThreads}, stream,
                  "embedding", call.hidden, static_cast<const T*>(call.table), call.ids, call.width,
                  call.scale);
  });
}

void find_angles(const AnglesCall& call, cudaStream_t stream) {
  launch_kernel(angles_kernel,
                {static_cast<unsigned>(call.tokens), static_cast<unsigned>(call.half)}, stream,
                "angles of RoPE", call);
}

void rms_norm(const NormCall& call, cudaStream_t stream) {
  with_type(call.dtype, [&](auto zero) {
    launch_early(norm_kernel<decltype(zero)>, {static_cast<unsigned>(call.tokens), kThreads}, call,
                 stream, "RMSNorm");
  });
}

void add_normed(const AddNormedCall& call, cudaStream_t stream) {
  launch_kernel(add_normed_kernel, {static_cast<unsigned>(call.tokens), kThreads}, stream,
                "a norm after a block", call);
}

void add_bias(float* hidden, const float* bias, size_t tokens, size_t width, cudaStream_t stream) {
  launch_kernel(bias_kernel, {static_cast<unsigned>(tokens), kThreads}, stream, "bias", hidden,
                bias, width);
}

void soft_cap(float* x, float cap, size_t tokens, size_t width, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((width + kThreads - 1) / kThreads),
                  static_cast<unsigned>(tokens));
  launch_kernel(soft_cap_kernel, {grid, kThreads}, stream, "soft cap", x, cap, width);
}

void make_heads(const HeadsCall& call, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(call.tokens),
                  static_cast<unsigned>(call.query_heads + 2 * call.kv_heads));
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    switch (call.head_dim) {
      case 64: return launch_early(heads_kernel<T, 64>, {grid, 32}, call, stream, "heads");
      case 128: return launch_early(heads_kernel<T, 128>, {grid, 64}, call, stream, "heads");
      default: return launch_early(heads_kernel<T, 256>, {grid, 128}, call, stream, "heads");
    }
  };
  call.dtype == DType::kBF16 ? launch(__nv_bfloat16{}) : launch(__half{});
}

void scatter_rows(float* const* places, const float* rows, size_t tokens, size_t width,
                  cudaStream_t stream) {
  launch_kernel(move_rows_kernel, {static_cast<unsigned>(tokens), kThreads}, stream,
                "rows on their way out", places, const_cast<float*>(rows), width, true);
}

void gather_rows(float* rows, float* const* places, size_t tokens, size_t width,
                 cudaStream_t stream) {
  launch_kernel(move_rows_kernel, {static_cast<unsigned>(tokens), kThreads}, stream,
                "rows on their way in", places, rows, width, false);
}

void gate(const GateCall& call, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(call.tokens), blocks_for(call.inner));
  with_type(call.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_kernel(gate_kernel<T>, {grid, kThreads}, stream, "the gate of an MLP",
                  static_cast<T*>(call.out), call.gate_up, call.bias, call.inner, call.kind);
  });
}

}  // namespace pith::cuda
