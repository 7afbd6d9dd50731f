#include "kernels/read_rate.h"

#include <array>
#include <atomic>
#include <chrono>

namespace pith {
namespace {

// A piece is read in 16 places by turns. One run of memory after another reaches two thirds of the
// rate where the processor's prefetchers follow many.
constexpr size_t kPiece = size_t{1} << 20, kPlaces = 16, kTurn = 256;  // bytes

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
uint64_t
bits_of(const uint64_t* words) {
  constexpr size_t kPlace = kPiece / kPlaces / sizeof(uint64_t);
  constexpr size_t kWords = kTurn / sizeof(uint64_t);
  std::array<uint64_t, kWords> bits{};
  for (size_t w = 0; w < kPlace; w += kWords)
    for (size_t place = 0; place < kPlaces; ++place)
      for (size_t i = 0; i < kWords; ++i) bits[i] |= words[place * kPlace + w + i];
  uint64_t all = 0;
  for (uint64_t b : bits) all |= b;
  return all;
}

}  // namespace

double read_rate(const Context& context, std::span<const std::byte> memory) {
  const size_t pieces = memory.size() / kPiece;
  std::atomic<uint64_t> bits = 0;  // so that no read is left out
  const auto start = std::chrono::steady_clock::now();
  context.pool.parallel_for(pieces, [&](size_t i, int) {
    bits |= bits_of(reinterpret_cast<const uint64_t*>(memory.data() + i * kPiece));
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(pieces * kPiece) / seconds.count();
}

}  // namespace pith
