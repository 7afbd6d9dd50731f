#include "kernels/cuda/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/tile_rows.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;  // what cuBLAS's own takes on Hopper
// An 8B model's largest matrix of a layer in bf16; that of the head goes by pieces.
constexpr size_t kPanel = size_t{128} << 20;
constexpr size_t kPanelRows = 256;  // a multiple of this where there are more

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

/// Rows of a part that become another type together.
size_t panel_rows(DType dtype, size_t in, const MatrixPart& part) {
  const size_t fit = kPanel / (in * size_of(dtype)) / kPanelRows * kPanelRows;
  return std::min(std::max(fit, kPanelRows), part.out);
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
    check(cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, s.out, s.tokens, s.ld), "results");
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "a preference");
    size_t most = kWorkspace;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &most, sizeof(most));
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      cublasLtMatmulPreferenceSetAttribute(preference, which, &s.alignment, sizeof(s.alignment));
    }
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
    : stream_(stream),
      counter_(counter),
      workspace_(counter, MemoryKind::kScratch, kWorkspace, stream) {
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

void DeviceMatmul::multiply(const Columns& c, const DeviceMatrix& w) {
  const auto address = reinterpret_cast<uintptr_t>(c.y);
  const auto alignment = static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), 256));
  const Plan& p = plan({c.tokens, w.out, w.in, c.ld, w.dtype, alignment});
  const float one = 1, old = c.add ? 1 : 0;
  check(cublasLtMatmul(handle_, p.product, &one, w.data, p.w, c.x, p.x, &old, c.y, p.y, c.y, p.y,
                       &p.best.algo, workspace_.data(), kWorkspace, stream_),
        "a product");
}

void DeviceMatmul::multiply_part(const Columns& columns, DType dtype, const MixedMatrix& w,
                                 const MatrixPart& part) {
  if (part.type == weight_type(dtype)) return multiply(columns, w.dense(part));
  const size_t rows = panel_rows(dtype, w.in, part);
  for (size_t first = 0; first < part.out; first += rows) {
    const size_t count = std::min(rows, part.out - first);
    if (part.tiled()) {
      unpack_tiles({panel_.data(), dtype, w.tiles(part), first, count}, stream_);
    } else {
      const DType from = *dense_type(part.type);
      convert_numbers(
          {panel_.data(), dtype, part.data + first * w.in * size_of(from), from, count * w.in},
          stream_);
    }
    Columns some = columns;
    some.y += first;
    multiply(some, {panel_.data(), dtype, count, w.in});
  }
}

void DeviceMatmul::reserve(DType dtype, const MixedMatrix& w) {
  for (const MatrixPart& part : w.parts) {
    if (part.type == weight_type(dtype)) continue;
    const size_t bytes = panel_rows(dtype, w.in, part) * w.in * size_of(dtype);
    if (panel_.size() >= bytes) continue;
    panel_ = {};
    panel_ = DeviceArray<std::byte>(counter_, MemoryKind::kScratch, bytes, stream_);
  }
}

void DeviceMatmul::run(float* y, const void* x, DType dtype, const MixedMatrix& w, size_t tokens,
                       bool add) {
  reserve(dtype, w);
  Columns columns{y, w.out, x, tokens, add};
  for (const MatrixPart& part : w.parts) {
    multiply_part(columns, dtype, w, part);
    columns.y += part.out;
  }
}

}  // namespace pith::cuda
