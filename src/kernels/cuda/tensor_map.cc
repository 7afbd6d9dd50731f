#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "kernels/cuda/device.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's, without linking it.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result),
        "the driver's tensor maps");
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result),
        "the driver's tensor maps");
#endif
  if (!found || result != cudaDriverEntryPointSuccess)
    throw Error(ErrorCode::kInternal,
                "the CUDA driver has no tensor maps (cuTensorMapEncodeTiled); drivers from 525 on "
                "have them");
  return reinterpret_cast<Encode>(found);
}

}  // namespace

CUtensorMap tensor_map(const HeadRows& of, int box_rows) {
  static const Encode encode = find_encode();
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(of.dim), of.rows, of.heads};
  const cuuint64_t strides[2] = {of.row_bytes, of.head_bytes};
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult status = encode(
      &map,
      of.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      3, const_cast<void*>(of.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status == CUDA_SUCCESS) return map;
  throw Error(ErrorCode::kInternal,
              fmt::format("the CUDA driver refuses a tensor map (error {}) of {} rows of {} "
                          "numbers, {} bytes apart, {} heads {} bytes apart, at {}",
                          static_cast<int>(status), of.rows, of.dim, of.row_bytes, of.heads,
                          of.head_bytes, of.data));
}

}  // namespace pith::cuda
