#include "methods/codecs/gear/gear_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "pith/error.h"
#include "policy/registry.h"

namespace pith {

GearRows::GearRows(const Context& context, const GearFormat& format, const RowsRequest& request,
                   std::unique_ptr<CodedRows> codes)
    : CodedRows(context.kernels, request.dim),
      format_(format),
      random_(request.seed, request.layer,
              2 * request.head + (format.side == Side::kValues ? 1 : 0) + kGearStream),
      codes_(std::move(codes)),
      outliers_(context.memory, format.outliers, request.max_rows),
      waiting_(context.memory, context.kernels, request.dim, format.group_rows),
      left_(context.memory, MemoryKind::kPayload),
      right_(context.memory, MemoryKind::kMetadata),
      firsts_(context.memory, MemoryKind::kMetadata) {
  left_.set_growth_limit(request.max_rows * format.rank);
}

GearRows::GearRows(const GearRows& other)
    : CodedRows(other),
      format_(other.format_),
      random_(other.random_),
      codes_(other.codes_->clone()),
      outliers_(other.outliers_),
      waiting_(other.waiting_),
      left_(other.left_),
      right_(other.right_),
      firsts_(other.firsts_) {}

void GearRows::append(const float* x, size_t stride, size_t count) {
  for (size_t t = 0; t < count; ++t) {
    waiting_.push(x + t * stride);
    if (waiting_.count() == format_.group_rows) code_waiting();
  }
}

/// Takes the numbers that stand out of x [n, D] and puts their channel's or row's mean there, so
/// that they do not widen the range of the others. Keys: farthest from the channel's mean in units
/// of its deviation; values: farthest from the row's mean. Returns their channels, [n, outliers].
std::vector<uint16_t> GearRows::take_outliers(std::vector<float>& x) const {
  const size_t n = x.size() / dim_;
  const bool keys = format_.side == Side::kKeys;
  std::vector<float> mean(dim_), inverse(dim_, 1.0f), distance(dim_);
  for (size_t c = 0; keys && c < dim_; ++c) {
    double sum = 0, square = 0;
    for (size_t t = 0; t < n; ++t) sum += x[t * dim_ + c];
    for (size_t t = 0; t < n; ++t) {
      const double d = x[t * dim_ + c] - sum / static_cast<double>(n);
      square += d * d;
    }
    mean[c] = static_cast<float>(sum / static_cast<double>(n));
    inverse[c] = square > 0 ? static_cast<float>(1 / std::sqrt(square)) : 0.0f;
  }
  std::vector<uint16_t> order(dim_), apart;
  for (size_t t = 0; t < n; ++t) {
    float* row = x.data() + t * dim_;
    if (!keys) {
      float sum = 0;
      for (size_t c = 0; c < dim_; ++c) sum += row[c];
      std::fill(mean.begin(), mean.end(), sum / static_cast<float>(dim_));
    }
    for (size_t c = 0; c < dim_; ++c) distance[c] = std::fabs(row[c] - mean[c]) * inverse[c];
    farthest(order.data(), distance.data(), dim_, format_.outliers);
    for (size_t i = 0; i < format_.outliers; ++i) {
      row[order[i]] = mean[order[i]];
      apart.push_back(order[i]);
    }
  }
  return apart;
}

void GearRows::code_waiting() {
  const size_t n = waiting_.count(), before = codes_->rows();
  std::vector<float> exact(n * dim_), coded(n * dim_);
  waiting_.decode(exact.data(), 0, n);
  waiting_.clear();
  std::vector<float> x = exact;
  const std::vector<uint16_t> apart = take_outliers(x);
  codes_->append(x.data(), dim_, n);
  firsts_.push_back(static_cast<uint32_t>(before));
  codes_->decode(coded.data(), before, n);
  factor(x, coded, apart);
  add_product(coded.data(), before, n);
  // The error of codes and product in the numbers apart.
  for (size_t i = 0; i < exact.size(); ++i) exact[i] -= coded[i];
  for (size_t t = 0; t < n && format_.outliers > 0; ++t) {
    const uint16_t* channels = apart.data() + t * format_.outliers;
    for (size_t i = 0; i < format_.outliers; ++i)
      require_f16(exact.data() + t * dim_ + channels[i], 1);
    outliers_.push(exact.data() + t * dim_, channels);
  }
}

/// Stores the product for what `coded` misses of x, both [n, D], in a new group's rows.
void GearRows::factor(const std::vector<float>& x, const std::vector<float>& coded,
                      const std::vector<uint16_t>& apart) {
  const size_t n = x.size() / dim_, rank = format_.rank;
  if (rank == 0) return;
  std::vector<float> missed(x.size());
  for (size_t i = 0; i < x.size(); ++i) missed[i] = x[i] - coded[i];
  for (size_t i = 0; i < apart.size(); ++i) missed[i / format_.outliers * dim_ + apart[i]] = 0;
  const LowRank factors = low_rank(missed, n, dim_, rank, random_);
  const size_t left = left_.size(), right = right_.size();
  left_.resize(left + n * rank);
  right_.resize(right + rank * dim_);
  kernels_->from_f32(left_.data() + left, factors.left.data(), DType::kF16, n * rank);
  kernels_->from_f32(right_.data() + right, factors.right.data(), DType::kF16, rank * dim_);
}

void GearRows::keep(std::span<const uint32_t> kept) {
  const size_t coded = codes_->rows(), right = format_.rank * dim_;
  const size_t stay = keep_groups(firsts_, right_, right, kept, coded);
  waiting_.keep(kept.subspan(stay), coded);
  kept = kept.first(stay);
  codes_->keep(kept);
  outliers_.keep(kept);
  keep_records(left_, format_.rank, kept);
}

/// Calls f(right [r, D], left [r, n], first, n) for the groups of coded rows [first, end); the
/// factors are widened, the left one transposed.
template <class F>
void GearRows::for_factors(size_t first, size_t end, F&& f) const {
  const size_t rank = format_.rank;
  if (rank == 0) return;
  std::vector<float> right(rank * dim_), wide, left;
  for (size_t g = group_of(firsts_, first); first < end; ++g) {
    const size_t n = std::min(end, group_end(g)) - first;
    kernels_->to_f32(right.data(), right_.data() + g * rank * dim_, DType::kF16, rank * dim_);
    wide.resize(n * rank);
    left.resize(n * rank);
    kernels_->to_f32(wide.data(), left_.data() + first * rank, DType::kF16, n * rank);
    for (size_t t = 0; t < n; ++t)
      for (size_t j = 0; j < rank; ++j) left[j * n + t] = wide[t * rank + j];
    f(right.data(), left.data(), first, n);
    first += n;
  }
}

void GearRows::add_product(float* out, size_t first, size_t count) const {
  for_factors(first, first + count,
              [&](const float* right, const float* left, size_t at, size_t n) {
                float* row = out + (at - first) * dim_;
                for (size_t t = 0; t < n; ++t, row += dim_)
                  for (size_t j = 0; j < format_.rank; ++j)
                    kernels_->axpy(row, right + j * dim_, left[j * n + t], dim_);
              });
}

void GearRows::decode(float* out, size_t first, size_t count) const {
  const size_t coded = codes_->rows();
  const size_t end = std::min(first + count, std::max(first, coded));
  if (first + count > end)
    waiting_.decode(out + (end - first) * dim_, end - coded, first + count - end);
  if (first == end) return;
  codes_->decode(out, first, end - first);
  add_product(out, first, end - first);
  for (size_t t = first; t < end; ++t, out += dim_) outliers_.add(out, t);
}

// q k = q codes + (q right) left + the numbers apart: each part for all queries at once.
void GearRows::scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
                      size_t first, size_t count, float scale) const {
  const size_t coded = codes_->rows();
  const size_t end = std::min(first + count, std::max(first, coded));
  if (first + count > end)
    kernels_->dot_rows(out + (end - first), ld, q, queries, waiting_.dense(end - coded),
                       first + count - end, scale);
  if (first == end) return;
  codes_->scores(out, ld, q, prepared, queries, first, end - first, scale);
  for_factors(first, end, [&](const float* right, const float* left, size_t at, size_t n) {
    for (size_t m = 0; m < queries; ++m)
      for (size_t j = 0; j < format_.rank; ++j)
        kernels_->axpy(out + m * ld + (at - first), left + j * n,
                       scale * kernels_->dot(q + m * dim_, right + j * dim_, dim_), n);
  });
  outliers_.add_scores(*kernels_, {out, ld, q, queries, dim_, scale}, first, end - first);
}

