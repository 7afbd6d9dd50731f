#include "compress/token_rows.h"

#include <algorithm>
#include <cstring>

#include "compress/group_code.h"

namespace pith {
namespace {

/// Moves records of `size` numbers so that those kept, ascending, come first.
template <class T>
void compact(Array<T>& array, size_t size, std::span<const uint32_t> kept) {
  for (size_t to = 0; to < kept.size(); ++to) {
    if (kept[to] != to)
      std::memmove(array.data() + to * size, array.data() + kept[to] * size, size * sizeof(T));
  }
  array.resize(kept.size() * size);
  const size_t used = kept.size() * size * sizeof(T);
  if (array.capacity_bytes() > used * 9 / 8 + 4096) array.shrink_to_fit();
}

}  // namespace

TokenRows::TokenRows(const Context& context, const TokenFormat& format, const RowsRequest& request)
    : CodedRows(context.kernels, request.dim),
      format_(format),
      codes_(context.memory, MemoryKind::kPayload),
      scales_(context.memory, MemoryKind::kMetadata),
      lows_(context.memory, MemoryKind::kMetadata) {
  codes_.set_growth_limit(request.max_rows * format.code_bytes(dim_));
  scales_.set_growth_limit(request.max_rows * format.side_numbers(dim_));
  lows_.set_growth_limit(request.max_rows * format.side_numbers(dim_));
}

void TokenRows::append(const float* x, size_t stride, size_t count) {
  const size_t before = rows(), bytes = format_.code_bytes(dim_);
  const size_t groups = format_.side_numbers(dim_);
  codes_.resize((before + count) * bytes);
  scales_.resize((before + count) * groups);
  if (format_.asymmetric) lows_.resize((before + count) * groups);
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
      const size_t at = (before + t) * groups + g;
      const GroupCode code = choose_code(least, most, format_.bits, &scales_[at],
                                         format_.asymmetric ? &lows_[at] : nullptr);
      for (size_t c = first; c < end; ++c) put_code(codes, dim_, format_.bits, c, code(row[c]));
    }
  }
}

void TokenRows::keep(std::span<const uint32_t> kept) {
  compact(codes_, format_.code_bytes(dim_), kept);
  compact(scales_, format_.side_numbers(dim_), kept);
  if (format_.asymmetric) compact(lows_, format_.side_numbers(dim_), kept);
}

void TokenRows::decode(float* out, size_t first, size_t count) const {
  const size_t groups = format_.side_numbers(dim_);
  kernels_->unpack_tokens(out,
                          {codes_.data() + first * format_.code_bytes(dim_), format_.bits, dim_},
                          scales_.data() + first * groups,
                          format_.asymmetric ? lows_.data() + first * groups : nullptr, count);
}

std::unique_ptr<CodedRows> TokenRows::clone() const { return std::make_unique<TokenRows>(*this); }

}  // namespace pith
