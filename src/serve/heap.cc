#include "serve/heap.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

// Of AddressSanitizer's and ThreadSanitizer's run-time library; null without one.
extern "C" [[gnu::weak]] size_t __sanitizer_get_current_allocated_bytes();  // NOLINT

namespace pith::serve {

size_t heap_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return __sanitizer_get_current_allocated_bytes();
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  const auto heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
#else
  return 0;
#endif
}

}  // namespace pith::serve
