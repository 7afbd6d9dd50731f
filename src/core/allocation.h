#pragma once
// The size that the allocator gives for a request, for estimates of bytes before there are any.

#include <cstddef>

namespace pith {

/// Bytes that a buffer takes which was asked for exactly `wanted`.
size_t allocated_bytes(size_t wanted);

}  // namespace pith
