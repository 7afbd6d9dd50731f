#pragma once
// The device on which a session computes.

#include <cstdint>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// There is no fallback: a device that cannot do a task refuses it.
enum class Device : uint8_t { kCpu, kCuda };

}  // namespace pith

#pragma GCC visibility pop