void GearRows::accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                          size_t count) const {
  const size_t coded = codes_->rows();
  const size_t end = std::min(first + count, std::max(first, coded));
  if (first + count > end)
    kernels_->add_rows(acc, p + (end - first), ld, queries, waiting_.dense(end - coded),
                       first + count - end);
  if (first == end) return;
  codes_->accumulate(acc, p, ld, queries, first, end - first);
  for_factors(first, end, [&](const float* right, const float* left, size_t at, size_t n) {
    for (size_t m = 0; m < queries; ++m)
      for (size_t j = 0; j < format_.rank; ++j)
        kernels_->axpy(acc + m * dim_, right + j * dim_,
                       kernels_->dot(p + m * ld + (at - first), left + j * n, n), dim_);
  });
  outliers_.add_sums(*kernels_, acc, p, ld, queries, dim_, first, end - first);
}

void GearRows::archive(Archive& a) {
  codes_->archive(a);
  const size_t coded = codes_->rows();
  outliers_.archive(a, coded, dim_);
  waiting_.archive(a, format_.group_rows - 1);
  a.halves(left_, coded * format_.rank);
  a.halves(right_, archive_groups(a, firsts_, coded) * format_.rank * dim_);
}

GearCodec::GearCodec(const GearFormat& format) : format_(format) {
  const CodecRow& kivi = codec_row("kivi");
  const PolicyPart part{kivi.info.name, {{"bits", std::to_string(format.bits)}}};
  codes_ = kivi.make(kivi.read(part), format.side);
}

