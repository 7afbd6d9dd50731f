#include "methods/codecs/qjl/qjl_keys.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "core/dtype.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kReadable = 8;  // bytes past the last code

/// Squares summed over 32 rows x [32, D] by channel.
std::vector<double> channel_energies(const float* x, size_t dim) {
  std::vector<double> energy(dim);
  for (size_t t = 0; t < kQjlGroup; ++t)
    for (size_t c = 0; c < dim; ++c) energy[c] += double{x[t * dim + c]} * x[t * dim + c];
  return energy;
}

/// The `count` channels of most energy, ascending; ties to the lower.
std::vector<uint16_t> most_energy(const std::vector<double>& energy, size_t count) {
  std::vector<uint16_t> order(energy.size());
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](uint16_t a, uint16_t b) { return energy[a] > energy[b]; });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

double energy_left(const std::vector<double>& energy, const uint16_t* apart, size_t count) {
  double left = std::accumulate(energy.begin(), energy.end(), 0.0);
  for (size_t i = 0; i < count; ++i) left -= energy[apart[i]];
  return left;
}

/// bits <- signs of S x for one vector; `sums` is room for m numbers.
void put_signs(uint8_t* bits, const Kernels& kernels, const Projection& s, const float* x,
               float* sums) {
  s.apply(kernels, sums, x);
  for (size_t i = 0; i < s.bits(); ++i)
    if (sums[i] >= 0) bits[i / 8] |= static_cast<uint8_t>(1u << (i % 8));
}

float norm_of(const Kernels& kernels, const float* x, size_t dim) {
  return std::sqrt(kernels.dot(x, x, dim));
}

}  // namespace

QjlKeys::QjlKeys(const Context& context, const QjlFormat& format, const RowsRequest& request,
                 std::shared_ptr<const QjlTables> tables)
    : CodedRows(context.kernels, request.dim),
      format_(format),
      tables_(std::move(tables)),
      codes_(context.memory, MemoryKind::kPayload),
      waiting_(context.memory, context.kernels, request.dim, kQjlGroup),
      norms_(context.memory, MemoryKind::kMetadata),
      channels_(context.memory, MemoryKind::kMetadata),
      firsts_(context.memory, MemoryKind::kMetadata) {
  codes_.set_growth_limit(request.max_rows * format.code_bytes(dim_) + kReadable);
  norms_.set_growth_limit(request.max_rows * format.norms());
}

void QjlKeys::append(const float* x, size_t stride, size_t count) {
  std::vector<float> group(group_rows() * dim_);
  for (size_t t = 0; t < count; ++t) {
    const float* row = x + t * stride;
    const float norm = norm_of(*kernels_, row, dim_);
    if (!(norm <= 65504))
      throw Error(ErrorCode::kNonFinite,
                  fmt::format("a key of norm {} does not fit QJL's f16 norms; {}", norm,
                              std::isfinite(norm) ? "use bf16 or f32 rows for this model"
                                                  : "the model's activations are not finite"));
    if (format_.outliers == 0) {
      code(row, 1);
      continue;
    }
    waiting_.push(row);
    if (waiting_.count() < kQjlGroup) continue;
    waiting_.decode(group.data(), 0, kQjlGroup);
    waiting_.clear();
    code(group.data(), kQjlGroup);
  }
}

void QjlKeys::archive(Archive& a) {
  size_t coded = coded_rows();
  a.number(coded, kMostRows, "too many rows");
  a.numbers(codes_, coded * format_.code_bytes(dim_), kReadable);
  a.halves(norms_, coded * format_.norms());
  if (format_.outliers == 0) return;
  waiting_.archive(a, kQjlGroup - 1);
  a.numbers(channels_, archive_groups(a, firsts_, coded) * format_.outliers);
  for (size_t i = 0; a.loads() && i < channels_.size(); ++i)
    a.need(channels_[i] < dim_, "an outlying channel that there is not");
}

// With slack a group keeps the channels of the one before it where that leaves its inliers little
// more energy, which is what their noise follows: a query is then split and sketched once for many.
std::vector<uint16_t> QjlKeys::choose_outliers(const float* x) const {
  const size_t count = format_.outliers;
  const std::vector<double> energy = channel_energies(x, dim_);
  std::vector<uint16_t> best = most_energy(energy, count);
  if (firsts_.empty() || format_.slack == 0) return best;
  const uint16_t* before = channels_.data() + (firsts_.size() - 1) * count;
  const double most = (1 + format_.slack) * energy_left(energy, best.data(), count);
  if (energy_left(energy, before, count) <= most) best.assign(before, before + count);
  return best;
}

