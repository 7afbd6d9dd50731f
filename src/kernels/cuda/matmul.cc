#include "kernels/cuda/matmul.h"

#include <fmt/format.h>

#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;  // what cuBLAS's own takes on Hopper

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const ErrorCode code =
      status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kOutOfMemory : ErrorCode::kInternal;
  throw Error(code,
              fmt::format("cuBLASLt failed at {}: {}", what, cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

}  // namespace

// cuBLASLt counts columns first: y^T [out, T] = w^T' [in, out]' x^T [in, T].
struct DeviceMatmul::Plan {
  Plan(cublasLtHandle_t handle, const Shape& s) {
    check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof(transposed)),
          "a transposition");
    check(cublasLtMatrixLayoutCreate(&w, type_of(s.dtype), s.in, s.out, s.in), "weights");
    check(cublasLtMatrixLayoutCreate(&x, type_of(s.dtype), s.in, s.tokens, s.in), "activations");
    check(cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, s.out, s.tokens, s.out), "results");
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "a preference");
    size_t most = kWorkspace;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &most, sizeof(most));
    int found = 0;
    const auto status =
        cublasLtMatmulAlgoGetHeuristic(handle, product, w, x, y, y, preference, 1, &best, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    check(status, "the choice of an algorithm");
    if (found == 0) check(CUBLAS_STATUS_NOT_SUPPORTED, "the choice of an algorithm");
  }
  ~Plan() {
    if (y) cublasLtMatrixLayoutDestroy(y);
    if (x) cublasLtMatrixLayoutDestroy(x);
    if (w) cublasLtMatrixLayoutDestroy(w);
    if (product) cublasLtMatmulDescDestroy(product);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulHeuristicResult_t best{};
};

DeviceMatmul::DeviceMatmul(MemoryCounter& counter, cudaStream_t stream)
    : stream_(stream), workspace_(counter, MemoryKind::kScratch, kWorkspace, stream) {
  check(cublasLtCreate(&handle_), "its start");
}

DeviceMatmul::~DeviceMatmul() {
  plans_.clear();
  if (handle_) cublasLtDestroy(handle_);
}

const DeviceMatmul::Plan& DeviceMatmul::plan(const Shape& shape) {
  auto& plan = plans_[shape];
  if (!plan) plan = std::make_unique<Plan>(handle_, shape);
  return *plan;
}

void DeviceMatmul::run(float* y, const void* x, const DeviceMatrix& w, size_t tokens, bool add) {
  const Plan& p = plan({tokens, w.out, w.in, w.dtype});
  const float one = 1, old = add ? 1 : 0;
  check(cublasLtMatmul(handle_, p.product, &one, w.data, p.w, x, p.x, &old, y, p.y, y, p.y,
                       &p.best.algo, workspace_.data(), kWorkspace, stream_),
        "a product");
}

}  // namespace pith::cuda
