#include "methods/kvquant/nonuniform_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "pith/error.h"

namespace pith {
namespace {

/// Reads or writes 8 codes of kBits bits at a time: kBits bytes, the first code in the low bits.
template <int kBits>
void unpack_levels(float* out, const uint8_t* codes, const float* levels, size_t dim) {
  for (size_t c = 0; c < dim; c += 8, codes += kBits) {
    uint32_t word = 0;
    std::memcpy(&word, codes, kBits);
    for (size_t i = 0; i < 8; ++i) out[c + i] = levels[word >> (kBits * i) & ((1u << kBits) - 1)];
  }
}

void unpack_levels(float* out, const uint8_t* codes, int bits, const float* levels, size_t dim) {
  if (bits == 2) return unpack_levels<2>(out, codes, levels, dim);
  if (bits == 3) return unpack_levels<3>(out, codes, levels, dim);
  return unpack_levels<4>(out, codes, levels, dim);
}

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

/// What coding a row needs, made once for many rows.
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
  codes_.set_growth_limit(request.max_rows * format.code_bytes(dim_));
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
  const size_t before = codes_.size(), bytes = format_.code_bytes(dim_);
  codes_.resize(before + bytes);
  std::fill_n(codes_.data() + before, bytes, uint8_t{0});
  for (size_t c = 0; c < dim_; ++c)
    put_bits(codes_.data() + before, format_.bits, c, room.codes[c]);
  outliers_.push(row, room.order.data());
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
  keep_records(codes_, format_.code_bytes(dim_), kept);
  keep_records(ranges_, format_.range_bytes() / 2, kept);
  outliers_.keep(kept);
}

void NonUniformRows::decode(float* out, size_t first, size_t count) const {
  if (!calibrated()) return waiting_.decode(out, first, count);
  const bool keys = format_.side == Side::kKeys;
  alignas(64) float low[kMostOutlierDim], scale[kMostOutlierDim];
  if (keys) {
    kernels_->to_f32(low, tables_.data(), DType::kF16, dim_);
    kernels_->to_f32(scale, tables_.data() + dim_, DType::kF16, dim_);
  }
  for (size_t t = first; t < first + count; ++t, out += dim_) {
    unpack_levels(out, codes_.data() + t * format_.code_bytes(dim_), format_.bits,
                  codebook_.levels(), dim_);
    if (keys) {
      for (size_t c = 0; c < dim_; ++c) out[c] = low[c] + scale[c] * out[c];
    } else {
      const float l = f16_to_f32(ranges_[2 * t]), s = f16_to_f32(ranges_[2 * t + 1]);
      for (size_t c = 0; c < dim_; ++c) out[c] = l + s * out[c];
    }
    outliers_.restore(out, t);
  }
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

std::unique_ptr<CodedRows> NonUniformCodec::make_rows(const Context& context,
                                                      const RowsRequest& request) const {
  const NonUniformFormat format = at(request.dim);
  if (request.dim > kMostOutlierDim || format.outliers >= request.dim)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("kvquant was asked for head_dim {} and {} outliers a row; it supports "
                            "head_dim up to {} and fewer outliers than channels",
                            request.dim, format.outliers, kMostOutlierDim));
  return std::make_unique<NonUniformRows>(context, format, request);
}

}  // namespace pith
