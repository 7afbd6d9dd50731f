// The default reading of codecs: rows are decoded a tile at a time, on the stack, and handed to the
// dense primitives. Costs one decode per row and pass; codecs with cheaper forms override.

#include "rows/cpu/coded_rows.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace pith {
namespace {

// 32 KiB: half of it would still amortise the calls, twice of it would leave L1.
constexpr size_t kTileFloats = 8192;

/// Calls f(tile, first, count) for runs of decoded rows.
template <class F>
void for_tiles(const CodedRows& rows, size_t first, size_t count, F&& f) {
  alignas(64) float tile[kTileFloats];
  const size_t step = std::max<size_t>(1, kTileFloats / rows.dim());
  for (size_t t = 0; t < count; t += step) {
    const size_t n = std::min(step, count - t);
    rows.decode(tile, first + t, n);
    f(DenseRows{tile, DType::kF32, rows.dim()}, t, n);
  }
}

}  // namespace

void CodedRows::keep_after(size_t first, std::span<const uint32_t> kept) {
  std::vector<uint32_t> all(first);
  std::iota(all.begin(), all.end(), 0u);
  all.insert(all.end(), kept.begin(), kept.end());
  keep(all);
}

void CodedRows::decode_transposed(float* out, size_t ld, size_t first, size_t count) const {
  for_tiles(*this, first, count, [&](const DenseRows& tile, size_t t, size_t n) {
    kernels_->transpose_rows(out + t, ld, tile, n);
  });
}

size_t CodedRows::prepared_size(size_t) const { return 0; }

void CodedRows::prepare(float*, const float*, size_t) const {}

void CodedRows::scores(float* out, size_t ld, const float* q, const float*, size_t queries,
                       size_t first, size_t count, float scale) const {
  for_tiles(*this, first, count, [&](const DenseRows& tile, size_t t, size_t n) {
    kernels_->dot_rows(out + t, ld, q, queries, tile, n, scale);
  });
}

void CodedRows::accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                           size_t count) const {
  for_tiles(*this, first, count, [&](const DenseRows& tile, size_t t, size_t n) {
    kernels_->add_rows(acc, p + t, ld, queries, tile, n);
  });
}

void CodedRows::finish(float* out, const float* acc, size_t queries) const {
  kernels_->add(out, acc, queries * dim_);
}

}  // namespace pith
