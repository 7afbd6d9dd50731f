#pragma once
// The codec contract on the GPU: blocks of 32 rows of all KV heads, coded, attended to and
// unpacked. A codec's registry row makes one (CodecRow::make_on_gpu).

#include <span>
#include <string>

#include "attend/cuda/code_rows.h"
#include "attend/cuda/decode.h"

namespace pith::cuda {

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;
  /// Equal names code equally.
  virtual std::string name() const = 0;
  virtual GroupedBytes block_bytes(int head_dim) const = 0;
  /// Codes rows at many places at once, keys and values.
  virtual void code(const CodeBatch& batch, std::span<const CodeJob> keys,
                    std::span<const CodeJob> values, cudaStream_t stream) const = 0;
  virtual void unpack_keys(const UnpackRowsCall& call, cudaStream_t stream) const = 0;
  virtual void unpack_values(const UnpackRowsCall& call, cudaStream_t stream) const = 0;
  /// Decode attention over dense spans and spans of this codec's blocks.
  virtual void attend(const DecodeCall& call, const DecodeScratch& scratch,
                      cudaStream_t stream) const = 0;
};

/// Throws kUnsupported: `what` is not on the GPU, `supported` is.
[[noreturn]] void refuse_on_gpu(const std::string& what, const std::string& supported);

}  // namespace pith::cuda