void QjlKeys::code(const float* x, size_t count) {
  const size_t before = coded_rows(), bytes = format_.code_bytes(dim_), norms = format_.norms();
  codes_.resize((before + count) * bytes + kReadable);
  std::fill_n(codes_.data() + before * bytes, count * bytes + kReadable, uint8_t{0});
  norms_.resize((before + count) * norms);
  std::vector<uint16_t> outliers;
  if (format_.outliers) {
    outliers = choose_outliers(x);
    firsts_.push_back(static_cast<uint32_t>(before));
    for (uint16_t c : outliers) channels_.push_back(c);
  }
  std::vector<float> in(dim_), out(dim_);
  std::vector<float> sums(std::max(tables_->in.bits(), tables_->out.bits()));
  for (size_t t = 0; t < count; ++t) {
    std::copy_n(x + t * dim_, dim_, in.data());
    std::fill(out.begin(), out.end(), 0.0f);
    for (uint16_t c : outliers) std::swap(in[c], out[c]);
    uint8_t* bits = codes_.data() + (before + t) * bytes;
    put_signs(bits, *kernels_, tables_->in, in.data(), sums.data());
    norms_[(before + t) * norms] = f32_to_f16(norm_of(*kernels_, in.data(), dim_));
    if (outliers.empty()) continue;
    put_signs(bits + tables_->in.bits() / 8, *kernels_, tables_->out, out.data(), sums.data());
    norms_[(before + t) * norms + 1] = f32_to_f16(norm_of(*kernels_, out.data(), dim_));
  }
}

void QjlKeys::keep(std::span<const uint32_t> kept) {
  const size_t coded = coded_rows();
  const size_t stay = static_cast<size_t>(
      std::lower_bound(kept.begin(), kept.end(), static_cast<uint32_t>(coded)) - kept.begin());
  keep_groups(firsts_, channels_, format_.outliers, kept, coded);
  keep_records(codes_, format_.code_bytes(dim_), kept.first(stay), kReadable);
  keep_records(norms_, format_.norms(), kept.first(stay));
  waiting_.keep(kept.subspan(stay), coded);
}

void QjlKeys::decode(float* out, size_t first, size_t count) const {
  const size_t coded = coded_rows(), bytes = format_.code_bytes(dim_), norms = format_.norms();
  const Projection &in = tables_->in, &outlying = tables_->out;
  std::vector<float> signs(std::max(in.bits(), outlying.bits()));
  const auto unpack = [&](const uint8_t* code, size_t n) {
    for (size_t i = 0; i < n; ++i) signs[i] = code[i / 8] >> (i % 8) & 1 ? 1.0f : -1.0f;
  };
  const auto factor = [](const Projection& s, uint16_t norm) {
    return s.unbias() * f16_to_f32(norm) / static_cast<float>(s.bits());
  };
  for (size_t t = first; t < first + count; ++t, out += dim_) {
    if (t >= coded) {
      waiting_.decode(out, t - coded, 1);
      continue;
    }
    const uint8_t* bits = codes_.data() + t * bytes;
    unpack(bits, in.bits());
    for (size_t c = 0; c < dim_; ++c) out[c] = kernels_->dot(in.column(c), signs.data(), in.bits());
    kernels_->scale(out, factor(in, norms_[t * norms]), dim_);
    if (format_.outliers == 0) continue;
    unpack(bits + in.bits() / 8, outlying.bits());
    const float scale = factor(outlying, norms_[t * norms + 1]);
    const uint16_t* channels = channels_.data() + group_of(firsts_, t) * format_.outliers;
    for (size_t i = 0; i < format_.outliers; ++i)
      out[channels[i]] =
          scale * kernels_->dot(outlying.column(channels[i]), signs.data(), outlying.bits());
  }
}

// For each query: S q of the inliers' projection, and the sum of its numbers at the end of all.
size_t QjlKeys::prepared_size(size_t queries) const { return queries * (tables_->in.bits() + 1); }

