#include "rows/cuda/grouped_coder.cuh"

namespace pith::cuda {
namespace {

void code_keys(GroupedCodec codec, const CoderLaunch& launch, cudaStream_t stream) {
  switch (codec) {
    case GroupedCodec::kKivi2: return code_rows<2, Grouping::kChannelKeys>(launch, stream);
    case GroupedCodec::kKivi4: return code_rows<4, Grouping::kChannelKeys>(launch, stream);
    case GroupedCodec::kInt4: return code_rows<4, Grouping::kTokenKeys>(launch, stream);
    case GroupedCodec::kInt8: return code_rows<8, Grouping::kTokenKeys>(launch, stream);
    case GroupedCodec::kRotatedInt4:
      return code_rows<4, Grouping::kTokenKeys, true>(launch, stream);
    case GroupedCodec::kRotatedInt8:
      return code_rows<8, Grouping::kTokenKeys, true>(launch, stream);
  }
}

void code_values(GroupedCodec codec, const CoderLaunch& launch, cudaStream_t stream) {
  switch (codec) {
    case GroupedCodec::kKivi2: return code_rows<2, Grouping::kAsymmetricValues>(launch, stream);
    case GroupedCodec::kKivi4: return code_rows<4, Grouping::kAsymmetricValues>(launch, stream);
    case GroupedCodec::kInt4: return code_rows<4, Grouping::kSymmetricValues>(launch, stream);
    case GroupedCodec::kInt8: return code_rows<8, Grouping::kSymmetricValues>(launch, stream);
    case GroupedCodec::kRotatedInt4:
      return code_rows<4, Grouping::kSymmetricValues, true>(launch, stream);
    case GroupedCodec::kRotatedInt8:
      return code_rows<8, Grouping::kSymmetricValues, true>(launch, stream);
  }
}

/// Heads of one call's codes follow each other.
CodeJob job_of(const CodeRowsCall& call) {
  call.check();
  return {call.x, call.head_stride, call.codes, call.side, static_cast<size_t>(call.rows) / 32};
}
CodeBatch batch_of(const CodeRowsCall& call) {
  return {call.dtype, call.heads, call.rows, call.head_dim};
}

}  // namespace

void code_grouped_keys(GroupedCodec codec, const CodeRowsCall& call, cudaStream_t stream) {
  const CodeJob job = job_of(call);
  code_keys(codec, {batch_of(call), call.row_stride, {&job, 1}}, stream);
}

void code_grouped_values(GroupedCodec codec, const CodeRowsCall& call, cudaStream_t stream) {
  const CodeJob job = job_of(call);
  code_values(codec, {batch_of(call), call.row_stride, {&job, 1}}, stream);
}

void code_grouped(GroupedCodec codec, const CodeBatch& batch, std::span<const CodeJob> keys,
                  std::span<const CodeJob> values, cudaStream_t stream) {
  const auto stride = static_cast<size_t>(batch.head_dim);
  code_keys(codec, {batch, stride, keys}, stream);
  code_values(codec, {batch, stride, values}, stream);
}

}  // namespace pith::cuda
