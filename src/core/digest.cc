#include "core/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace pith {
namespace {

Digest from(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

}  // namespace

std::string Digest::text() const { return fmt::format("{:016x}{:016x}", high, low); }

void DigestStream::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

DigestStream::DigestStream() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}
DigestStream::~DigestStream() = default;
DigestStream::DigestStream(DigestStream&&) noexcept = default;

void DigestStream::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

void DigestStream::add_text(std::string_view text) {
  const uint64_t size = text.size();
  add(std::as_bytes(std::span(&size, 1)));
  add(std::as_bytes(std::span(text)));
}

Digest DigestStream::digest() const { return from(XXH3_128bits_digest(state_.get())); }

Digest digest_of(std::span<const std::byte> bytes) {
  return from(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace pith
