#include "methods/codecs/kvquant/nonuniform_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kReadable = 4;  // bytes past the last code

void put_bits(uint8_t* codes, int bits, size_t c, uint32_t code) {
  const size_t at = c * static_cast<size_t>(bits), byte = at / 8, shift = at % 8;
  codes[byte] |= static_cast<uint8_t>(code << shift);
  if (shift + static_cast<size_t>(bits) > 8)
    codes[byte + 1] |= static_cast<uint8_t>(code >> (8 - shift));
}

/// f16 low and scale of [least, most], and their values as decoding will read them.
struct Range {
  uint16_t low_bits = 0, scale_bits = 0;
  float low = 0, scale = 0;
  Range(float least, float most)
      : low_bits(f32_to_f16(least)),
        scale_bits(f32_to_f16(most - least)),
        low(f16_to_f32(low_bits)),
        scale(f16_to_f32(scale_bits)) {
    if (!std::isfinite(scale))
      throw Error(
          ErrorCode::kNonFinite,
          fmt::format("keys or values between {} and {} do not fit codes with an f16 scale; "
                      "use bf16 or f32 rows for this model",
                      least, most));
  }
};

/// In [0, 1] for numbers within the range. Others are not clamped: with few of them apart, levels
/// that reach past the range cost less than their clamping (docs/methods/kvquant.md).
float in_range(float x, float low, float scale) { return scale > 0 ? (x - low) / scale : 0.0f; }

}  // namespace

/// The inputs of coding a row, made once for many rows.
struct NonUniformRows::Room {
  explicit Room(size_t dim) : low(dim), scale(dim), distance(dim), order(dim), codes(dim) {}
  std::vector<float> low, scale;  // [D], of the row at hand
  std::vector<float> distance;    // [D]
  std::vector<uint16_t> order;    // [D], the outliers first
  std::vector<uint8_t> codes;     // [D]
};

NonUniformRows::NonUniformRows(const Context& context, const NonUniformFormat& format,
                               const RowsRequest& request)
    : CodedRows(context.kernels, request.dim),
      format_(format),
      waiting_(context.memory, context.kernels, request.dim, format.calibrate),
      codes_(context.memory, MemoryKind::kPayload),
      ranges_(context.memory, MemoryKind::kMetadata),
      tables_(context.memory, MemoryKind::kMetadata),
      outliers_(context.memory, format.outliers, request.max_rows) {
  codes_.set_growth_limit(request.max_rows * format.code_bytes(dim_) + kReadable);
  ranges_.set_growth_limit(request.max_rows * format.range_bytes() / 2);
}

void NonUniformRows::append(const float* x, size_t stride, size_t count) {
  Room room(dim_);
  if (calibrated() && format_.side == Side::kKeys) {
    kernels_->to_f32(room.low.data(), tables_.data(), DType::kF16, dim_);
    kernels_->to_f32(room.scale.data(), tables_.data() + dim_, DType::kF16, dim_);
  }
  for (size_t t = 0; t < count; ++t) {
    const float* row = x + t * stride;
    if (calibrated()) {
      require_f16(row, dim_);
      code(row, room);
      continue;
    }
    waiting_.push(row);
    if (waiting_.count() < format_.calibrate) continue;
    calibrate();
    return append(row + stride, stride, count - t - 1);
  }
}

/// Values: low and scale from what is left of the row without the numbers farthest from its mean.
/// Keys have them already. Writes room.low and room.scale, and for values room.order.
void NonUniformRows::choose_range(const float* row, Room& room) {
  float mean = 0;
  for (size_t c = 0; c < dim_; ++c) mean += row[c] / static_cast<float>(dim_);
  for (size_t c = 0; c < dim_; ++c) room.distance[c] = std::fabs(row[c] - mean);
  farthest(room.order.data(), room.distance.data(), dim_, format_.outliers);
  float least = 65504, most = -65504;
  for (size_t c = 0, next = 0; c < dim_; ++c) {
    if (next < format_.outliers && room.order[next] == c) {
      ++next;
      continue;
    }
    least = std::min(least, row[c]);
    most = std::max(most, row[c]);
  }
  const Range range(least, most);
  std::fill(room.low.begin(), room.low.end(), range.low);
  std::fill(room.scale.begin(), room.scale.end(), range.scale);
}

/// Keys: the numbers that their codes miss by most are kept apart.
void NonUniformRows::find_worst(const float* row, Room& room) const {
  for (size_t c = 0; c < dim_; ++c)
    room.distance[c] =
        std::fabs(row[c] - (room.low[c] + room.scale[c] * codebook_.levels()[room.codes[c]]));
  farthest(room.order.data(), room.distance.data(), dim_, format_.outliers);
}

