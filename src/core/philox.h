#pragma once
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random
// numbers as a pure function of a key and a counter. Pith's counter is (seed, layer, head, row,
// draw), so a row's randomness does not depend on threads, chunking or device: kernels call this.

#include <cstdint>

#include "core/both_sides.h"

namespace pith {

/// Four independent 32-bit words.
struct PhiloxWords {
  uint32_t word[4];

  PITH_BOTH_SIDES constexpr uint32_t operator[](int i) const { return word[i]; }
  bool operator==(const PhiloxWords&) const = default;
};

/// One Philox4x32-10 block.
PITH_BOTH_SIDES constexpr PhiloxWords philox4x32(const PhiloxWords& counter, uint32_t key0,
                                                 uint32_t key1) {
  PhiloxWords x = counter;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * x.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * x.word[2];
    x = {{static_cast<uint32_t>(b >> 32) ^ x.word[1] ^ key0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ x.word[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return x;
}

/// The stream of one (seed, layer, head).
class Philox {
 public:
  PITH_BOTH_SIDES constexpr Philox(uint64_t seed, uint32_t layer, uint32_t head)
      : key0_(static_cast<uint32_t>(seed)),
        key1_(static_cast<uint32_t>(seed >> 32)),
        stream_((layer << 16) ^ head) {}

  /// Four words for `row` (0 .. 2^48-1); `draw` (0 .. 2^16-1) numbers independent uses of one row.
  PITH_BOTH_SIDES constexpr PhiloxWords words(uint64_t row, uint32_t draw = 0) const {
    return philox4x32({{static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32) ^ (draw << 16),
                        stream_, 0x50495448u}},
                      key0_, key1_);
  }
  /// A uniform number in [0, 1) with 24 random bits.
  PITH_BOTH_SIDES constexpr float uniform(uint64_t row, uint32_t draw = 0) const {
    return static_cast<float>(words(row, draw)[0] >> 8) * 0x1p-24f;
  }
  /// A uniform 64-bit word: for order statistics, where ties must not happen in practice.
  PITH_BOTH_SIDES constexpr uint64_t word64(uint64_t row, uint32_t draw = 0) const {
    const PhiloxWords w = words(row, draw);
    return (uint64_t{w[0]} << 32) | w[1];
  }

 private:
  uint32_t key0_, key1_;
  uint32_t stream_;
};

}  // namespace pith
