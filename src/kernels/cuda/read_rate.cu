// The card's read rate, against which decode attention is held: 16-byte loads, eight in flight a
// thread, a sum that keeps the compiler from dropping them.

#include "kernels/cuda/read_rate.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"

namespace pith::cuda {
namespace {

__global__ void __launch_bounds__(512) read_kernel(float* sum, const float4* from, size_t count) {
  float total = 0;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += 8 * stride) {
    float4 x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] = i + j * stride < count ? __ldcs(from + i + j * stride) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) total += x[j].x + x[j].y + x[j].z + x[j].w;
  }
  if (total == 12345.0f) *sum = total;
}

}  // namespace

void read_all(float* sum, const void* from, size_t bytes, cudaStream_t stream) {
  launch_kernel(read_kernel, {528, 512}, stream, "the read rate", sum,
                static_cast<const float4*>(from), bytes / 16);
}

double read_rate() {
  constexpr size_t kBytes = size_t{2} << 30;  // far more than L2
  MemoryCounter counter;
  DeviceArray<std::byte> buffer(counter, MemoryKind::kScratch, kBytes, nullptr);
  DeviceArray<float> sum(counter, MemoryKind::kScratch, 1, nullptr);
  check(cudaMemsetAsync(buffer.data(), 1, kBytes, nullptr), "the read rate");
  cudaEvent_t start, end;
  check(cudaEventCreate(&start), "the read rate");
  check(cudaEventCreate(&end), "the read rate");
  std::vector<double> rates;
  for (int pass = 0; pass < 9; ++pass) {
    cudaEventRecord(start, nullptr);
    read_all(sum.data(), buffer.data(), kBytes, nullptr);
    cudaEventRecord(end, nullptr);
    check(cudaEventSynchronize(end), "the read rate");
    float ms = 0;
    cudaEventElapsedTime(&ms, start, end);
    rates.push_back(static_cast<double>(kBytes) / (ms * 1e-3));
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  std::nth_element(rates.begin(), rates.begin() + 4, rates.end());
  return rates[4];
}

}  // namespace pith::cuda