void NonUniformRows::code(const float* row, Room& room) {
  const bool keys = format_.side == Side::kKeys;
  if (!keys) {
    choose_range(row, room);
    ranges_.push_back(f32_to_f16(room.low[0]));
    ranges_.push_back(f32_to_f16(room.scale[0]));
  }
  for (size_t c = 0; c < dim_; ++c)
    room.codes[c] = codebook_.nearest(in_range(row[c], room.low[c], room.scale[c]));
  if (keys) find_worst(row, room);
  const size_t before = rows_ * format_.code_bytes(dim_), bytes = format_.code_bytes(dim_);
  codes_.resize(before + bytes + kReadable);
  std::fill_n(codes_.data() + before, bytes + kReadable, uint8_t{0});
  for (size_t c = 0; c < dim_; ++c)
    put_bits(codes_.data() + before, format_.bits, c, room.codes[c]);
  outliers_.push(row, room.order.data());
  ++rows_;
}

/// Keys: each channel's range over the waiting rows leaves out the share of numbers that rows keep
/// apart. Writes the tables' first part, room.low and room.scale.
void NonUniformRows::choose_ranges(const std::vector<float>& rows, Room& room) {
  const size_t n = rows.size() / dim_;
  const auto cut = static_cast<size_t>(
      std::lround(static_cast<double>(n * format_.outliers) / static_cast<double>(2 * dim_)));
  std::vector<float> column(n);
  tables_.resize(2 * dim_);
  for (size_t c = 0; c < dim_; ++c) {
    for (size_t t = 0; t < n; ++t) column[t] = rows[t * dim_ + c];
    std::sort(column.begin(), column.end());
    const Range range(column[cut], column[n - 1 - cut]);
    tables_[c] = range.low_bits;
    tables_[dim_ + c] = range.scale_bits;
    room.low[c] = range.low;
    room.scale[c] = range.scale;
  }
}

/// Numbers count by their scale squared in the fit: the error of the numbers themselves is made
/// small, where KVQuant weighs by the model's gradients, which nobody has at run time.
void NonUniformRows::calibrate() {
  const bool keys = format_.side == Side::kKeys;
  const size_t n = waiting_.count();
  std::vector<float> rows(n * dim_);
  waiting_.decode(rows.data(), 0, n);
  waiting_.clear();
  Room room(dim_);
  std::vector<WeightedNumber> numbers;
  numbers.reserve(n * dim_);
  if (keys) choose_ranges(rows, room);
  for (size_t t = 0; t < n; ++t) {
    const float* row = rows.data() + t * dim_;
    if (!keys) choose_range(row, room);
    for (size_t c = 0, next = 0; c < dim_; ++c) {
      const bool apart = !keys && next < format_.outliers && room.order[next] == c;
      next += apart;
      const float scale = room.scale[c];
      if (!apart && scale > 0)
        numbers.push_back({in_range(row[c], room.low[c], scale), scale * scale});
    }
  }
  codebook_ = Codebook(numbers, format_.bits);
  for (size_t i = 0; i < codebook_.size(); ++i)
    tables_.push_back(f32_to_f16(codebook_.levels()[i]));
  for (size_t t = 0; t < n; ++t) code(rows.data() + t * dim_, room);
}

void NonUniformRows::keep(std::span<const uint32_t> kept) {
  // Waiting rows and coded ones never are there together.
  if (!calibrated()) return waiting_.keep(kept, 0);
  rows_ = kept.size();
  keep_records(codes_, format_.code_bytes(dim_), kept, kReadable);
  keep_records(ranges_, format_.range_bytes() / 2, kept);
  outliers_.keep(kept);
}

void NonUniformRows::archive(Archive& a) {
  bool coded = calibrated();
  a.flag(coded);
  waiting_.archive(a, coded ? 0 : format_.calibrate - 1);
  if (!coded) return;
  const size_t levels = size_t{1} << format_.bits;
  const size_t ranges = format_.side == Side::kKeys ? 2 * dim_ : 0;
  a.halves(tables_, ranges + levels);
  if (a.loads()) codebook_ = Codebook(std::span<const uint16_t>(tables_).subspan(ranges));
  a.number(rows_, kMostRows, "too many rows");
  a.numbers(codes_, rows_ * format_.code_bytes(dim_), kReadable);
  a.halves(ranges_, rows_ * format_.range_bytes() / 2);
  outliers_.archive(a, rows_, dim_);
}

