#pragma once
// The size that the allocator gives for a request, for estimates of bytes before there are any.

#include <cstddef>

namespace pith {

/// From here a buffer is a mapping of its own: it moves by page tables, and what it gives up leaves
/// the process at once (each thread keeps one of at most 1 MiB for its next). Smaller ones are
/// copied when they grow, so that old and new are there.
inline constexpr size_t kMapFrom = size_t{64} << 10;

/// Bytes that a buffer takes which was asked for exactly `wanted`.
size_t allocated_bytes(size_t wanted);

/// The most that a buffer takes which grew to `bytes`, however it came there. Growth goes in eight
/// steps to each power of two, as size classes of allocators do, so that what a store takes follows
/// from its rows alone. It stops at `limit`, if that is not 0.
size_t grown_bytes(size_t bytes, size_t limit = 0);

/// The most that grown_bytes is over `buffers` buffers which have `bytes` together.
size_t most_grown_bytes(size_t bytes, size_t buffers);

/// Whether a buffer of which `bytes` of `capacity` are left gives the others back: not if they are
/// few, for rows to come.
bool gives_back(size_t capacity, size_t bytes);
/// The most that `buffers` buffers take which lost bytes and have `bytes` together.
size_t most_kept_bytes(size_t bytes, size_t buffers);

}  // namespace pith
