#pragma once
// Every byte of a compressed cache, by purpose.

#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

struct Ledger {
  size_t payload = 0;   ///< coded keys and values
  size_t metadata = 0;  ///< norms, scales, positions, weights, attention mass
  size_t shared = 0;    ///< dictionaries and projections, once per cache
  size_t slack = 0;     ///< allocated for the above, not used yet
  size_t staging = 0;   ///< rows that wait to be coded
  size_t scratch = 0;   ///< temporary results of one step
  size_t probe = 0;     ///< sampled exact rows of the error probe

  uint64_t tokens = 0;         ///< tokens seen
  uint64_t rows_seen = 0;      ///< tokens * layers * KV heads
  uint64_t rows_kept = 0;      ///< rows held, over all layers and KV heads
  uint64_t channels_seen = 0;  ///< numbers of an uncompressed cache: rows_seen * 2 D
  uint64_t channels_kept = 0;  ///< rows_kept * 2 D

  /// Bytes that the compressed cache consists of.
  size_t cache_bytes() const { return payload + metadata + shared; }
  size_t total_bytes() const { return cache_bytes() + slack + staging + scratch + probe; }
  /// cache_bytes() in bits, per number of the uncompressed cache.
  double effective_bits() const { return bits_over(channels_seen); }
  /// cache_bytes() in bits, per number of the rows held.
  double retained_bits() const { return bits_over(channels_kept); }

  Ledger& operator+=(const Ledger& o) {
    payload += o.payload, metadata += o.metadata, shared += o.shared, slack += o.slack;
    staging += o.staging, scratch += o.scratch, probe += o.probe, rows_seen += o.rows_seen;
    rows_kept += o.rows_kept, channels_seen += o.channels_seen, channels_kept += o.channels_kept;
    tokens = tokens > o.tokens ? tokens : o.tokens;
    return *this;
  }

 private:
  double bits_over(uint64_t channels) const {
    return channels == 0 ? 0.0
                         : 8.0 * static_cast<double>(cache_bytes()) / static_cast<double>(channels);
  }
};

}  // namespace pith

#pragma GCC visibility pop