LevelRows NonUniformRows::level_rows(size_t first) const {
  const size_t bytes = format_.code_bytes(dim_);
  return {codes_.data() + first * bytes, format_.bits, dim_, bytes, codebook_.levels()};
}

void NonUniformRows::decode(float* out, size_t first, size_t count) const {
  if (!calibrated()) return waiting_.decode(out, first, count);
  alignas(64) float low[kMostOutlierDim] = {}, scale[kMostOutlierDim];
  if (format_.side == Side::kKeys) {
    kernels_->to_f32(low, tables_.data(), DType::kF16, dim_);
    kernels_->to_f32(scale, tables_.data() + dim_, DType::kF16, dim_);
    kernels_->unpack_levels(out, level_rows(first), scale, low, count);
  } else {
    std::fill_n(scale, dim_, 1.0f);
    kernels_->unpack_levels(out, level_rows(first), scale, low, count);
    for (size_t t = 0; t < count; ++t) {
      const Sides of = sides(first + t);
      for (float* x = out + t * dim_; x < out + (t + 1) * dim_; ++x) *x = of.low + of.scale * *x;
    }
  }
  if (outliers_.per_row() == 0) return;
  for (size_t t = 0; t < count; ++t) outliers_.restore(out + t * dim_, first + t);
}

NonUniformRows::Sides NonUniformRows::sides(size_t row) const {
  return {f16_to_f32(ranges_[2 * row]), f16_to_f32(ranges_[2 * row + 1])};
}

float NonUniformRows::coded_number(size_t row, size_t channel) const {
  const size_t bits = static_cast<size_t>(format_.bits), at = channel * bits;
  uint16_t word;
  std::memcpy(&word, codes_.data() + row * format_.code_bytes(dim_) + at / 8, sizeof(word));
  const Sides of = sides(row);
  return of.low + of.scale * codebook_.levels()[word >> (at % 8) & ((1u << bits) - 1)];
}

// acc += sum_t p[t] (low[t] + scale[t] levels), then what numbers apart have more than their codes.
void NonUniformRows::accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                                size_t count) const {
  if (!calibrated() || !codes_attend(dim_) || format_.side == Side::kKeys)
    return CodedRows::accumulate(acc, p, ld, queries, first, count);
  std::vector<float> lows(count), scales(count), weights(queries * count), ones(dim_, 1.0f);
  for (size_t t = 0; t < count; ++t) {
    const Sides of = sides(first + t);
    lows[t] = of.low;
    scales[t] = of.scale;
  }
  for (size_t m = 0; m < queries; ++m) {
    kernels_->multiply(weights.data() + m * count, p + m * ld, scales.data(), count);
    kernels_->axpy(acc + m * dim_, ones.data(), kernels_->dot(p + m * ld, lows.data(), count),
                   dim_);
  }
  kernels_->add_levels(acc, weights.data(), count, queries, level_rows(first), count);
  for (size_t t = 0; t < count; ++t)
    outliers_.for_row(first + t, [&](size_t c, float x) {
      const float more = x - coded_number(first + t, c);
      for (size_t m = 0; m < queries; ++m) acc[m * dim_ + c] += p[m * ld + t] * more;
    });
}

NonUniformFormat NonUniformCodec::at(size_t dim) const {
  NonUniformFormat format = format_;
  if (format.outliers == kByShare) format.outliers = (dim + 99) / 100;
  return format;
}

double NonUniformCodec::most_bytes(size_t rows, size_t dim, bool evicted) const {
  const NonUniformFormat format = at(dim);
  // A body has two stores at most, and each may wait; a store that was full keeps its tables.
  const size_t stores = evicted ? 2 : 1;
  const size_t waiting = std::min(rows, stores * (format.calibrate - 1));
  return static_cast<double>(rows * format.row_bytes(dim) + stores * format.table_bytes(dim) +
                             waiting * 2 * dim);
}

size_t NonUniformCodec::table_bytes(const RowsRequest& request) const {
  const NonUniformFormat format = at(request.dim);
  if (request.dim > kMostOutlierDim || format.outliers >= request.dim)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("kvquant was asked for head_dim {} and {} outliers a row; it supports "
                            "head_dim up to {} and fewer outliers than channels",
                            request.dim, format.outliers, kMostOutlierDim));
  return 0;  // a head's own: metadata of its rows
}

std::unique_ptr<CodedRows> NonUniformCodec::make_rows(const Context& context,
                                                      const RowsRequest& request) const {
  table_bytes(request);  // checks it
  return std::make_unique<NonUniformRows>(context, at(request.dim), request);
}

}  // namespace pith
