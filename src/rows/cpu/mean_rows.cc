#include "rows/cpu/mean_rows.h"

#include <algorithm>
#include <vector>

namespace pith {
namespace {

constexpr size_t kAppendRows = 32;  // coded at a time

class MeanRows final : public CodedRows {
 public:
  MeanRows(const Context& context, size_t first_rows, std::unique_ptr<CodedRows> inner)
      : CodedRows(context.kernels, inner->dim()),
        first_rows_(first_rows),
        inner_(std::move(inner)),
        waiting_(context.memory, context.kernels, dim_, first_rows),
        mean_(context.memory, MemoryKind::kMetadata) {}
  MeanRows(const MeanRows& other)
      : CodedRows(other),
        first_rows_(other.first_rows_),
        inner_(other.inner_->clone()),
        waiting_(other.waiting_),
        mean_(other.mean_) {}

  // Waiting rows and coded ones never are there together.
  size_t rows() const override { return inner_->rows() + waiting_.count(); }
  void append(const float* x, size_t stride, size_t count) override {
    size_t t = 0;
    for (; t < count && !known(); ++t) {
      waiting_.push(x + t * stride);
      if (waiting_.count() == first_rows_) take_mean();
    }
    if (t < count) code(x + t * stride, stride, count - t);
  }
  void keep(std::span<const uint32_t> kept) override {
    if (!known()) return waiting_.keep(kept, 0);
    inner_->keep(kept);
  }
  void keep_after(size_t first, std::span<const uint32_t> kept) override {
    if (!known()) return CodedRows::keep_after(first, kept);
    inner_->keep_after(first, kept);
  }
  void decode(float* out, size_t first, size_t count) const override {
    if (!known()) return waiting_.decode(out, first, count);
    inner_->decode(out, first, count);
    const std::vector<float> mean = as_floats();
    for (size_t t = 0; t < count; ++t) kernels_->add(out + t * dim_, mean.data(), dim_);
  }
  std::unique_ptr<CodedRows> clone() const override { return std::make_unique<MeanRows>(*this); }
  void archive(Archive& a) override {
    bool coded = known();
    a.flag(coded);
    waiting_.archive(a, coded ? 0 : first_rows_ - 1);
    if (!coded) return;
    a.halves(mean_, dim_);
    inner_->archive(a);
  }
  size_t payload_bytes() const override { return inner_->payload_bytes() + waiting_.bytes(); }
  size_t metadata_bytes() const override {
    return inner_->metadata_bytes() + mean_.size() * sizeof(uint16_t);
  }
  size_t table_bytes() const override { return inner_->table_bytes(); }
  size_t allocated_bytes() const override {
    return inner_->allocated_bytes() + waiting_.allocated_bytes() + mean_.capacity_bytes();
  }

 private:
  bool known() const { return !mean_.empty(); }
  std::vector<float> as_floats() const {
    std::vector<float> mean(dim_);
    kernels_->to_f32(mean.data(), mean_.data(), DType::kF16, dim_);
    return mean;
  }
  void take_mean();
  void code(const float* x, size_t stride, size_t count);

  size_t first_rows_;
  std::unique_ptr<CodedRows> inner_;
  WaitingRows waiting_;   // until the mean is known
  Array<uint16_t> mean_;  // [D] f16, or nothing yet
};

void MeanRows::take_mean() {
  const std::vector<float> rows = waiting_.take_all(mean_);
  code(rows.data(), dim_, rows.size() / dim_);
}

/// Passes rows minus the mean, rounded as it will be added back, to the inner codec.
void MeanRows::code(const float* x, size_t stride, size_t count) {
  const std::vector<float> mean = as_floats();
  std::vector<float> rest(std::min(count, kAppendRows) * dim_);
  for (size_t t = 0; t < count; t += kAppendRows) {
    const size_t n = std::min(kAppendRows, count - t);
    for (size_t i = 0; i < n * dim_; ++i)
      rest[i] = x[(t + i / dim_) * stride + i % dim_] - mean[i % dim_];
    inner_->append(rest.data(), dim_, n);
  }
}

}  // namespace

double MeanCodec::most_bytes(size_t rows, size_t dim, bool evicted) const {
  const size_t f16_row = dim * sizeof(uint16_t);
  if (!evicted && rows < first_rows_) return static_cast<double>(rows * f16_row);
  // A body that loses rows has two stores at most, and each may wait.
  const size_t stores = evicted ? 2 : 1;
  const size_t waiting = evicted ? std::min(rows, stores * (first_rows_ - 1)) : 0;
  return inner_->most_bytes(rows, dim, evicted) + static_cast<double>((waiting + stores) * f16_row);
}

std::unique_ptr<CodedRows> MeanCodec::make_rows(const Context& context,
                                                const RowsRequest& request) const {
  return std::make_unique<MeanRows>(context, first_rows_, inner_->make_rows(context, request));
}

}  // namespace pith
