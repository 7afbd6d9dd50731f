#pragma once
// 128 bits that differ when any byte does: XXH3, at the speed of memory. They find damage; whoever
// means to can make bytes for any digest.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;  // xxhash.h

namespace pith {

struct Digest {
  uint64_t low = 0, high = 0;
  bool operator==(const Digest&) const = default;
  /// 32 hexadecimal digits.
  std::string text() const;
};

/// Of bytes that come in pieces.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  DigestStream(DigestStream&&) noexcept;
  DigestStream(const DigestStream&) = delete;
  DigestStream& operator=(const DigestStream&) = delete;

  void add(std::span<const std::byte> bytes);
  /// Its length, then its bytes, so that no two lists of texts run together.
  void add_text(std::string_view text);
  Digest digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

Digest digest_of(std::span<const std::byte> bytes);

}  // namespace pith