void QjlKeys::prepare(float* prepared, const float* q, size_t queries) const {
  const Projection& s = tables_->in;
  for (size_t m = 0; m < queries; ++m) {
    s.apply(*kernels_, prepared + m * s.bits(), q + m * dim_);
    float sum = 0;
    for (size_t c = 0; c < dim_; ++c) sum += q[m * dim_ + c] * s.column_sum(c);
    prepared[queries * s.bits() + m] = sum;
  }
}

/// The part of the queries that scoring a group of rows needs.
struct QjlKeys::GroupQuery {
  std::vector<float> in, out;                // [M, m], [M, m_out] sketches of the query's two parts
  std::vector<float> in_sum, out_sum;        // [M] of their numbers
  std::vector<float> in_square, out_square;  // [M] squared norms of the two parts
  std::vector<float> extra;                  // [M, kScoreRows] sums over the outliers' bits
  std::vector<float> outlying;               // [M, outliers] numbers of the query
  std::vector<float> columns;                // [outliers, m or m_out] of a projection
  std::vector<float> norms;                  // [kScoreRows, 1 or 2]
  std::vector<float> factors;                // [kScoreRows]
};

namespace {

constexpr size_t kScoreRows = 256;  // rows of one pass

}  // namespace

void QjlKeys::scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
                     size_t first, size_t count, float scale) const {
  const size_t coded = coded_rows(), end = first + count, bits = tables_->in.bits();
  GroupQuery room;
  room.in.resize(queries * bits);
  room.out.resize(queries * tables_->out.bits());
  room.in_sum.resize(queries);
  room.out_sum.resize(queries);
  room.in_square.resize(queries);
  room.out_square.resize(queries);
  room.extra.resize(queries * kScoreRows);
  room.outlying.resize(queries * format_.outliers);
  room.columns.resize(format_.outliers * std::max(bits, tables_->out.bits()));
  room.norms.resize(kScoreRows * format_.norms());
  room.factors.resize(kScoreRows);
  for (size_t t = first; t < end;) {
    if (t >= coded) {
      kernels_->dot_rows(out + t - first, ld, q, queries, waiting_.dense(t - coded), end - t,
                         scale);
      return;
    }
    size_t stop = std::min(end, coded);
    std::copy_n(prepared, queries * bits, room.in.data());
    std::copy_n(prepared + queries * bits, queries, room.in_sum.data());
    for (size_t m = 0; m < queries; ++m)
      room.in_square[m] = kernels_->dot(q + m * dim_, q + m * dim_, dim_);
    if (format_.outliers) {
      const size_t group = group_of(firsts_, t);
      stop = std::min(end, same_channels_end(group));
      split_queries(room, q, queries, group);
    }
    for (; t < stop; t = std::min(stop, t + kScoreRows))
      score_rows(out + t - first, ld, room, queries, t, std::min(kScoreRows, stop - t), scale);
  }
}

size_t QjlKeys::same_channels_end(size_t group) const {
  const uint16_t* channels = channels_.data() + group * format_.outliers;
  size_t last = group;
  while (last + 1 < firsts_.size() && std::equal(channels, channels + format_.outliers,
                                                 channels_.data() + (last + 1) * format_.outliers))
    ++last;
  return group_end(last);
}

/// The query's outlying channels leave the inliers' sketch for one of their own.
void QjlKeys::split_queries(GroupQuery& room, const float* q, size_t queries, size_t group) const {
  const Projection &in = tables_->in, &outlying = tables_->out;
  const size_t outliers = format_.outliers;
  const uint16_t* channels = channels_.data() + group * outliers;
  std::fill(room.out.begin(), room.out.end(), 0.0f);
  std::fill(room.out_sum.begin(), room.out_sum.end(), 0.0f);
  std::fill(room.out_square.begin(), room.out_square.end(), 0.0f);
  for (size_t m = 0; m < queries; ++m)
    for (size_t j = 0; j < outliers; ++j) {
      const float x = q[m * dim_ + channels[j]];
      room.outlying[m * outliers + j] = x;
      room.in_sum[m] -= x * in.column_sum(channels[j]);
      room.out_sum[m] += x * outlying.column_sum(channels[j]);
      room.in_square[m] -= x * x;
      room.out_square[m] += x * x;
    }
  const auto add = [&](std::vector<float>& to, const Projection& s) {
    for (size_t j = 0; j < outliers; ++j)
      std::copy_n(s.column(channels[j]), s.bits(), room.columns.data() + j * s.bits());
    kernels_->add_rows(to.data(), room.outlying.data(), outliers, queries,
                       {room.columns.data(), DType::kF32, s.bits()}, outliers);
  };
  add(room.out, outlying);
  for (float& x : room.outlying) x = -x;
  add(room.in, in);
}

