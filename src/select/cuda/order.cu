// The needs of selections of rows in codes beside those of dense rows (choose.cu): the numbers of
// rows in their new order, which codecs move them by, and weights of rows one by one.

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/in_groups.h"
#include "kernels/cuda/launch.cuh"
#include "select/cuda/candidate_rows.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

/// Places that one launch takes.
constexpr size_t kPlaces = 32;
struct OrderParams {
  OrderCall of[kPlaces];
};

/// Blocks (rows, head, place).
__global__ void __launch_bounds__(kThreads)
    order_kernel(const __grid_constant__ OrderParams params) {
  const auto& [space, order] = params.of[blockIdx.z];
  const int i = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y;
  if (i >= order.named + order.behind || head >= order.heads) return;
  const int32_t* kept = space.kept + head * space.stride;
  const int row =
      i < order.named ? kept[(order.begin + i) % order.rows] : order.rows + i - order.named;
  reinterpret_cast<int32_t*>(space.keys)[head * space.stride + i] = order.first + row;
}

__global__ void __launch_bounds__(kThreads) fill_kernel(float* to, size_t count, float value) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = value;
}

unsigned blocks_for(size_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

const int32_t* order_rows(const SelectSpace& space, const NewOrder& order, cudaStream_t stream) {
  const OrderCall call{space, order};
  order_rows({&call, 1}, stream);
  return reinterpret_cast<const int32_t*>(space.keys);
}

void order_rows(std::span<const OrderCall> calls, cudaStream_t stream) {
  in_groups(calls, kPlaces, [&](std::span<const OrderCall> some) {
    OrderParams params{};
    std::ranges::copy(some, params.of);
    const int rows =
        most_of(some, [](const OrderCall& c) { return c.order.named + c.order.behind; });
    const int heads = most_of(some, [](const OrderCall& c) { return c.order.heads; });
    if (rows == 0) return;
    const dim3 grid(blocks_for(static_cast<size_t>(rows)), heads,
                    static_cast<unsigned>(some.size()));
    launch_kernel(order_kernel, {grid, kThreads}, stream, "the order of coded rows", params);
  });
}

void fill_numbers(float* to, size_t count, float value, cudaStream_t stream) {
  if (count == 0) return;
  launch_kernel(fill_kernel, {blocks_for(count), kThreads}, stream, "weights of coded rows", to,
                count, value);
}

}  // namespace pith::cuda
