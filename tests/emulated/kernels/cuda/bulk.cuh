#pragma once
// The CPU twin of src/kernels/cuda/bulk.cuh.

#include "emulated/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace pith::cuda {

struct BoxAt {
  int channel, row, head;
};

inline void copy_box(void* shared, const CUtensorMap& map, BoxAt at, SharedBarrier& arrives) {
  arrives.take(::emulated::copy_box(shared, map, at.channel, at.row, at.head));
}
inline void prefetch_map(const CUtensorMap&) {}
/// Barriers of a block by number, of `threads` threads that wait or arrive.
inline void wait_named(int barrier, int threads) {
  ::emulated::named_barrier(barrier, threads, true);
}
inline void arrive_named(int barrier, int threads) {
  ::emulated::named_barrier(barrier, threads, false);
}

}  // namespace pith::cuda