void QjlKeys::score_rows(float* out, size_t ld, GroupQuery& room, size_t queries, size_t first,
                         size_t count, float scale) const {
  const Projection &in = tables_->in, &outlying = tables_->out;
  const size_t bytes = format_.code_bytes(dim_), norms = format_.norms();
  const uint8_t* codes = codes_.data() + first * bytes;
  kernels_->sum_set_bits(out, ld, room.in.data(), queries, codes, bytes, in.bits(), count);
  kernels_->to_f32(room.norms.data(), norms_.data() + first * norms, DType::kF16, count * norms);
  // A sum over signs is twice the sum over set bits, less the sum of all.
  const auto add_signs = [&](float* to, const float* factors, const float* sums, float all) {
    for (size_t t = 0; t < count; ++t) to[t] = factors[t] * (2 * sums[t] - all);
  };
  float* factors = room.factors.data();
  const float in_scale = scale * in.unbias() / static_cast<float>(in.bits());
  for (size_t t = 0; t < count; ++t) factors[t] = in_scale * room.norms[t * norms];
  for (size_t m = 0; m < queries; ++m)
    add_signs(out + m * ld, factors, out + m * ld, room.in_sum[m]);
  if (format_.unbias_weights) take_half_variance(out, ld, room, queries, count, scale);
  if (format_.outliers == 0) return;
  kernels_->sum_set_bits(room.extra.data(), kScoreRows, room.out.data(), queries,
                         codes + in.bits() / 8, bytes, outlying.bits(), count);
  const float out_scale = scale * outlying.unbias() / static_cast<float>(outlying.bits());
  for (size_t t = 0; t < count; ++t) factors[t] = out_scale * room.norms[t * norms + 1];
  for (size_t m = 0; m < queries; ++m) {
    float* extra = room.extra.data() + m * kScoreRows;
    add_signs(extra, factors, extra, room.out_sum[m]);
    kernels_->add(out + m * ld, extra, count);
  }
}

/// E[exp(s)] of a score s with noise of variance w is exp(E[s] + w / 2).
void QjlKeys::take_half_variance(float* out, size_t ld, const GroupQuery& room, size_t queries,
                                 size_t count, float scale) const {
  const size_t norms = format_.norms();
  const auto half = [&](const Projection& s) {
    return 0.5f * scale * scale * s.noise() / static_cast<float>(s.bits());
  };
  const float in = half(tables_->in), outlying = norms > 1 ? half(tables_->out) : 0;
  for (size_t m = 0; m < queries; ++m)
    for (size_t t = 0; t < count; ++t) {
      const float* norm = room.norms.data() + t * norms;
      out[m * ld + t] -= in * room.in_square[m] * norm[0] * norm[0];
      if (norms > 1) out[m * ld + t] -= outlying * room.out_square[m] * norm[1] * norm[1];
    }
}

size_t QjlCodec::table_bytes(const RowsRequest& request) const {
  const size_t dim = request.dim;
  if (format_.outliers >= dim || format_.inlier_bits(dim) % 16 || format_.outlier_bits(dim) % 16)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("qjl was asked for m={}, m_out={}, outliers={} at head_dim {}; sketches "
                    "are multiples of 16 bits, outliers fewer than the channels",
                    format_.inlier_bits(dim), format_.outlier_bits(dim), format_.outliers, dim));
  return Projection::bytes_of({format_.sketch, format_.inlier_bits(dim), dim}) +
         Projection::bytes_of({format_.sketch, format_.outlier_bits(dim), dim});
}

std::unique_ptr<CodedRows> QjlCodec::make_rows(const Context& context,
                                               const RowsRequest& request) const {
  table_bytes(request);  // checks it
  const size_t dim = request.dim;
  if (!tables_) {
    const auto make = [&](size_t bits, uint32_t stream) {
      return Projection(context.memory, {format_.sketch, bits, dim}, request.seed, request.layer,
                        stream);
    };
    tables_ = std::make_shared<const QjlTables>(
        QjlTables{make(format_.inlier_bits(dim), 0x514A), make(format_.outlier_bits(dim), 0x514B)});
  }
  return std::make_unique<QjlKeys>(context, format_, request, tables_);
}

}  // namespace pith
