#pragma once
// How the benchmarks of the CPU take times.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace pith::bench {

inline constexpr size_t kGigabyte = size_t{1} << 30;

double seconds_of(auto&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

}  // namespace pith::bench
