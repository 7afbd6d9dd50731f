#pragma once
// The small steps of a layer on the GPU, fused: embedding, RMSNorm, heads (bias, QK norm, RoPE and
// the append of new rows), the MLP's gate, norms of what a block adds. Memory-bound: each reads its
// input once, but for RMSNorm, which reads it twice from cache.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "pith/dtype.h"

namespace pith::cuda {

/// hidden [T, width] <- scale times rows ids[t] of table [V, width].
struct EmbedCall {
  float* hidden = nullptr;
  const void* table = nullptr;
  DType dtype = DType::kBF16;
  const int32_t* ids = nullptr;  // [T], on the device
  size_t tokens = 0, width = 0;
  float scale = 1;
};
void embed(const EmbedCall& call, cudaStream_t stream);

/// The inputs of a token's angles.
struct AngleSource {
  const double* frequencies = nullptr;  // [D/2]
  int64_t position = 0;
};
/// Cosines and sines, of angles in f64: of positions first, first + 1, ..., or each token's own.
struct AnglesCall {
  float *cos = nullptr, *sin = nullptr;  // [T, D/2]
  const double* frequencies = nullptr;   // [D/2]
  const int64_t* first = nullptr;        // [1], on the device
  size_t tokens = 0, half = 0;           // D/2
  const AngleSource* sources = nullptr;  // [T], on the device, or null
};
void find_angles(const AnglesCall& call, cudaStream_t stream);

/// The sum of the parts of a product, in their order (skinny_product.h), and a bias.
struct Parts {
  const float* data = nullptr;  // [count, T, width]
  int count = 0;
  const float* bias = nullptr;  // [width] or null
};

/// out <- hidden / rms(hidden) * weight, or hidden itself without a weight.
struct NormCall {
  void* out = nullptr;  // [T, width] of dtype
  DType dtype = DType::kF32;
  float* hidden = nullptr;        // [T, width]; changed if something is added
  const float* weight = nullptr;  // [width] or null
  float eps = 0;
  size_t tokens = 0, width = 0;  // a multiple of 4, as products want it too
  Parts added{};                 ///< to hidden, first
};
void rms_norm(const NormCall& call, cudaStream_t stream);

/// hidden += update / rms(update) * weight.
struct AddNormedCall {
  float* hidden = nullptr;  // [T, width]
  Parts update;
  const float* weight = nullptr;  // [width]
  float eps = 0;
  size_t tokens = 0, width = 0;
};
void add_normed(const AddNormedCall& call, cudaStream_t stream);

/// hidden [T, width] += bias [width].
void add_bias(float* hidden, const float* bias, size_t tokens, size_t width, cudaStream_t stream);

/// x [T, width] <- cap tanh(x / cap).
void soft_cap(float* x, float cap, size_t tokens, size_t width, cudaStream_t stream);

/// Where new rows go: row `row` on, of every KV head.
struct RowTarget {
  void *k = nullptr, *v = nullptr;  // [G, head_stride / D, D]
  size_t head_stride = 0;           ///< numbers between heads
  int64_t row = 0;
};

/// q, k and v get their bias, norm and RoPE; q goes to `q`, rows to their place in the cache.
struct HeadsCall {
  const float* qkv = nullptr;      // [T, (H + 2 G) D]
  const float* bias = nullptr;     // [(H + 2 G) D] or null
  const float* q_norm = nullptr;   // [D] or null; [H D] of whole_norms
  const float* k_norm = nullptr;   // [D] or null; [G D] of whole_norms
  bool whole_norms = false;        ///< over all heads together (QkNorm::kWhole)
  const float* factors = nullptr;  // [D] on q and k before RoPE, or null
  int rotated = 0;                 ///< channels that RoPE turns, the first of a head; 0 = all
  const float* cos = nullptr;      // [T, D/2]
  const float* sin = nullptr;      // [T, D/2]
  float eps = 0;
  int query_heads = 0, kv_heads = 0, head_dim = 0;
  size_t tokens = 0;
  DType dtype = DType::kF16;  ///< of q and the rows: kF16 or kBF16
  void* q = nullptr;          // [T, H, D]
  RowTarget target;           ///< of consecutive rows, if targets is null
  /// [T], on the device: where each token's row goes.
  const RowTarget* targets = nullptr;
};
void make_heads(const HeadsCall& call, cudaStream_t stream);

/// Rows [T, width], each to or from a place of its own; places [T] on the device.
void scatter_rows(float* const* places, const float* rows, size_t tokens, size_t width,
                  cudaStream_t stream);
void gather_rows(float* rows, float* const* places, size_t tokens, size_t width,
                 cudaStream_t stream);

/// The activation of the MLP's gate: model/loaders/architectures.h's Activation.
enum class GateKind : uint8_t { kSilu, kGeluTanh };

/// out <- activation(gate + bias) (up + bias).
struct GateCall {
  void* out = nullptr;  // [T, inner] of dtype
  DType dtype = DType::kF32;
  const float* gate_up = nullptr;  // [T, 2, inner]
  const float* bias = nullptr;     // [2, inner] or null
  size_t tokens = 0, inner = 0;
  GateKind kind = GateKind::kSilu;
};
void gate(const GateCall& call, cudaStream_t stream);

}  // namespace pith::cuda
