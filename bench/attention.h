#pragma once
// Attention's speed beside what bounds it, measured in the same run: the machine's read bandwidth
// for decode and products of one token, oneDNN's f32 matrix products for prefill. Answers are
// checked before timing. A peer and its subject take turns, and the median of their ratios is
// reported: other programs on the machine then slow both.

#include <cstddef>

#include "kernels/context.h"

namespace pith::bench {

struct DecodeShape {
  DType dtype = DType::kF16;
  size_t head_dim = 128, kv_heads = 8, group = 4, rows = 32768;
};
struct DecodeResult {
  double bytes_per_second = 0, read_bytes_per_second = 0, ratio = 0;  // medians
  double largest_difference = 0;  ///< from the scalar primitives on the same rows
};
/// One decode step's attention over enough layers that the rows (1 GiB or more) fit no cache.
DecodeResult bench_decode(const Context& context, const DecodeShape& shape, int repeats);

/// Products of one token's activations [in] with matrices [in, in], 1 GiB of weights together.
DecodeResult bench_matvec(const Context& context, DType dtype, size_t in, int repeats);

struct PrefillShape {
  size_t tokens = 4096, head_dim = 128, kv_heads = 4, group = 4;
};
struct PrefillResult {
  double flops = 0;                  // causal: 2 T^2 D H, median per second
  double peer_flops = 0, ratio = 0;  // the best of the peers below, medians
  double whole_split = 0, whole_threaded = 0, tiled_split = 0;
  double largest_difference = 0;
};
/// Causal attention of a chunk to itself. Peers: oneDNN's products q k^T and p v for whole heads,
/// split over heads by our pool or threaded by oneDNN, and for tiles that stay in L2.
PrefillResult bench_prefill(const Context& context, const PrefillShape& shape, int repeats);

}  // namespace pith::bench
