#pragma once
// The size that the allocator gives for a request, for estimates of bytes before there are any.

#include <cstddef>

namespace pith {

/// Bytes that a buffer takes which was asked for exactly `wanted`.
size_t allocated_bytes(size_t wanted);

/// The most that a buffer takes which grew to `bytes`, however it came there. Growth goes in eight
/// steps to each power of two, as size classes of allocators do, so that what a store takes follows
/// from its rows alone. It stops at `limit`, if that is not 0.
size_t grown_bytes(size_t bytes, size_t limit = 0);

/// The most that grown_bytes is over `buffers` buffers which have `bytes` together.
size_t most_grown_bytes(size_t bytes, size_t buffers);

}  // namespace pith
