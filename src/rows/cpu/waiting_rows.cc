#include "rows/cpu/waiting_rows.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "pith/error.h"

namespace pith {

void require_f16(const float* row, size_t dim) {
  for (size_t c = 0; c < dim; ++c)
    if (!(std::fabs(row[c]) <= 65504))
      throw Error(ErrorCode::kNonFinite,
                  fmt::format("a key or value of {} does not fit f16, in which this codec keeps "
                              "rows that wait and numbers that stand out; {}",
                              row[c],
                              std::isfinite(row[c]) ? "use bf16 or f32 rows for this model"
                                                    : "the model's activations are not finite"));
}

void take_means(float* mean, const float* rows, size_t count, size_t dim) {
  for (size_t c = 0; c < dim; ++c) {
    double sum = 0;
    for (size_t t = 0; t < count; ++t) sum += rows[t * dim + c];
    mean[c] = static_cast<float>(sum / static_cast<double>(count));
  }
}

void WaitingRows::push(const float* row) {
  require_f16(row, dim_);
  const size_t before = rows_.size();
  rows_.resize(before + dim_);
  kernels_->from_f32(rows_.data() + before, row, DType::kF16, dim_);
}

std::vector<float> WaitingRows::take_all(Array<uint16_t>& mean) {
  const size_t n = count();
  std::vector<float> rows(n * dim_), of_rows(dim_);
  decode(rows.data(), 0, n);
  clear();
  take_means(of_rows.data(), rows.data(), n, dim_);
  mean.resize(dim_);
  kernels_->from_f32(mean.data(), of_rows.data(), DType::kF16, dim_);
  return rows;
}

void WaitingRows::keep(std::span<const uint32_t> kept, size_t first) {
  for (size_t to = 0; to < kept.size(); ++to)
    if (kept[to] - first != to)
      std::memmove(rows_.data() + to * dim_, rows_.data() + (kept[to] - first) * dim_, 2 * dim_);
  rows_.resize(kept.size() * dim_);
}

}  // namespace pith
