#include "rows/cpu/plane_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/allocation.h"
#include "core/dtype.h"
#include "pith/error.h"
#include "rows/cpu/compaction.h"
#include "rows/cpu/rotated_rows.h"
#include "rows/tight_rows.h"

namespace pith {
namespace {

bool bit(const uint8_t* bits, size_t i) { return bits[i / 8] >> (i % 8) & 1; }

void set_bit(uint8_t* bits, size_t i) { bits[i / 8] |= static_cast<uint8_t>(1u << (i % 8)); }

/// Puts the code of channel c into a row that was zeroed.
void put_code(uint8_t* codes, int bits, size_t c, uint32_t code) {
  for (int i = 0; i < bits; ++i)
    if (code >> i & 1) set_bit(codes, c * static_cast<size_t>(bits) + static_cast<size_t>(i));
}

constexpr size_t kTile = 32;  // rows unpacked at a time

float scale_of(uint8_t code) { return f16_to_f32(half_of_tight(code)); }

/// Forks share them and may outlive this session, so that the counter is the engine's.
std::shared_ptr<const Array<float>> draw_signs(MemoryCounter& memory, const RowsRequest& request) {
  Array<float> signs(memory.root(), MemoryKind::kShared);
  signs.reserve(request.dim);
  signs.resize(request.dim);
  for (size_t c = 0; c < request.dim; ++c)
    signs[c] = turn_flips(request.seed, request.layer, c) ? -1.0f : 1.0f;
  return std::make_shared<const Array<float>>(std::move(signs));
}

/// Sums of `count` vectors x [count, n].
void sum_rows(float* out, const float* x, size_t n, size_t count) {
  for (size_t m = 0; m < count; ++m) {
    out[m] = 0;
    for (size_t i = 0; i < n; ++i) out[m] += x[m * n + i];
  }
}

}  // namespace

PlaneRows::PlaneRows(const Context& context, const PlaneFormat& format, const RowsRequest& request,
                     std::shared_ptr<const Projection> projection,
                     std::shared_ptr<const Array<float>> signs)
    : CodedRows(context.kernels, request.dim),
      format_(format),
      projection_(std::move(projection)),
      signs_(std::move(signs)),
      codes_(context.memory, MemoryKind::kPayload),
      norms_(context.memory, MemoryKind::kMetadata) {
  for (uint32_t code = 0; code < 1u << format.planes; ++code) levels_[code] = format.level(code);
  codes_.set_growth_limit(request.max_rows * format.code_bytes(dim_) + kReadable);
  norms_.set_growth_limit(request.max_rows * format.norms());
}

void PlaneRows::archive(Archive& a) {
  size_t count = rows();
  a.number(count, kMostRows, "too many rows");
  a.numbers(codes_, count * format_.code_bytes(dim_), kReadable);
  for (size_t t = 0; a.loads() && format_.tight && t < count; ++t)
    a.need(codes_[(t + 1) * format_.code_bytes(dim_) - 1] <= kLargestTightScale,
           "a scale is not finite");
  a.halves(norms_, count * format_.norms());
}

void PlaneRows::append(const float* x, size_t stride, size_t count) {
  const size_t before = rows(), bytes = format_.code_bytes(dim_);
  for (size_t t = 0; t < count; ++t) {
    const float norm = std::sqrt(kernels_->dot(x + t * stride, x + t * stride, dim_));
    if (!(norm <= 65504))
      throw Error(ErrorCode::kNonFinite,
                  fmt::format("a key or value of norm {} does not fit an f16 scale; {}", norm,
                              std::isfinite(norm) ? "use bf16 or f32 rows for this model"
                                                  : "the model's activations are not finite"));
  }
  codes_.resize((before + count) * bytes + kReadable);
  std::fill_n(codes_.data() + before * bytes, count * bytes + kReadable, uint8_t{0});
  norms_.resize((before + count) * format_.norms());
  std::vector<float> room(2 * dim_ + projection_->bits());
  for (size_t t = 0; t < count; ++t) code(x + t * stride, before + t, room);
}

void PlaneRows::turn(float* x, size_t count) const {
  for (size_t t = 0; signs_ && t < count; ++t)
    kernels_->multiply(x + t * dim_, x + t * dim_, signs_->data(), dim_);
  rotate_hadamard(*kernels_, x, dim_, count);
}

void PlaneRows::turn_back(float* x, size_t count) const {
  rotate_hadamard(*kernels_, x, dim_, count);
  for (size_t t = 0; signs_ && t < count; ++t)
    kernels_->multiply(x + t * dim_, x + t * dim_, signs_->data(), dim_);
}

void PlaneRows::take_levels(float* levels, uint8_t* bits, const float* x, float unit) const {
  const uint32_t half = 1u << (format_.planes - 1);
  const auto put = [&](size_t c, uint32_t code) {
    levels[c] = levels_[code];
    if (bits) put_code(bits, format_.planes, c, code);
  };
  if (format_.sign_and_level()) {
    for (size_t c = 0; c < dim_; ++c) {
      uint32_t i = 0;
      while (i + 1 < half &&
             2 * std::abs(x[c]) >= (levels_[half + i] + levels_[half + i + 1]) * unit)
        ++i;
      put(c, x[c] >= 0 ? half + i : i);
    }
    return;
  }
  for (size_t c = 0; c < dim_; ++c) {
    // Sign by sign of what is left: the nearest sum, for the weights of PlaneFormat.
    float level = 0;
    uint32_t code = 0;
    for (int i = 0; i < format_.planes; ++i) {
      const bool more = x[c] >= level * unit;
      level += more ? format_.weight(i) : -format_.weight(i);
      code |= static_cast<uint32_t>(more) << i;
    }
    put(c, code);
  }
}

void PlaneRows::code_tight(uint8_t* bits, float* levels, const float* x, float deviation) const {
  take_levels(levels, nullptr, x, deviation);
  const float square = kernels_->dot(x, x, dim_), along = kernels_->dot(x, levels, dim_);
  const float fit = along / kernels_->dot(levels, levels, dim_);
  const uint8_t scale =
      tight_of_half(f32_to_f16(along > 0 ? std::min(square / along, 2 * fit) : fit));
  bits[format_.plane_bytes(dim_)] = scale;
  const auto length = [&](float moved) {
    take_levels(levels, nullptr, x, scale_of(scale) * moved);
    return scale_of(scale) * kernels_->dot(x, levels, dim_);
  };
  // Lower thresholds name larger levels: the length along the row falls as they move up.
  float low = kNearestThresholds, high = kFarthestThresholds;
  for (int i = 0; i < kThresholdHalvings; ++i) {
    const float middle = 0.5f * (low + high);
    (length(middle) > square ? low : high) = middle;
  }
  const bool lower = std::abs(length(low) - square) < std::abs(length(high) - square);
  take_levels(levels, bits, x, scale_of(scale) * (lower ? low : high));
}

void PlaneRows::code(const float* x, size_t at, std::vector<float>& room) {
  float *turned = room.data(), *levels = turned + dim_, *sketch = levels + dim_;
  uint8_t* bits = codes_.data() + at * format_.code_bytes(dim_);
  std::copy_n(x, dim_, turned);
  turn(turned, 1);
  const float deviation = std::sqrt(kernels_->dot(turned, turned, dim_) / static_cast<float>(dim_));
  if (format_.tight) return code_tight(bits, levels, turned, deviation);
  take_levels(levels, bits, turned, deviation);
  const float along = kernels_->dot(turned, levels, dim_);
  float fit = along / kernels_->dot(levels, levels, dim_);
  if (format_.whole_rows && along > 0)
    fit = std::min(kernels_->dot(turned, turned, dim_) / along, 2 * fit);
  uint16_t* norms = norms_.data() + at * format_.norms();
  norms[0] = f32_to_f16(fit);
  if (format_.norms() == 1) return;
  kernels_->axpy(turned, levels, -f16_to_f32(norms[0]), dim_);
  turn_back(turned, 1);
  norms[1] = f32_to_f16(std::sqrt(kernels_->dot(turned, turned, dim_)));
  projection_->apply(*kernels_, sketch, turned);
  uint8_t* signs = bits + format_.plane_bytes(dim_);
  for (size_t i = 0; i < projection_->bits(); ++i)
    if (sketch[i] >= 0) set_bit(signs, i);
}

LevelRows PlaneRows::level_rows(size_t first) const {
  const size_t bytes = format_.code_bytes(dim_);
  return {codes_.data() + first * bytes, format_.planes, dim_, bytes, levels_.data()};
}

void PlaneRows::read_factors(float* out, size_t norm, float weight, size_t first,
                             size_t count) const {
  const size_t bytes = format_.code_bytes(dim_);
  for (size_t t = 0; t < count; ++t)
    out[t] = weight * (format_.tight ? scale_of(codes_[(first + t + 1) * bytes - 1])
                                     : f16_to_f32(norms_[(first + t) * format_.norms() + norm]));
}

/// Calls f(tile, at, count) for runs of rows as they were rotated, without their scales.
template <class F>
void PlaneRows::for_tiles(size_t first, size_t count, F&& f) const {
  const std::vector<float> one(dim_, 1.0f), zero(dim_);
  std::vector<float> tile(std::min(count, kTile) * dim_);
  for (size_t t = 0; t < count; t += kTile) {
    const size_t n = std::min(kTile, count - t);
    kernels_->unpack_levels(tile.data(), level_rows(first + t), one.data(), zero.data(), n);
    f(tile.data(), t, n);
  }
}

void PlaneRows::accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                           size_t count) const {
  std::vector<float> scales(count), weights(queries * count);
  read_factors(scales.data(), 0, 1, first, count);
  for (size_t m = 0; m < queries; ++m)
    kernels_->multiply(weights.data() + m * count, p + m * ld, scales.data(), count);
  if (codes_attend(dim_))
    return kernels_->add_levels(acc, weights.data(), count, queries, level_rows(first), count);
  for_tiles(first, count, [&](const float* tile, size_t t, size_t n) {
    kernels_->add_rows(acc, weights.data() + t, count, queries, {tile, DType::kF32, dim_}, n);
  });
}

