#include "methods/codecs/kvtc/transform_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "methods/codecs/kvtc/normal_levels.h"
#include "methods/codecs/kvtc/transform_tables.h"
#include "rows/cpu/compaction.h"
#include "rows/tight_rows.h"

namespace pith {
namespace {

constexpr size_t kTile = 64;  // rows decoded at a time

enum Form : uint8_t { kWaiting = 2, kCoded = 3 };  // as saved

float scale_of(int code) { return f16_to_f32(half_of_tight(static_cast<uint8_t>(code))); }

}  // namespace

size_t TransformFormat::row_bytes(size_t dim) const {
  return static_cast<size_t>(std::max(2l, std::lround(bits * static_cast<double>(dim) / 8)));
}

size_t TransformFormat::table_bytes(size_t dim, size_t coordinates) const {
  const size_t vector = kBasis.code_bytes(dim) + kBasis.side_bytes(dim);
  return 2 * dim + coordinates * (vector + sizeof(uint16_t) + 1);
}

/// As rows are coded and read.
struct TransformRows::Tables {
  struct Coordinate {
    const NormalLevels* levels;
    float deviation;
    size_t byte, shift, mask;  ///< of its code in a row

    /// Reads a byte more than it has, which is the scale's at the end.
    size_t code(const uint8_t* row) const {
      return (row[byte] | size_t{row[byte + 1]} << 8) >> shift & mask;
    }
  };
  std::vector<Coordinate> coordinates;  // [R]
  std::vector<float> mean, basis;       // [D], [R, D]
  std::vector<float> weights;           // [D]
};

TransformRows::TransformRows(const Context& context, const TransformFormat& format,
                             const RowsRequest& request)
    : CodedRows(context.kernels, request.dim),
      pool_(&context.pool),
      format_(format),
      waiting_(context.memory, context.kernels, request.dim, format.calibrate),
      codes_(context.memory, MemoryKind::kPayload),
      weights_(context.memory, MemoryKind::kMetadata),
      mean_(context.memory, MemoryKind::kMetadata),
      deviations_(context.memory, MemoryKind::kMetadata),
      bits_(context.memory, MemoryKind::kMetadata) {
  codes_.set_growth_limit(request.max_rows * format.row_bytes(dim_));
  RowsRequest vectors = request;
  vectors.max_rows = format.most_coordinates(dim_);
  basis_ = TokenCodec(TransformFormat::kBasis).make_rows(context, vectors);
}

TransformRows::TransformRows(const TransformRows& other)
    : CodedRows(other),
      pool_(other.pool_),
      format_(other.format_),
      waiting_(other.waiting_),
      rows_(other.rows_),
      codes_(other.codes_),
      weights_(other.weights_),
      mean_(other.mean_),
      deviations_(other.deviations_),
      bits_(other.bits_),
      basis_(other.basis_->clone()) {}

size_t TransformRows::allocated_bytes() const {
  return codes_.capacity_bytes() + waiting_.allocated_bytes() + weights_.capacity_bytes() +
         mean_.capacity_bytes() + deviations_.capacity_bytes() + bits_.capacity_bytes() +
         basis_->allocated_bytes();
}

TransformRows::Tables TransformRows::tables() const {
  Tables t{{},
           std::vector<float>(dim_),
           std::vector<float>(coordinates() * dim_),
           channel_weights(weights_, dim_)};
  for (size_t i = 0, at = 0; i < coordinates(); at += bits_[i++])
    t.coordinates.push_back({&normal_levels()[bits_[i] - 1u], f16_to_f32(deviations_[i]), at / 8,
                             at % 8, (size_t{1} << bits_[i]) - 1});
  kernels_->to_f32(t.mean.data(), mean_.data(), DType::kF16, dim_);
  basis_->decode(t.basis.data(), 0, coordinates());
  return t;
}

void TransformRows::show_queries(std::span<const float> energy) {
  if (learned()) return;
  const std::vector<uint8_t> codes = pair_weights(energy);
  weights_.resize(codes.size());
  std::ranges::copy(codes, weights_.begin());
}

void TransformRows::append(const float* x, size_t stride, size_t count) {
  size_t t = 0;
  for (; t < count && !learned(); ++t) {
    waiting_.push(x + t * stride);
    if (waiting_.count() == format_.calibrate) learn();
  }
  if (t < count) code(x + t * stride, stride, count - t);
}

void TransformRows::learn() {
  const std::vector<float> rows = waiting_.take_all(mean_);
  std::vector<float> mean(dim_);
  kernels_->to_f32(mean.data(), mean_.data(), DType::kF16, dim_);
  const TransformTables found =
      find_transform(rows, mean, channel_weights(weights_, dim_), format_.code_bits(dim_), *pool_);
  const size_t coded = found.bits.size();
  bits_.resize(coded);
  std::ranges::copy(found.bits, bits_.data());
  basis_->append(found.vectors.data(), dim_, coded);
  deviations_.resize(coded);
  kernels_->from_f32(deviations_.data(), found.deviations.data(), DType::kF16, coded);
  code(rows.data(), dim_, rows.size() / dim_);
}

void TransformRows::code(const float* x, size_t stride, size_t count) {
  const Tables t = tables();
  const size_t bytes = format_.row_bytes(dim_);
  codes_.resize((rows_ + count) * bytes);
  std::fill_n(codes_.data() + rows_ * bytes, count * bytes, uint8_t{0});
  for (size_t i = 0; i < count; ++i) {
    require_f16(x + i * stride, dim_);
    code_row(codes_.data() + rows_ * bytes, t, x + i * stride);
    ++rows_;
  }
}

/// The scale under which codes miss `along` [R] by least, near the row's own deviation or its
/// length's share of the usual one, whichever is better: small coordinates that are larger than
/// tables say weigh much in the one and little in the other, as they do in the error.
uint8_t TransformRows::best_scale(const Tables& t, const std::vector<float>& along) const {
  const auto error_at = [&](int code) {
    double error = 0;
    for (size_t i = 0; i < along.size(); ++i) {
      const float unit = scale_of(code) * t.coordinates[i].deviation;
      const float level = unit > 0 ? t.coordinates[i].levels->at_nearest(along[i] / unit) : 0.0f;
      error += std::pow(double{along[i]} - unit * level, 2);
    }
    return error;
  };
  double shares = 0, square = 0, usual = 0;
  for (size_t i = 0; i < along.size(); ++i) {
    const double deviation = t.coordinates[i].deviation;
    shares += std::pow(along[i] / deviation, 2);
    square += std::pow(along[i], 2);
    usual += std::pow(deviation, 2);
  }
  const auto near = [](double square_of_scale) {
    const double scale = std::min(std::sqrt(square_of_scale), 65504.0);
    return int{tight_of_half(f32_to_f16(static_cast<float>(scale)))};
  };
  int first = near(shares / static_cast<double>(std::max<size_t>(along.size(), 1)));
  double least = error_at(first);
  if (const int other = near(usual > 0 ? square / usual : 0); other != first) {
    const double error = error_at(other);
    if (error < least) first = other, least = error;
  }
  int best = first;
  for (const int step : {1, -1}) {
    for (int code = first + step; code >= 0 && code <= kLargestTightScale; code += step) {
      const double error = error_at(code);
      if (error >= least) break;
      least = error;
      best = code;
    }
  }
  return static_cast<uint8_t>(best);
}

void TransformRows::code_row(uint8_t* out, const Tables& t, const float* x) const {
  const size_t n = coordinates();
  std::vector<float> rest(dim_), along(n);
  for (size_t c = 0; c < dim_; ++c) rest[c] = t.weights[c] * (x[c] - t.mean[c]);
  kernels_->dot_rows(along.data(), n, rest.data(), 1, {t.basis.data(), DType::kF32, dim_}, n, 1);
  uint8_t& scale = out[format_.row_bytes(dim_) - 1];
  scale = best_scale(t, along);
  for (size_t i = 0; i < n && scale > 0; ++i) {
    const float* vector = t.basis.data() + i * dim_;
    const Tables::Coordinate& to = t.coordinates[i];
    const float unit = scale_of(scale) * to.deviation;
    const uint32_t code = to.levels->nearest(kernels_->dot(vector, rest.data(), dim_) / unit);
    kernels_->axpy(rest.data(), vector, -unit * to.levels->levels()[code], dim_);
    out[to.byte] |= static_cast<uint8_t>(code << to.shift);
    if (code << to.shift > 0xff) out[to.byte + 1] |= static_cast<uint8_t>(code << to.shift >> 8);
  }
}

void TransformRows::decode(float* out, size_t first, size_t count) const {
  if (!learned()) return waiting_.decode(out, first, count);
  Tables t = tables();
  const size_t n = coordinates(), bytes = format_.row_bytes(dim_);
  for (size_t i = 0; i < t.basis.size(); ++i) t.basis[i] /= t.weights[i % dim_];
  std::vector<float> along(std::min(count, kTile) * n);
  for (size_t done = 0; done < count; done += kTile) {
    const size_t rows = std::min(kTile, count - done);
    for (size_t r = 0; r < rows; ++r) {
      const uint8_t* in = codes_.data() + (first + done + r) * bytes;
      const float scale = scale_of(in[bytes - 1]);
      for (size_t i = 0; i < n; ++i) {
        const Tables::Coordinate& from = t.coordinates[i];
        along[r * n + i] = scale * from.deviation * from.levels->levels()[from.code(in)];
      }
      std::copy_n(t.mean.data(), dim_, out + (done + r) * dim_);
    }
    kernels_->gemm({.c = out + done * dim_,
                    .ldc = dim_,
                    .a = along.data(),
                    .lda = n,
                    .b = t.basis.data(),
                    .ldb = dim_,
                    .m = rows,
                    .n = dim_,
                    .k = n,
                    .accumulate = true});
  }
}

void TransformRows::keep(std::span<const uint32_t> kept) {
  if (!learned()) return waiting_.keep(kept, 0);
  rows_ = kept.size();
  keep_records(codes_, format_.row_bytes(dim_), kept);
}

void TransformRows::archive(Archive& a) {
  // Rows without weights began with 0 or 1.
  auto form = static_cast<uint8_t>(learned() ? kCoded : kWaiting);
  a.number(form, uint8_t{kCoded}, "kvtc's rows are of a newer version");
  a.need(form >= kWaiting, "kvtc's rows are of an older version, without weights: read them again");
  const bool coded = form == kCoded;
  waiting_.archive(a, coded ? 0 : format_.calibrate - 1);
  size_t pairs = weights_.size();
  a.number(pairs, dim_ / 2, "more weights than pairs of channels");
  a.need(pairs == 0 || pairs == dim_ / 2, "fewer weights than pairs of channels");
  a.numbers(weights_, pairs);
  for (size_t i = 0; a.loads() && i < pairs; ++i)
    a.need(weights_[i] > 0 && weights_[i] <= kLargestTightScale, "a weight is not above 0");
  if (!coded) return;
  size_t n = coordinates();
  a.number(n, format_.most_coordinates(dim_), "more coordinates than a row has bits");
  a.halves(mean_, dim_);
  a.halves(deviations_, n);
  a.numbers(bits_, n);
  size_t sum = 0;
  for (size_t i = 0; i < n && !a.counts(); ++i) {
    a.need(bits_[i] >= 1 && bits_[i] <= kMostLevelBits, "a coordinate of 0 or more than 8 bits");
    sum += bits_[i];
  }
  a.need(sum <= format_.code_bits(dim_), "coordinates have more bits than a row");
  basis_->archive(a);
  a.need(basis_->rows() == n, "vectors and coordinates differ in number");
  a.number(rows_, kMostRows, "too many rows");
  const size_t bytes = format_.row_bytes(dim_);
  a.numbers(codes_, rows_ * bytes);
  for (size_t t = 0; a.loads() && t < rows_; ++t)
    a.need(codes_[(t + 1) * bytes - 1] <= kLargestTightScale, "a scale is not finite");
}

double TransformCodec::most_bytes(size_t rows, size_t dim, bool evicted) const {
  // A body that loses rows has two stores at most, and each may wait; one that was full keeps its
  // tables. A single one takes most just before it is coded, or at the end.
  const size_t stores = evicted ? 2 : 1;
  const size_t weights = side_ == Side::kKeys && rows > 0 ? stores * (dim / 2) : 0;
  const size_t waiting = std::min(rows, stores * (format_.calibrate - 1)) * 2 * dim;
  if (!evicted && rows < format_.calibrate) return static_cast<double>(waiting + weights);
  const size_t coded = rows * format_.row_bytes(dim) +
                       stores * format_.table_bytes(dim, format_.most_coordinates(dim));
  return static_cast<double>(weights + (evicted ? coded + waiting : std::max(coded, waiting)));
}

}  // namespace pith
