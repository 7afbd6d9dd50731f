#pragma once
// Weights times a chunk of activations through cuBLASLt: sums in f32. bf16 and f16 weights take
// activations of their own type, f32 weights f32 ones (no TF32).

#include <cublasLt.h>

#include <map>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/matvec.h"

namespace pith::cuda {

class DeviceMatmul {
 public:
  /// Workspace is counted as kScratch and freed in the stream's order.
  DeviceMatmul(MemoryCounter& counter, cudaStream_t stream);
  ~DeviceMatmul();
  DeviceMatmul(const DeviceMatmul&) = delete;
  DeviceMatmul& operator=(const DeviceMatmul&) = delete;

  /// y [tokens, out] f32 <- x [tokens, in] w^T, or += if `add`. x has the type of w.
  void run(float* y, const void* x, const DeviceMatrix& w, size_t tokens, bool add);

 private:
  struct Plan;
  struct Shape {
    size_t tokens, out, in;
    DType dtype;
    auto operator<=>(const Shape&) const = default;
  };
  const Plan& plan(const Shape& shape);

  cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceArray<std::byte> workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace pith::cuda
