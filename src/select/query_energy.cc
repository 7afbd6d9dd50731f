#include "select/query_energy.h"

#include <algorithm>

namespace pith {

QueryEnergy::QueryEnergy(MemoryCounter& memory, size_t dim, int64_t first, int64_t last)
    : next_(first), last_(last), sums_(memory, MemoryKind::kMetadata) {
  sums_.resize(dim / 2);
  std::ranges::fill(sums_, 0.0f);
}

bool QueryEnergy::add(const HeadQueries& queries) {
  const int64_t end = queries.first_position + static_cast<int64_t>(queries.tokens);
  const size_t half = sums_.size(), before = counted_;
  next_ = std::clamp(queries.first_position, next_, last_);
  for (; next_ < std::min(end, last_); ++next_) {
    const float* q =
        queries.q + static_cast<size_t>(next_ - queries.first_position) * queries.stride;
    for (size_t h = 0; h < queries.group; ++h, q += 2 * half)
      for (size_t i = 0; i < half; ++i) sums_[i] += q[i] * q[i] + q[i + half] * q[i + half];
    ++counted_;
  }
  return counted_ > before;
}

std::vector<float> QueryEnergy::mean() const {
  std::vector<float> mean;
  for (size_t i = 0; i < sums_.size() && counted_ > 0; ++i)
    mean.push_back(sums_[i] / static_cast<float>(counted_));
  return mean;
}

void QueryEnergy::archive(Archive& a) {
  a.number(next_, last_, "a query behind those that count");
  a.number(counted_, static_cast<size_t>(last_), "more queries than count");
  a.floats(sums_, sums_.size());
}

}  // namespace pith
