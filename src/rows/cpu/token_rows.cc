#include "rows/cpu/token_rows.h"

#include <algorithm>

#include "rows/cpu/compaction.h"
#include "rows/cpu/group_code.h"

namespace pith {
namespace {

constexpr size_t kReadable = 1;  // numbers past the last scale, which the kernels may read

}  // namespace

TokenRows::TokenRows(const Context& context, const TokenFormat& format, const RowsRequest& request)
    : CodedRows(context.kernels, request.dim),
      format_(format),
      codes_(context.memory, MemoryKind::kPayload),
      sides_(context.memory, MemoryKind::kMetadata) {
  codes_.set_growth_limit(request.max_rows * format.code_bytes(dim_));
  sides_.set_growth_limit(request.max_rows * format.side_numbers(dim_) + kReadable);
}

void TokenRows::append(const float* x, size_t stride, size_t count) {
  const size_t before = rows(), bytes = format_.code_bytes(dim_);
  const size_t groups = format_.groups(dim_), sides = format_.side_numbers(dim_);
  codes_.resize((before + count) * bytes);
  sides_.resize((before + count) * sides + kReadable);
  std::fill_n(codes_.data() + before * bytes, count * bytes, uint8_t{0});
  for (size_t t = 0; t < count; ++t) {
    const float* row = x + t * stride;
    uint8_t* codes = codes_.data() + (before + t) * bytes;
    for (size_t g = 0; g < groups; ++g) {
      const size_t first = 32 * g, end = std::min(dim_, first + 32);
      // NaN fails every comparison, so the sum carries it to the check.
      float least = row[first], most = row[first];
      for (size_t c = first; c < end; ++c) {
        least = row[c] < least || row[c] != row[c] ? row[c] : least;
        most = row[c] > most ? row[c] : most;
      }
      uint16_t* side = sides_.data() + (before + t) * sides + g * (sides / groups);
      const GroupCode code =
          choose_code(least, most, format_.bits, side, format_.asymmetric ? side + 1 : nullptr);
      for (size_t c = first; c < end; ++c) put_code(codes, dim_, format_.bits, c, code(row[c]));
    }
  }
}

void TokenRows::keep(std::span<const uint32_t> kept) {
  keep_records(codes_, format_.code_bytes(dim_), kept);
  keep_records(sides_, format_.side_numbers(dim_), kept, kReadable);
}

CodeRows TokenRows::code_rows(size_t first) const {
  return {codes_.data() + first * format_.code_bytes(dim_), format_.bits, dim_};
}

CodeSides TokenRows::sides(size_t first) const {
  return {sides_.data() + first * format_.side_numbers(dim_), format_.asymmetric};
}

void TokenRows::decode(float* out, size_t first, size_t count) const {
  kernels_->unpack_tokens(out, code_rows(first), sides(first), count);
}

void TokenRows::scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
                       size_t first, size_t count, float scale) const {
  if (!codes_attend(dim_))
    return CodedRows::scores(out, ld, q, prepared, queries, first, count, scale);
  kernels_->dot_codes(out, ld, q, queries, code_rows(first), sides(first), count, scale);
}

void TokenRows::accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                           size_t count) const {
  if (!codes_attend(dim_)) return CodedRows::accumulate(acc, p, ld, queries, first, count);
  kernels_->add_codes(acc, p, ld, queries, code_rows(first), sides(first), count);
}

void TokenRows::archive(Archive& a) {
  size_t count = rows();
  a.number(count, kMostRows, "too many rows");
  a.numbers(codes_, count * format_.code_bytes(dim_));
  a.halves(sides_, count * format_.side_numbers(dim_), kReadable);
}

std::unique_ptr<CodedRows> TokenRows::clone() const { return std::make_unique<TokenRows>(*this); }

}  // namespace pith
