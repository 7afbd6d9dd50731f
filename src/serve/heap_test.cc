#include "serve/heap.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace pith::serve {
namespace {

TEST(Heap, CountsWhatIsHeldAndNotWhatWasFreed) {
  const size_t before = heap_bytes();
  if (before == 0) GTEST_SKIP() << "the C library does not say";
  constexpr size_t kMany = size_t{64} << 20, kOther = size_t{8} << 20;  // of other threads
  auto large = std::make_unique<std::vector<char>>(kMany, 'a');
  std::vector<std::unique_ptr<std::vector<char>>> small(1024);
  for (auto& one : small) one = std::make_unique<std::vector<char>>(kMany / 1024, 'b');
  EXPECT_NEAR(static_cast<double>(heap_bytes()), static_cast<double>(before + 2 * kMany), kOther);
  large.reset();
  EXPECT_NEAR(static_cast<double>(heap_bytes()), static_cast<double>(before + kMany), kOther);
  small.clear();
  EXPECT_NEAR(static_cast<double>(heap_bytes()), static_cast<double>(before), kOther);
}

}  // namespace
}  // namespace pith::serve
