#include "methods/quant/quant_cuda.h"

#include "methods/quant/decode_grouped.h"

namespace pith::cuda {

GroupedBytes grouped_bytes(GroupedCodec codec, int head_dim) {
  const auto d = static_cast<size_t>(head_dim);
  const size_t codes = codec == GroupedCodec::kInt8    ? 32 * d
                       : codec == GroupedCodec::kKivi2 ? 8 * d
                                                       : 16 * d;
  const size_t scales = 2 * d;  // f16, one for 32 numbers
  const bool minima = codec == GroupedCodec::kKivi2 || codec == GroupedCodec::kKivi4;
  const size_t side = minima ? 2 * scales : scales;
  return {codes, side, codes, side};
}

void decode_grouped(GroupedCodec codec, const DecodeCall& call, const DecodeScratch& scratch,
                    cudaStream_t stream) {
  switch (codec) {
    case GroupedCodec::kKivi2: return decode_kivi2(call, scratch, stream);
    case GroupedCodec::kKivi4: return decode_kivi4(call, scratch, stream);
    case GroupedCodec::kInt4: return decode_int4(call, scratch, stream);
    case GroupedCodec::kInt8: return decode_int8(call, scratch, stream);
  }
}

}  // namespace pith::cuda
