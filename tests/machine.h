#pragma once
// The start of tests of stored rows: one thread, memory full of NaN where nobody wrote, a table
// of kernels, and normal numbers.

#include <random>
#include <string_view>
#include <vector>

#include "kernels/context.h"

namespace pith::test {

struct Machine {
  explicit Machine(std::string_view isa = "") : context{pool, memory, kernels_for(isa)} {}
  ThreadPool pool{1};
  MemoryCounter memory{0, /*poison=*/true};
  Context context;
};

inline std::vector<float> normals(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

}  // namespace pith::test
