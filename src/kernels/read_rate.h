#pragma once
// How fast the machine reads memory: what decoding is held against.

#include <span>

#include "kernels/context.h"

namespace pith {

/// Bytes per second at which the pool's threads read `memory`, once. For a rate of memory it must
/// be far larger than the caches, and written before. At least 1 MiB.
double read_rate(const Context& context, std::span<const std::byte> memory);

}  // namespace pith
