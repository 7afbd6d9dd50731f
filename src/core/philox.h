#pragma once
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random
// numbers as a pure function of a key and a counter. Pith's counter is (seed, layer, head, row,
// draw), so a row's randomness does not depend on threads, chunking or device.

#include <array>
#include <cstdint>

namespace pith {

/// One Philox4x32-10 block: four independent 32-bit words.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// The stream of one (seed, layer, head).
class Philox {
 public:
  constexpr Philox(uint64_t seed, uint32_t layer, uint32_t head)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        stream_((layer << 16) ^ head) {}

  /// Four words for `row` (0 .. 2^48-1); `draw` (0 .. 2^16-1) numbers independent uses of one row.
  constexpr std::array<uint32_t, 4> words(uint64_t row, uint32_t draw = 0) const {
    return philox4x32({static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32) ^ (draw << 16),
                       stream_, 0x50495448u},
                      key_);
  }
  /// A uniform number in [0, 1) with 24 random bits.
  constexpr float uniform(uint64_t row, uint32_t draw = 0) const {
    return static_cast<float>(words(row, draw)[0] >> 8) * 0x1p-24f;
  }
  /// A uniform 64-bit word: for order statistics, where ties must not happen in practice.
  constexpr uint64_t word64(uint64_t row, uint32_t draw = 0) const {
    const auto w = words(row, draw);
    return (uint64_t{w[0]} << 32) | w[1];
  }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t stream_;
};

}  // namespace pith
