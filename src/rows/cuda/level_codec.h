#pragma once
// Codecs of rows of levels on the GPU: the device's contract over a LevelFormat.

#include <algorithm>
#include <string>

#include "rows/cuda/device_codec.h"
#include "rows/cuda/level_format.h"

namespace pith::cuda {

class LevelCodec : public DeviceCodec, public std::enable_shared_from_this<LevelCodec> {
 public:
  LevelCodec(std::string name, const LevelFormat& format)
      : name_(std::move(name)), format_(format) {}

  std::string name() const override { return name_; }
  TileForm tiles() const override {
    const bool rows = format_.keys.bits == 16 && format_.values.bits == 16;
    return !rows ? TileForm::kNone : format_.keys.bf16 ? TileForm::kBF16 : TileForm::kF16;
  }
  std::shared_ptr<const LevelCodec> as_levels() const override { return shared_from_this(); }
  const LevelFormat& format() const { return format_; }
  int group_blocks() const override {
    return format_.keys.rank > 0 && record_bytes() == 0 ? format_.keys.group_blocks : 0;
  }
  size_t block_rows() const override;
  GroupedBytes block_bytes(int head_dim) const override { return format_.bytes(head_dim); }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override;
  void unpack_keys_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    unpack_levels(format_.keys, calls, stream);
  }
  void unpack_values_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    unpack_levels(format_.values, calls, stream);
  }
  /// The same for keys, or values, beside another's values, or keys.
  virtual std::shared_ptr<const LevelCodec> of_keys() const { return shared_from_this(); }
  virtual std::shared_ptr<const LevelCodec> of_values() const { return shared_from_this(); }
  /// Keys are stored before RoPE.
  virtual bool turns_keys() const { return false; }
  std::shared_ptr<const DeviceCodec> with_rows_alone(int head_dim) const override;
  size_t record_bytes() const override {
    return static_cast<size_t>(std::max(format_.keys.record_bytes, format_.values.record_bytes));
  }
  void check_loaded(const Archive& a, const LoadedCodes& codes) const override;
  void find_records(const FindRecordsCall& call, cudaStream_t stream) const override {
    find_level_records(format_, call, stream);
  }
  /// The same codec, its codes in another form.
  virtual std::shared_ptr<const LevelCodec> in_form(const LevelFormat& format) const {
    return std::make_shared<LevelCodec>(name_, format);
  }
  void move_rows_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    move_keys_of(calls, stream);
    move_values_of(calls, stream);
  }
  void move_keys_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    move_level_rows(format_.keys, true, calls, stream);
  }
  void move_values_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    move_level_rows(format_.values, false, calls, stream);
  }
  void add_token_mass(const TokenMass& call, const MassTarget* target,
                      cudaStream_t stream) const override {
    add_level_mass(format_.keys, call, target, stream);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    decode_levels({&format_, 1}, call, scratch, stream);
  }

 protected:
  std::string name_;
  LevelFormat format_;
  LevelRandom key_random_, value_random_;
};

/// Keys of one codec with values of another.
std::shared_ptr<const DeviceCodec> mix_levels(const std::shared_ptr<const LevelCodec>& keys,
                                              const std::shared_ptr<const LevelCodec>& values);

/// Rows of f16 or bf16 as they are, for one side beside the codes of the other.
std::shared_ptr<const LevelCodec> dense_levels(DType dtype);

/// Blocks of a group of 32, 64, 128 or 256 rows.
int level_group(size_t rows);
/// Keys around the mean of `rows` rows, 0: as they are.
void centre_keys(LevelSide& keys, size_t rows);

}  // namespace pith::cuda
