#include "core/archive.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "core/finite.h"
#include "pith/error.h"

namespace pith {

void Archive::refuse(const char* what) const {
  if (!loads())
    throw Error(ErrorCode::kInternal, fmt::format("state that cannot be saved: {}{}{}", place_,
                                                  place_.empty() ? "" : ": ", what));
  throw Error(ErrorCode::kCorrupt,
              fmt::format("{}: {}{}{}", name_, place_, place_.empty() ? "" : ": ", what));
}

void Archive::raw(void* x, size_t bytes) {
  done_ += bytes;
  if (bytes == 0) return;
  if (way_ == Way::kSave) sink_({static_cast<const std::byte*>(x), bytes});
  if (way_ != Way::kLoad) return;
  need(bytes <= left_.size(), "it ends too soon");
  std::memcpy(x, left_.data(), bytes);
  left_ = left_.subspan(bytes);
}

void Archive::raw_finite(void* x, size_t count, DType dtype) {
  raw(x, count * size_of(dtype));
  need(!loads() || !has_non_finite(x, dtype, count), "a number is not finite");
}

void Archive::check_left(size_t count, size_t size) const {
  need(!loads() || size == 0 || count <= left_.size() / size, "more rows than there are bytes");
}

void Archive::end() { need(!loads() || left_.empty(), "bytes are left over"); }

void Archive::flag(bool& x) {
  uint8_t byte = x;
  number(byte, uint8_t{1}, "a flag is neither 0 nor 1");
  if (loads()) x = byte != 0;
}

void Archive::number(float& x) {
  raw(&x, sizeof(x));
  need(std::isfinite(x), "a number is not finite");
}

void Archive::number(double& x) {
  raw(&x, sizeof(x));
  need(std::isfinite(x), "a number is not finite");
}

void Archive::floats(Array<float>& x, size_t n) {
  numbers(x, n);
  need(!loads() || !has_non_finite(x.data(), DType::kF32, n), "a number is not finite");
}

void Archive::halves(Array<uint16_t>& x, size_t n, size_t readable) {
  numbers(x, n, readable);
  need(!loads() || !has_non_finite(x.data(), DType::kF16, n), "a number is not finite");
}

void Archive::ascending(Array<uint32_t>& x, size_t n, size_t limit, bool from_0) {
  numbers(x, n);
  if (!loads()) return;
  need(!from_0 || n == 0 || x[0] == 0, "groups of rows do not begin at row 0");
  for (size_t i = 0; i < n; ++i)
    need(x[i] < limit && (i == 0 || x[i] > x[i - 1]), "row numbers are out of order");
}

}  // namespace pith
