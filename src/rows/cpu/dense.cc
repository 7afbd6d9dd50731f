#include "rows/cpu/dense.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/allocation.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr float kF16Max = 65504;

// One NaN or infinity would spread to every later answer, so it is stopped where it enters.
void check_range(const float* x, size_t n, DType dtype) {
  const float limit = dtype == DType::kF16 ? kF16Max : 3.3895314e38f;  // bf16's largest
  // As integers, numbers without their sign are ordered like the numbers, infinity and NaN last; a
  // difference is negative if one of them is too large. Compilers vectorise this, unlike a compare.
  const auto limit_bits = std::bit_cast<int32_t>(limit);
  int32_t differences = 0;
  for (size_t i = 0; i < n; ++i)
    differences |= limit_bits - (std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  if (differences >= 0) return;
  for (size_t i = 0; i < n; ++i)
    if (!(std::fabs(x[i]) <= limit))
      throw Error(
          ErrorCode::kNonFinite,
          fmt::format("a key or value of {} does not fit a cache of {}; {}", x[i], to_string(dtype),
                      std::isfinite(x[i]) ? "choose bf16 or f32 (dtype=bf16, -ctk bf16 -ctv bf16)"
                                          : "the model's activations are not finite"));
}

}  // namespace

DenseRowsStore::DenseRowsStore(const Context& context, DType dtype, const RowsRequest& request)
    : CodedRows(context.kernels, request.dim),
      dtype_(dtype),
      row_bytes_(request.dim * size_of(dtype)),
      bytes_(context.memory, MemoryKind::kPayload) {
  bytes_.set_growth_limit(request.max_rows * row_bytes_);
}

void DenseRowsStore::store(size_t row, const float* x, size_t stride, size_t count) {
  for (size_t t = 0; t < count; ++t)
    kernels_->from_f32(bytes_.data() + (row + t) * row_bytes_, x + t * stride, dtype_, dim_);
}

void DenseRowsStore::append(const float* x, size_t stride, size_t count) {
  for (size_t t = 0; t < count; ++t) check_range(x + t * stride, dim_, dtype_);
  const size_t before = rows();
  bytes_.resize((before + count) * row_bytes_);
  store(before, x, stride, count);
}

void DenseRowsStore::overwrite(size_t first, const float* x, size_t stride, size_t count) {
  for (size_t t = 0; t < count; ++t) check_range(x + t * stride, dim_, dtype_);
  store(first, x, stride, count);
}

void DenseRowsStore::keep(std::span<const uint32_t> kept) {
  size_t to = 0;
  while (to < kept.size() && kept[to] == to) ++to;  // a kept prefix does not move
  while (to < kept.size()) {
    size_t run = 1;
    while (to + run < kept.size() && kept[to + run] == kept[to] + run) ++run;
    std::memmove(bytes_.data() + to * row_bytes_, bytes_.data() + kept[to] * row_bytes_,
                 run * row_bytes_);
    to += run;
  }
  bytes_.resize(kept.size() * row_bytes_);
  if (gives_back(bytes_.capacity(), bytes_.size())) bytes_.shrink_to_fit();
}

void DenseRowsStore::keep_after(size_t first, std::span<const uint32_t> kept) {
  size_t to = first;
  for (size_t i = 0; i < kept.size(); ++i, ++to)
    if (kept[i] != to)
      std::memcpy(bytes_.data() + to * row_bytes_, bytes_.data() + kept[i] * row_bytes_,
                  row_bytes_);
  bytes_.resize(to * row_bytes_);
  if (gives_back(bytes_.capacity(), bytes_.size())) bytes_.shrink_to_fit();
}

void DenseRowsStore::decode(float* out, size_t first, size_t count) const {
  kernels_->to_f32(out, view(first).rows, dtype_, count * dim_);
}

void DenseRowsStore::decode_transposed(float* out, size_t ld, size_t first, size_t count) const {
  kernels_->transpose_rows(out, ld, view(first), count);
}

void DenseRowsStore::scores(float* out, size_t ld, const float* q, const float* /*prepared*/,
                            size_t queries, size_t first, size_t count, float scale) const {
  kernels_->dot_rows(out, ld, q, queries, view(first), count, scale);
}

void DenseRowsStore::accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                                size_t count) const {
  kernels_->add_rows(acc, p, ld, queries, view(first), count);
}

void DenseRowsStore::archive(Archive& a) {
  size_t count = rows();
  a.number(count, kMostRows, "too many rows");
  a.check_left(count, row_bytes_);
  if (a.loads()) {
    bytes_.reserve(count * row_bytes_);
    make_places(count);
  }
  archive(a, 0, count);
}

void DenseRowsStore::archive(Archive& a, size_t first, size_t count) {
  a.raw_finite(bytes_.data() + first * row_bytes_, count * dim_, dtype_);
}

std::unique_ptr<CodedRows> DenseRowsStore::clone() const {
  return std::make_unique<DenseRowsStore>(*this);
}

std::unique_ptr<CodedRows> DenseCodec::make_rows(const Context& context,
                                                 const RowsRequest& request) const {
  return std::make_unique<DenseRowsStore>(context, dtype_, request);
}

}  // namespace pith