GearFormat GearCodec::at(size_t dim) const {
  GearFormat format = format_;
  if (format.outliers == kByShare) format.outliers = (2 * dim + 99) / 100;
  return format;
}

double GearCodec::bytes_per_row(size_t dim) const {
  const GearFormat format = at(dim);
  return codes_->bytes_per_row(dim) + static_cast<double>(format.extra_bytes()) +
         static_cast<double>(format.group_bytes(dim)) / static_cast<double>(format.group_rows);
}

double GearCodec::most_bytes(size_t rows, size_t dim, bool evicted) const {
  const GearFormat format = at(dim);
  // A body has two stores at most, and each may wait.
  const size_t waiting = std::min(rows, (evicted ? 2 : 1) * (format.group_rows - 1));
  const size_t groups = evicted ? rows : rows / format.group_rows;
  return codes_->most_bytes(rows, dim, evicted) +
         static_cast<double>(rows * format.extra_bytes() + groups * format.group_bytes(dim) +
                             waiting * 2 * dim);
}

size_t GearCodec::table_bytes(const RowsRequest& request) const {
  const GearFormat format = at(request.dim);
  const size_t dim = request.dim;
  if (dim > kMostOutlierDim || format.outliers >= dim ||
      format.rank > std::min(dim, format.group_rows) || format.group_rows % kWaitingBlock)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("gear was asked for head_dim {}, {} outliers a row, rank {} over {} "
                            "rows; it supports head_dim up to {}, fewer outliers than channels, "
                            "ranks up to the smaller side and groups in multiples of {}",
                            dim, format.outliers, format.rank, format.group_rows, kMostOutlierDim,
                            kWaitingBlock));
  return 0;
}

std::unique_ptr<CodedRows> GearCodec::make_rows(const Context& context,
                                                const RowsRequest& request) const {
  table_bytes(request);  // checks it
  return std::make_unique<GearRows>(context, at(request.dim), request,
                                    codes_->make_rows(context, request));
}

}  // namespace pith