void PlaneRows::finish(float* out, const float* acc, size_t queries) const {
  std::vector<float> sums(acc, acc + queries * dim_);
  turn_back(sums.data(), queries);
  kernels_->add(out, sums.data(), sums.size());
}

void PlaneRows::decode(float* out, size_t first, size_t count) const {
  const Projection& s = *projection_;
  std::vector<float> signs(s.bits()), scales(count);
  read_factors(scales.data(), 0, 1, first, count);
  for_tiles(first, count, [&](const float* tile, size_t t, size_t n) {
    std::copy_n(tile, n * dim_, out + t * dim_);
  });
  for (size_t t = 0; t < count; ++t) kernels_->scale(out + t * dim_, scales[t], dim_);
  turn_back(out, count);
  for (size_t t = first; s.bits() > 0 && t < first + count; ++t, out += dim_) {
    const uint8_t* bits = codes_.data() + t * format_.code_bytes(dim_) + format_.plane_bytes(dim_);
    for (size_t i = 0; i < s.bits(); ++i) signs[i] = bit(bits, i) ? 1.0f : -1.0f;
    const float factor = s.unbias() * f16_to_f32(norms_[2 * t + 1]) / static_cast<float>(s.bits());
    for (size_t c = 0; c < dim_; ++c)
      out[c] += factor * kernels_->dot(s.column(c), signs.data(), s.bits());
  }
}

