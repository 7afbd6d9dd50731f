// Pairs of codecs that have a decode kernel of their own on the GPU.

#include "methods/registry_cuda.h"
#include "rows/cuda/grouped_decode.h"
#include "rows/cuda/pair_codec.h"

namespace pith::cuda {
namespace {

template <auto decode, int kBits>
void of_bits(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream) {
  decode(kBits, call, scratch, stream);
}

struct PairRow {
  TileForm keys, values;
  DecodePair attend;
};
using enum TileForm;
constexpr PairRow kPairs[] = {
    {kInt8, kInt4, decode_int8_int4},
    {kInt8, kRotatedInt4, decode_int8_rotated_int4},
    {kInt8, kTurboquant3, decode_int8_turboquant3},
    {kTurboquant4, kTurboquant3, decode_turboquant4_3},
    {kTurboquant4, kTurboquant2, decode_turboquant4_2},
    {kTurboquant3, kTurboquant2, decode_turboquant3_2},
    {kF16, kInt8, of_bits<decode_f16_keys, 8>},
    {kF16, kInt4, of_bits<decode_f16_keys, 4>},
    {kBF16, kInt8, of_bits<decode_bf16_keys, 8>},
    {kBF16, kInt4, of_bits<decode_bf16_keys, 4>},
    {kInt8, kF16, of_bits<decode_f16_values, 8>},
    {kInt4, kF16, of_bits<decode_f16_values, 4>},
    {kInt8, kBF16, of_bits<decode_bf16_values, 8>},
    {kInt4, kBF16, of_bits<decode_bf16_values, 4>},
};

}  // namespace

std::shared_ptr<const DeviceCodec> make_pair_on_gpu(std::shared_ptr<const DeviceCodec> keys,
                                                    std::shared_ptr<const DeviceCodec> values) {
  for (const PairRow& row : kPairs) {
    if (row.keys != keys->tiles() || row.values != values->tiles()) continue;
    return std::make_shared<PairCodec>(std::move(keys), std::move(values), row.attend);
  }
  return nullptr;
}

}  // namespace pith::cuda
