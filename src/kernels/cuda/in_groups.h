#pragma once
// Work of many places, a launch for so many of them.

#include <algorithm>
#include <cstddef>
#include <span>

namespace pith::cuda {

/// Calls f(some) for at most `most` of them at a time, in their order.
template <class T, class F>
void in_groups(std::span<const T> all, size_t most, const F& f) {
  for (size_t first = 0; first < all.size(); first += most)
    f(all.subspan(first, std::min(most, all.size() - first)));
}

}  // namespace pith::cuda
