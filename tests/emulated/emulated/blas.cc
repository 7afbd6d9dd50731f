// The products of cuBLASLt that pith asks for (kernels/cuda/matmul.cc), on the emulated card:
// y^T = w^T x^T, f32 sums.

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "emulated/runtime.h"

struct cublasLtContext {};

namespace {

struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t stride;
};

Layout& of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }

std::vector<float> numbers(const Layout& l, const void* data) {
  std::vector<float> all(l.rows * l.columns);
  for (uint64_t c = 0; c < l.columns; ++c) {
    for (uint64_t r = 0; r < l.rows; ++r) {
      const size_t at = c * static_cast<size_t>(l.stride) + r;
      all[c * l.rows + r] = l.type == CUDA_R_32F ? static_cast<const float*>(data)[at]
                            : l.type == CUDA_R_16F
                                ? __half2float(static_cast<const __half*>(data)[at])
                                : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
    }
  }
  return all;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "an error of the emulated card"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t,
                                        cudaDataType_t) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new cublasOperation_t(CUBLAS_OP_N));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<cublasOperation_t*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  if (what != CUBLASLT_MATMUL_DESC_TRANSA || bytes != sizeof(cublasOperation_t))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(reinterpret_cast<void*>(desc), value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &of(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<int*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* found) {
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* w, cublasLtMatrixLayout_t w_layout, const void* x,
                              cublasLtMatrixLayout_t x_layout, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* y, cublasLtMatrixLayout_t y_layout,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  const Layout a = of(w_layout), b = of(x_layout), c = of(y_layout);
  const bool known = *reinterpret_cast<cublasOperation_t*>(desc) == CUBLAS_OP_T &&
                     c.type == CUDA_R_32F && a.rows == b.rows && a.columns == c.rows &&
                     b.columns == c.columns;
  if (!known) return CUBLAS_STATUS_NOT_SUPPORTED;
  const float scale = *static_cast<const float*>(alpha), old = *static_cast<const float*>(beta);
  emulated::enqueue(stream, [=] {
    const std::vector<float> rows = numbers(a, w), tokens = numbers(b, x);
    omp_set_num_threads(1);  // of this thread's products
    dnnl_sgemm('N', 'T', static_cast<dnnl_dim_t>(b.columns), static_cast<dnnl_dim_t>(a.columns),
               static_cast<dnnl_dim_t>(a.rows), scale, tokens.data(),
               static_cast<dnnl_dim_t>(b.rows), rows.data(), static_cast<dnnl_dim_t>(a.rows), old,
               static_cast<float*>(y), c.stride);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
