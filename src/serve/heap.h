#pragma once
// Bytes that the process's allocator has given out and not got back.

#include <cstddef>

namespace pith::serve {

/// Live bytes of the heap; 0 where the C library does not say. A sanitizer's heap is counted
/// without what it holds back of freed memory.
size_t heap_bytes();

}  // namespace pith::serve
