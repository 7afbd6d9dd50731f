#pragma once
// Codecs of b-bit integers in groups of 32 with f16 scales, one registry row each: int8 and int4
// (llama.cpp's q8_0 and q4_0), and KIVI.

#include "compress/registry.h"

namespace pith {

CodecRow int8_row();
CodecRow int4_row();
CodecRow kivi_row();

#ifdef PITH_CUDA
namespace cuda {
std::shared_ptr<const DeviceCodec> make_int8_on_gpu(const Parameters& parameters);
std::shared_ptr<const DeviceCodec> make_int4_on_gpu(const Parameters& parameters);
std::shared_ptr<const DeviceCodec> make_kivi_on_gpu(const Parameters& parameters);
}  // namespace cuda
#endif

}  // namespace pith
