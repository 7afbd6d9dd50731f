#include "rows/cpu/centred_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "rows/cpu/compaction.h"

namespace pith {
namespace {

class CentredRows final : public CodedRows {
 public:
  CentredRows(const Context& context, size_t group_rows, std::unique_ptr<CodedRows> inner)
      : CodedRows(context.kernels, inner->dim()),
        group_rows_(group_rows),
        inner_(std::move(inner)),
        waiting_(context.memory, context.kernels, dim_, group_rows),
        centres_(context.memory, MemoryKind::kMetadata),
        firsts_(context.memory, MemoryKind::kMetadata) {}
  CentredRows(const CentredRows& other)
      : CodedRows(other),
        group_rows_(other.group_rows_),
        inner_(other.inner_->clone()),
        waiting_(other.waiting_),
        centres_(other.centres_),
        firsts_(other.firsts_) {}

  size_t rows() const override { return inner_->rows() + waiting_.count(); }
  void append(const float* x, size_t stride, size_t count) override {
    for (size_t t = 0; t < count; ++t) {
      waiting_.push(x + t * stride);
      if (waiting_.count() == group_rows_) code_waiting();
    }
  }
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  // The inner codec prepares the queries as they are.
  size_t prepared_size(size_t queries) const override { return inner_->prepared_size(queries); }
  void prepare(float* prepared, const float* q, size_t queries) const override {
    inner_->prepare(prepared, q, queries);
  }
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  std::unique_ptr<CodedRows> clone() const override { return std::make_unique<CentredRows>(*this); }
  void archive(Archive& a) override {
    inner_->archive(a);
    waiting_.archive(a, group_rows_ - 1);
    a.halves(centres_, archive_groups(a, firsts_, inner_->rows()) * dim_);
  }
  size_t payload_bytes() const override { return inner_->payload_bytes() + waiting_.bytes(); }
  size_t metadata_bytes() const override {
    return inner_->metadata_bytes() + centres_.size() * 2 + firsts_.size() * sizeof(uint32_t);
  }
  size_t table_bytes() const override { return inner_->table_bytes(); }
  size_t allocated_bytes() const override {
    return inner_->allocated_bytes() + waiting_.allocated_bytes() + centres_.capacity_bytes() +
           firsts_.capacity_bytes();
  }

 private:
  size_t group_end(size_t group) const { return pith::group_end(firsts_, group, inner_->rows()); }
  void code_waiting();
  template <class F>
  void for_groups(size_t first, size_t end, F&& f) const;

  size_t group_rows_;
  std::unique_ptr<CodedRows> inner_;
  WaitingRows waiting_;      // fewer than a group
  Array<uint16_t> centres_;  // [groups, D] f16: mu
  Array<uint32_t> firsts_;   // [groups] first row that each group still has
};

/// Calls f(mu [D], first, count) for the groups of coded rows [first, end).
template <class F>
void CentredRows::for_groups(size_t first, size_t end, F&& f) const {
  if (first >= end) return;
  std::vector<float> mu(dim_);
  size_t g = group_of(firsts_, first);
  for (; first < end; ++g) {
    const size_t stop = std::min(end, group_end(g));
    kernels_->to_f32(mu.data(), centres_.data() + g * dim_, DType::kF16, dim_);
    f(mu.data(), first, stop - first);
    first = stop;
  }
}

void CentredRows::code_waiting() {
  const size_t groups = firsts_.size();
  std::vector<float> rows(group_rows_ * dim_), mu(dim_);
  waiting_.decode(rows.data(), 0, group_rows_);
  waiting_.clear();
  take_means(mu.data(), rows.data(), group_rows_, dim_);
  firsts_.push_back(static_cast<uint32_t>(inner_->rows()));
  centres_.resize((groups + 1) * dim_);
  kernels_->from_f32(centres_.data() + groups * dim_, mu.data(), DType::kF16, dim_);
  // The centre as it will be added back.
  kernels_->to_f32(mu.data(), centres_.data() + groups * dim_, DType::kF16, dim_);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] -= mu[i % dim_];
  inner_->append(rows.data(), dim_, group_rows_);
}

void CentredRows::keep(std::span<const uint32_t> kept) {
  const size_t coded = inner_->rows();
  const size_t stay = keep_groups(firsts_, centres_, dim_, kept, coded);
  waiting_.keep(kept.subspan(stay), coded);
  inner_->keep(kept.first(stay));
}

void CentredRows::decode(float* out, size_t first, size_t count) const {
  const size_t coded = inner_->rows(), end = first + count;
  const size_t stop = std::clamp(coded, first, end);
  if (first < stop) inner_->decode(out, first, stop - first);
  for_groups(first, stop, [&](const float* mu, size_t at, size_t n) {
    for (size_t t = at; t < at + n; ++t) kernels_->add(out + (t - first) * dim_, mu, dim_);
  });
  if (stop < end) waiting_.decode(out + (stop - first) * dim_, stop - coded, end - stop);
}

void CentredRows::scores(float* out, size_t ld, const float* q, const float* prepared,
                         size_t queries, size_t first, size_t count, float scale) const {
  const size_t coded = inner_->rows(), end = first + count;
  const size_t stop = std::clamp(coded, first, end);
  if (first < stop) inner_->scores(out, ld, q, prepared, queries, first, stop - first, scale);
  for_groups(first, stop, [&](const float* mu, size_t at, size_t n) {
    for (size_t m = 0; m < queries; ++m) {
      const float shift = scale * kernels_->dot(q + m * dim_, mu, dim_);
      float* row = out + m * ld + (at - first);
      for (size_t t = 0; t < n; ++t) row[t] += shift;
    }
  });
  if (stop < end)
    kernels_->dot_rows(out + (stop - first), ld, q, queries, waiting_.dense(stop - coded),
                       end - stop, scale);
}

}  // namespace

double CentredCodec::most_bytes(size_t rows, size_t dim, bool evicted) const {
  // A body has two stores at most, and each may wait.
  const size_t waiting = std::min(rows, (evicted ? 2 : 1) * (group_rows_ - 1));
  const size_t groups = evicted ? rows : rows / group_rows_;
  return inner_->most_bytes(rows, dim, evicted) + static_cast<double>(groups) * group_bytes(dim) +
         static_cast<double>(waiting * dim * sizeof(uint16_t));
}

std::unique_ptr<CodedRows> CentredCodec::make_rows(const Context& context,
                                                   const RowsRequest& request) const {
  return std::make_unique<CentredRows>(context, group_rows_, inner_->make_rows(context, request));
}

}  // namespace pith
