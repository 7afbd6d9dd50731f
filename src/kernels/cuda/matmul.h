#pragma once
// Products of weights and a chunk of activations through cuBLASLt: sums in f32. Weights of the
// activations' type are multiplied where they lie (f32 without TF32), others become it in scratch,
// a panel of rows at a time.

#include <cublasLt.h>

#include <map>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/mixed_matrix.h"

namespace pith::cuda {

class DeviceMatmul {
 public:
  /// Workspace is counted as kScratch and freed in the stream's order.
  DeviceMatmul(MemoryCounter& counter, cudaStream_t stream);
  ~DeviceMatmul();
  DeviceMatmul(const DeviceMatmul&) = delete;
  DeviceMatmul& operator=(const DeviceMatmul&) = delete;

  /// Makes room for what w has to become, so that run() need not ask for memory.
  void reserve(DType dtype, const MixedMatrix& w);
  /// y [tokens, out] f32 <- x [tokens, in] w^T, or += if `add`. x has the type `dtype`.
  void run(float* y, const void* x, DType dtype, const MixedMatrix& w, size_t tokens, bool add);

 private:
  struct Plan;
  struct Shape {
    size_t tokens, out, in, ld;
    DType dtype;
    uint32_t alignment;  // of y, in bytes
    auto operator<=>(const Shape&) const = default;
  };
  /// A product to columns of y [tokens, ld].
  struct Columns {
    float* y;
    size_t ld;
    const void* x;
    size_t tokens;
    bool add;
  };
  const Plan& plan(const Shape& shape);
  void multiply(const Columns& columns, const DeviceMatrix& w);
  void multiply_part(const Columns& columns, DType dtype, const MixedMatrix& w,
                     const MatrixPart& part);

  cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  MemoryCounter& counter_;
  DeviceArray<std::byte> workspace_;
  DeviceArray<std::byte> panel_;  // weights that became the activations' type
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace pith::cuda
