#include "methods/quant/quant_coder.cuh"

namespace pith::cuda {

void code_grouped_keys(GroupedCodec codec, const CodeRowsCall& call, cudaStream_t stream) {
  call.check();
  switch (codec) {
    case GroupedCodec::kKivi2: return code_rows<2, Grouping::kChannelKeys>(call, stream);
    case GroupedCodec::kKivi4: return code_rows<4, Grouping::kChannelKeys>(call, stream);
    case GroupedCodec::kInt4: return code_rows<4, Grouping::kTokenKeys>(call, stream);
    case GroupedCodec::kInt8: return code_rows<8, Grouping::kTokenKeys>(call, stream);
  }
}

void code_grouped_values(GroupedCodec codec, const CodeRowsCall& call, cudaStream_t stream) {
  call.check();
  switch (codec) {
    case GroupedCodec::kKivi2: return code_rows<2, Grouping::kAsymmetricValues>(call, stream);
    case GroupedCodec::kKivi4: return code_rows<4, Grouping::kAsymmetricValues>(call, stream);
    case GroupedCodec::kInt4: return code_rows<4, Grouping::kSymmetricValues>(call, stream);
    case GroupedCodec::kInt8: return code_rows<8, Grouping::kSymmetricValues>(call, stream);
  }
}

}  // namespace pith::cuda
