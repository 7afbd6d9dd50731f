#pragma once
// Hopper's bulk copies of boxes of rows to shared memory, by a tensor map (tensor_map.h). One
// thread starts a copy; a barrier in shared memory counts its bytes.

#include <cuda.h>

#include "kernels/cuda/wgmma.cuh"

namespace pith::cuda {

struct BoxAt {
  int channel, row, head;
};

__device__ inline void copy_box(void* shared, const CUtensorMap& map, BoxAt at,
                                SharedBarrier& arrives) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(at.channel), "r"(at.row), "r"(at.head), "r"(arrives.address())
      : "memory");
}
/// A map's first copy need not wait for it then.
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
/// Barriers of a block by number, of `threads` threads that wait or arrive; 0 is __syncthreads'.
__device__ inline void wait_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace pith::cuda
