#pragma once

namespace pith::cuda {

/// A block's memory beside what its kernel declares: LaunchShape::shared_bytes of it.
template <class T>
__device__ inline T* launched_shared() {
  extern __shared__ __align__(128) unsigned char pith_launched_shared[];
  return reinterpret_cast<T*>(pith_launched_shared);
}

}  // namespace pith::cuda
