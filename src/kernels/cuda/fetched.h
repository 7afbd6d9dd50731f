#pragma once
// A few numbers of the device on the host, or the other way round. Both wait.

#include <vector>

#include "kernels/cuda/device.h"

namespace pith::cuda {

template <class T>
std::vector<T> fetched(const T* from, size_t n, cudaStream_t stream) {
  std::vector<T> numbers(n);
  if (n == 0) return numbers;
  check(cudaMemcpyAsync(numbers.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost, stream),
        "numbers of the cache");
  check(cudaStreamSynchronize(stream), "numbers of the cache");
  return numbers;
}

template <class T>
void put(T* to, const std::vector<T>& numbers, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, numbers.data(), numbers.size() * sizeof(T), cudaMemcpyHostToDevice,
                        stream),
        "state that is loaded");
  check(cudaStreamSynchronize(stream), "state that is loaded");
}

}  // namespace pith::cuda
