#pragma once
// qjl's rows in levels on the GPU: tight rows, whose keys are rotated after random signs.

#include <memory>

#include "attend/cuda/decode.h"
#include "methods/codecs/qjl/qjl.h"
#include "rows/cuda/device_codec.h"

namespace pith::cuda {

/// With a coarse code and no sketch of what it leaves.
std::shared_ptr<const DeviceCodec> make_qjl_levels(const QjlOptions& options);

/// Decode attention over dense spans and coded ones of 2 or 3 bits, whose codes lie in fragments
/// (level_format.h) and whose keys may be centred. The call's table is LevelSide::flips of the
/// keys, on the device.
void decode_qjl_levels(int bits, const DecodeCall& call, const DecodeScratch& scratch,
                       cudaStream_t stream);

}  // namespace pith::cuda
