#pragma once

namespace pith::cuda {

template <class T>
T* launched_shared() {
  return reinterpret_cast<T*>(emulated::launched_shared);
}

}  // namespace pith::cuda
