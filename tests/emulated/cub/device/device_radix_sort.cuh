#pragma once
// CUB's sort of pairs, on the emulated card.

#include <algorithm>
#include <numeric>
#include <vector>

#include "emulated/runtime.h"

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value, class Count>
  static cudaError_t SortPairsDescending(void* space, size_t& bytes, const Key* keys,
                                         Key* sorted_keys, const Value* values,
                                         Value* sorted_values, Count n, int = 0, int = 32,
                                         cudaStream_t stream = nullptr) {
    if (!space) {
      bytes = 256;
      return cudaSuccess;
    }
    emulated::enqueue(stream, [=] {
      std::vector<size_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return keys[a] > keys[b]; });
      for (size_t i = 0; i < order.size(); ++i) {
        sorted_keys[i] = keys[order[i]];
        sorted_values[i] = values[order[i]];
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