void PlaneRows::keep(std::span<const uint32_t> kept) {
  const size_t bytes = format_.code_bytes(dim_);
  for (size_t to = 0; to < kept.size(); ++to)
    std::memmove(codes_.data() + to * bytes, codes_.data() + kept[to] * bytes, bytes);
  codes_.resize(kept.size() * bytes + kReadable);
  give_back(codes_);
  keep_records(norms_, format_.norms(), kept);
}

/// H q [M, D], S q [M, m] and the sums of its rows.
void PlaneRows::prepare(float* prepared, const float* q, size_t queries) const {
  const size_t bits = projection_->bits();
  float* sketch = prepared + queries * dim_;
  std::copy_n(q, queries * dim_, prepared);
  turn(prepared, queries);
  for (size_t m = 0; m < queries; ++m)
    projection_->apply(*kernels_, sketch + m * bits, q + m * dim_);
  sum_rows(sketch + queries * bits, sketch, bits, queries);
}

void PlaneRows::scores(float* out, size_t ld, const float*, const float* prepared, size_t queries,
                       size_t first, size_t count, float scale) const {
  const Projection& s = *projection_;
  const size_t bits = s.bits();
  std::vector<float> factors(count);
  if (codes_attend(dim_)) {
    kernels_->dot_levels(out, ld, prepared, queries, level_rows(first), count, scale);
  } else {
    for_tiles(first, count, [&](const float* tile, size_t t, size_t n) {
      kernels_->dot_rows(out + t, ld, prepared, queries, {tile, DType::kF32, dim_}, n, scale);
    });
  }
  read_factors(factors.data(), 0, 1, first, count);
  for (size_t m = 0; m < queries; ++m)
    for (size_t t = 0; t < count; ++t) out[m * ld + t] *= factors[t];
  if (bits == 0) return;
  const float *sketch = prepared + queries * dim_, *sums = sketch + queries * bits;
  const uint8_t* codes =
      codes_.data() + first * format_.code_bytes(dim_) + format_.plane_bytes(dim_);
  std::vector<float> set(queries * count);
  kernels_->sum_set_bits(set.data(), count, sketch, queries, codes, format_.code_bytes(dim_), bits,
                         count);
  read_factors(factors.data(), 1, scale * s.unbias() / static_cast<float>(bits), first, count);
  // A sum over signs is twice the sum over set bits, less the sum of all.
  for (size_t m = 0; m < queries; ++m)
    for (size_t t = 0; t < count; ++t)
      out[m * ld + t] += factors[t] * (2 * set[m * count + t] - sums[m]);
  if (!format_.unbias_weights) return;
  read_factors(factors.data(), 1, scale * std::sqrt(0.5f * s.noise() / static_cast<float>(bits)),
               first, count);
  for (size_t m = 0; m < queries; ++m) {
    const float square = kernels_->dot(prepared + m * dim_, prepared + m * dim_, dim_);
    for (size_t t = 0; t < count; ++t) out[m * ld + t] -= square * factors[t] * factors[t];
  }
}

size_t PlaneCodec::table_bytes(const RowsRequest& request) const {
  const size_t dim = request.dim, bits = format_.sketch_bits(dim);
  if (bits % 16)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("qjl was asked for m={}; sketches are multiples of 16 bits", bits));
  return Projection::bytes_of({format_.sketch, bits, dim}) +
         (format_.random_turn ? allocated_bytes(dim * sizeof(float)) : 0);
}

std::unique_ptr<CodedRows> PlaneCodec::make_rows(const Context& context,
                                                 const RowsRequest& request) const {
  table_bytes(request);  // checks it
  const size_t dim = request.dim, bits = format_.sketch_bits(dim);
  if (!projection_)
    projection_ = std::make_shared<const Projection>(context.memory,
                                                     ProjectionShape{format_.sketch, bits, dim},
                                                     request.seed, request.layer, 0x514Cu);
  if (format_.random_turn && !signs_) signs_ = draw_signs(context.memory, request);
  return std::make_unique<PlaneRows>(context, format_, request, projection_, signs_);
}

}  // namespace pith
