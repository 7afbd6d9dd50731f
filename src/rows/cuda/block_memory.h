#pragma once
// The memory of a GPU that blocks of codes lie in: four parts of each, those of one kind side by
// side.

#include <array>

#include "kernels/cuda/slab.h"
#include "rows/cuda/body_store.h"
#include "rows/cuda/device_codec.h"

namespace pith::cuda {

/// The bytes of `rows` rows of each head, without records, in a store that was asked for them at
/// once.
size_t codes_bytes(const DeviceCodec& codec, const StoreSite& site, size_t rows);

class BlockMemory {
 public:
  enum Part { kKeyCodes, kKeySide, kValueCodes, kValueSide, kParts };

  /// `saved`: bytes that nobody has written are 0. Blocks are saved whole, the last one with places
  /// of rows that are not there: what others left on the card must not get into a file.
  BlockMemory(const DeviceCodec& codec, const StoreSite& site, bool saved);

  size_t capacity() const { return parts_[0].capacity(); }  ///< blocks of a head
  std::byte* at(Part part, size_t head, size_t block) const { return parts_[part].at(head, block); }
  CodeBlocks all() const {
    return {at(kKeyCodes, 0, 0), at(kKeySide, 0, 0), at(kValueCodes, 0, 0), at(kValueSide, 0, 0),
            capacity()};
  }
  /// New memory, in which each head begins with those blocks of `from`'s.
  void renew(size_t capacity, const BlockMemory& from, const Slab::Part& blocks);
  void swap(BlockMemory& other) noexcept;

  /// Of growth to `capacity` blocks of a head.
  StoreRoom growth(size_t capacity) const;
  size_t bytes_of(size_t capacity) const;
  /// `rows` of each of `heads` heads hold something, the rest is slack.
  void add_to(Ledger& ledger, size_t heads, size_t rows) const;
  size_t row_bytes() const;
  /// The first blocks of each head, as many as its rows need: `of_heads` [G]. `check` is told what
  /// was loaded.
  template <class Check>
  void archive(Archive& a, std::span<const size_t> of_heads, cudaStream_t stream,
               const Check& check) const;

 private:
  std::array<Slab, kParts> parts_;  // [G, capacity] blocks each
};

template <class Check>
void BlockMemory::archive(Archive& a, std::span<const size_t> of_heads, cudaStream_t stream,
                          const Check& check) const {
  for (size_t part = 0; part < kParts; ++part) {
    for (size_t head = 0; head < of_heads.size(); ++head) {
      const size_t blocks = (of_heads[head] + 31) / 32;
      const size_t unit = parts_[part].unit();
      if (blocks == 0 || unit == 0) continue;
      const DeviceRuns runs{at(static_cast<Part>(part), head, 0), unit, unit, blocks};
      archive_runs(a, runs, stream, [&](std::span<const std::byte> bytes) {
        check(static_cast<CodePartOf>(part), bytes);
      });
    }
  }
}

}  // namespace pith::cuda
