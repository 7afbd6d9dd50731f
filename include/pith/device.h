#pragma once
// Where a session computes.

#include <cstdint>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// Nothing falls back: a device that cannot do what is asked refuses.
enum class Device : uint8_t { kCpu, kCuda };

}  // namespace pith

#pragma GCC visibility pop
