#pragma once
// Keys of one codec beside values of another, attended to by a kernel of the pair's own.

#include <algorithm>
#include <memory>
#include <string>

#include "rows/cuda/device_codec.h"

namespace pith::cuda {

using DecodePair = void (*)(const DecodeCall&, const DecodeScratch&, cudaStream_t);

/// Both codecs have tiles(); the values' blocks share nothing.
class PairCodec final : public DeviceCodec {
 public:
  using Codec = std::shared_ptr<const DeviceCodec>;
  PairCodec(Codec keys, Codec values, DecodePair both)
      : keys_(std::move(keys)), values_(std::move(values)), attend_(both) {}

  std::string name() const override {
    return keys_->name() + " beside values in " + values_->name();
  }
  size_t scratch_bytes() const override {
    return std::max(keys_->scratch_bytes(), values_->scratch_bytes());
  }
  int group_blocks() const override { return keys_->group_blocks(); }
  size_t block_rows() const override { return keys_->block_rows(); }
  GroupedBytes block_bytes(int head_dim) const override;
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override;
  void unpack_keys_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    keys_->unpack_keys_of(calls, stream);
  }
  void unpack_values_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    values_->unpack_values_of(calls, stream);
  }
  Codec with_rows_alone(int head_dim) const override;
  void move_rows_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    keys_->move_keys_of(calls, stream);
    values_->move_values_of(calls, stream);
  }
  void add_token_mass(const TokenMass& call, const MassTarget* target,
                      cudaStream_t stream) const override {
    keys_->add_token_mass(call, target, stream);
  }
  void check_loaded(const Archive& a, const LoadedCodes& codes) const override {
    (codes.keys() ? keys_ : values_)->check_loaded(a, codes);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    attend_(call, scratch, stream);
  }

 private:
  Codec keys_, values_;
  DecodePair attend_;
};

}  // namespace pith::cuda
