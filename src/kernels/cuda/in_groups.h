#pragma once
// Work of many places, a launch for so many of them.

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/cuda/launch.h"

namespace pith::cuda {

/// Calls f(some) for at most `most` of them at a time, in their order.
template <class T, class F>
void in_groups(std::span<const T> all, size_t most, const F& f) {
  for (size_t first = 0; first < all.size(); first += most)
    f(all.subspan(first, std::min(most, all.size() - first)));
}

/// The largest of their numbers.
template <class Call, class F>
int most_of(std::span<const Call> calls, const F& number_of) {
  int most = 0;
  for (const Call& call : calls) most = std::max(most, number_of(call));
  return most;
}

/// A grid of (blocks, heads, places) for calls of which each has `heads` and as many blocks as
/// `blocks_of` says: those with fewer leave the others' blocks idle.
template <class Call, class F>
dim3 grid_of(std::span<const Call> calls, const F& blocks_of) {
  const int heads = most_of(calls, [](const Call& call) { return call.heads; });
  return dim3(most_of(calls, blocks_of), heads, static_cast<unsigned>(calls.size()));
}

}  // namespace pith::cuda
