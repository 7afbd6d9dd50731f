#include "methods/codecs/kivi/channel_rows.h"

#include <vector>

#include "rows/cpu/group_code.h"

namespace pith {

ChannelRows::ChannelRows(const Context& context, int bits, const RowsRequest& request)
    : CodedRows(context.kernels, request.dim),
      bits_(bits),
      codes_(context.memory, MemoryKind::kPayload),
      waiting_(context.memory, context.kernels, request.dim, kGroupRows),
      scales_(context.memory, MemoryKind::kMetadata),
      firsts_(context.memory, MemoryKind::kMetadata) {
  codes_.set_growth_limit(request.max_rows * row_bytes());
}

void ChannelRows::append(const float* x, size_t stride, size_t count) {
  for (size_t t = 0; t < count; ++t) {
    waiting_.push(x + t * stride);
    if (waiting_.count() == kGroupRows) code_waiting();
  }
}

void ChannelRows::code_waiting() {
  const size_t before = coded_rows(), groups = firsts_.size();
  std::vector<float> rows(kGroupRows * dim_);
  waiting_.decode(rows.data(), 0, kGroupRows);
  waiting_.clear();
  codes_.resize((before + kGroupRows) * row_bytes());
  scales_.resize((groups + 1) * 2 * dim_);
  firsts_.push_back(static_cast<uint32_t>(before));
  uint8_t* codes = codes_.data() + before * row_bytes();
  std::fill_n(codes, kGroupRows * row_bytes(), uint8_t{0});
  uint16_t* scales = scales_.data() + groups * 2 * dim_;
  for (size_t c = 0; c < dim_; ++c) {
    float column[kGroupRows];
    for (size_t t = 0; t < kGroupRows; ++t) column[t] = rows[t * dim_ + c];
    const auto [least, most] = std::minmax_element(column, column + kGroupRows);
    const GroupCode code = choose_code(*least, *most, bits_, scales + c, scales + dim_ + c);
    for (size_t t = 0; t < kGroupRows; ++t)
      put_code(codes + t * row_bytes(), dim_, bits_, c, code(column[t]));
  }
}

void ChannelRows::keep(std::span<const uint32_t> kept) {
  const size_t coded = coded_rows();
  const size_t stay = keep_groups(firsts_, scales_, 2 * dim_, kept, coded);
  keep_records(codes_, row_bytes(), kept.first(stay));
  waiting_.keep(kept.subspan(stay), coded);
}

void ChannelRows::decode(float* out, size_t first, size_t count) const {
  const size_t end = first + count, coded = coded_rows();
  alignas(64) float scale_low[2][kMaxDim];
  for (size_t g = group_of(firsts_, first); first < std::min(end, coded); ++g) {
    const size_t n = std::min(end, group_end(g)) - first;
    const uint16_t* scales = scales_.data() + g * 2 * dim_;
    kernels_->to_f32(scale_low[0], scales, DType::kF16, dim_);
    kernels_->to_f32(scale_low[1], scales + dim_, DType::kF16, dim_);
    kernels_->unpack_channels(out, {codes_.data() + first * row_bytes(), bits_, dim_}, scale_low[0],
                              scale_low[1], n);
    out += n * dim_;
    first += n;
  }
  if (first < end) waiting_.decode(out, first - coded, end - first);
}

void ChannelRows::scores(float* out, size_t ld, const float* q, const float* prepared,
                         size_t queries, size_t first, size_t count, float scale) const {
  if (!codes_attend(dim_))
    return CodedRows::scores(out, ld, q, prepared, queries, first, count, scale);
  const size_t end = first + count, coded = coded_rows();
  std::vector<float> folded(queries * dim_), bias(queries), wide(2 * dim_);
  for (size_t g = group_of(firsts_, first), t = first; t < end; ++g) {
    float* to = out + t - first;
    if (t >= coded)
      return kernels_->dot_rows(to, ld, q, queries, waiting_.dense(t - coded), end - t, scale);
    const size_t n = std::min(end, group_end(g)) - t;
    kernels_->to_f32(wide.data(), scales_.data() + g * 2 * dim_, DType::kF16, 2 * dim_);
    for (size_t m = 0; m < queries; ++m) {
      kernels_->multiply(folded.data() + m * dim_, q + m * dim_, wide.data(), dim_);
      bias[m] = scale * kernels_->dot(q + m * dim_, wide.data() + dim_, dim_);
    }
    kernels_->dot_codes(to, ld, folded.data(), queries,
                        {codes_.data() + t * row_bytes(), bits_, dim_}, {}, n, scale);
    for (size_t m = 0; m < queries; ++m)
      for (size_t i = 0; i < n; ++i) to[m * ld + i] += bias[m];
    t += n;
  }
}

void ChannelRows::archive(Archive& a) {
  size_t coded = coded_rows();
  a.number(coded, kMostRows, "too many rows");
  a.numbers(codes_, coded * row_bytes());
  a.halves(scales_, archive_groups(a, firsts_, coded) * 2 * dim_);
  waiting_.archive(a, kGroupRows - 1);
}

std::unique_ptr<CodedRows> ChannelRows::clone() const {
  return std::make_unique<ChannelRows>(*this);
}

}  // namespace pith
