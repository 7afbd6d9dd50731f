#include "rows/cuda/grouped_codec.h"

#include <fmt/format.h>

#include "core/finite.h"
#include "pith/error.h"
#include "rows/cuda/grouped_decode.h"
#include "rows/cuda/level_means.h"

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

namespace {

/// The same codes as rows of levels, transformed and around means if asked.
std::shared_ptr<const LevelCodec> make_levels(const std::string& name, GroupedCodec codec,
                                              const GroupedForm& form) {
  const bool minima = codec == GroupedCodec::kKivi2 || codec == GroupedCodec::kKivi4;
  LevelSide side;
  side.bits = codec == GroupedCodec::kInt8 ? 8 : codec == GroupedCodec::kKivi2 ? 2 : 4;
  side.scale = LevelScale::kRowGroup;
  side.minima = minima;
  side.zero = minima ? 0 : 1 << (side.bits - 1);
  side.rotated = form.hadamard;
  LevelFormat format{side, side};
  if (minima) format.keys.scale = LevelScale::kBlockChannel;
  centre_keys(format.keys, form.center);
  const std::string all =
      fmt::format("{}{}, centred by {}", name, form.hadamard ? " transformed" : "", form.center);
  return around_mean(std::make_shared<LevelCodec>(all, format), form.mean_rows);
}

/// All that lies beside grouped codes are scales and minima.
void check_grouped(const Archive& a, const LoadedCodes& codes) {
  a.need(!codes.side() || !has_non_finite(codes.bytes.data(), DType::kF16, codes.bytes.size() / 2),
         "a number is not finite");
}

/// Keys in int8 and values in int4, which need fewer bits: a pair that users of llama.cpp ask for.
class Int8Int4Codec final : public DeviceCodec {
 public:
  std::string name() const override { return "int8 keys, int4 values"; }
  GroupedBytes block_bytes(int head_dim) const override {
    const GroupedBytes k = grouped_bytes(kKeys, head_dim), v = grouped_bytes(kValues, head_dim);
    return {k.key_codes, k.key_side, v.value_codes, v.value_side};
  }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    code_grouped(kKeys, batch, keys, {}, stream);
    code_grouped(kValues, batch, {}, values, stream);
  }
  void unpack_keys(const UnpackRowsCall& call, cudaStream_t stream) const override {
    unpack_grouped_keys(kKeys, call, stream);
  }
  void unpack_values(const UnpackRowsCall& call, cudaStream_t stream) const override {
    unpack_grouped_values(kValues, call, stream);
  }
  void check_loaded(const Archive& a, const LoadedCodes& codes) const override {
    check_grouped(a, codes);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    decode_int8_int4(call, scratch, stream);
  }

 private:
  static constexpr auto kKeys = GroupedCodec::kInt8, kValues = GroupedCodec::kInt4;
};

/// int8 or int4 on one side, f16 or bf16 rows on the other: types that users of llama.cpp set
/// apart.
class RowsBesideCodec final : public DeviceCodec {
 public:
  struct Rows {
    bool keys;  ///< else values
    DType dtype;
  };
  RowsBesideCodec(GroupedCodec codec, int bits, const Rows& rows)
      : codec_(codec),
        bits_(bits),
        row_keys_(rows.keys),
        bf16_(rows.dtype == DType::kBF16),
        rows_(dense_levels(rows.dtype)) {}

  std::string name() const override {
    return fmt::format("int{} {} beside {}", bits_, row_keys_ ? "values" : "keys", rows_->name());
  }
  GroupedBytes block_bytes(int head_dim) const override {
    const GroupedBytes codes = grouped_bytes(codec_, head_dim), rows = rows_->block_bytes(head_dim);
    const GroupedBytes &k = row_keys_ ? rows : codes, &v = row_keys_ ? codes : rows;
    return {k.key_codes, k.key_side, v.value_codes, v.value_side};
  }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    const std::span<const CodeJob> none;
    rows_->code(batch, row_keys_ ? keys : none, row_keys_ ? none : values, stream);
    code_grouped(codec_, batch, row_keys_ ? none : keys, row_keys_ ? values : none, stream);
  }
  void unpack_keys(const UnpackRowsCall& call, cudaStream_t stream) const override {
    row_keys_ ? rows_->unpack_keys(call, stream) : unpack_grouped_keys(codec_, call, stream);
  }
  void unpack_values(const UnpackRowsCall& call, cudaStream_t stream) const override {
    row_keys_ ? unpack_grouped_values(codec_, call, stream) : rows_->unpack_values(call, stream);
  }
  void check_loaded(const Archive& a, const LoadedCodes& codes) const override {
    row_keys_ == codes.keys() ? rows_->check_loaded(a, codes) : check_grouped(a, codes);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    const auto decode = bf16_ ? (row_keys_ ? decode_bf16_keys : decode_bf16_values)
                              : (row_keys_ ? decode_f16_keys : decode_f16_values);
    decode(bits_, call, scratch, stream);
  }

 private:
  GroupedCodec codec_;
  int bits_;
  bool row_keys_;  // else values
  bool bf16_;      // else f16
  std::shared_ptr<const LevelCodec> rows_;
};

class QuantCodec final : public DeviceCodec {
 public:
  QuantCodec(std::string name, GroupedCodec codec) : name_(std::move(name)), codec_(codec) {}

  std::string name() const override { return name_; }
  std::shared_ptr<const LevelCodec> as_levels() const override {
    return make_levels(name_, codec_, {});
  }
  GroupedBytes block_bytes(int head_dim) const override { return grouped_bytes(codec_, head_dim); }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    code_grouped(codec_, batch, keys, values, stream);
  }
  void unpack_keys(const UnpackRowsCall& call, cudaStream_t stream) const override {
    unpack_grouped_keys(codec_, call, stream);
  }
  void unpack_values(const UnpackRowsCall& call, cudaStream_t stream) const override {
    unpack_grouped_values(codec_, call, stream);
  }
  void unpack_keys_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    unpack_many_grouped_keys(codec_, calls, stream);
  }
  std::shared_ptr<const DeviceCodec> with_rows_alone(int head_dim) const override {
    return as_levels()->with_rows_alone(head_dim);
  }
  void move_rows(const MoveCodesCall& call, cudaStream_t stream) const override {
    move_coded_rows(bits(), call, stream);
  }
  void move_rows_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    move_many_coded_rows(bits(), calls, stream);
  }
  void move_values(const MoveCodesCall& call, cudaStream_t stream) const override {
    if (codec_ != GroupedCodec::kKivi2) {
      throw Error(ErrorCode::kInternal, "values of " + name_ + " do not move without their keys");
    }
    move_kivi2_values(call, stream);
  }
  void add_token_mass(const TokenMass& call, const MassTarget* target,
                      cudaStream_t stream) const override {
    add_coded_mass(bits(), call, target, stream);
  }
  void check_loaded(const Archive& a, const LoadedCodes& codes) const override {
    check_grouped(a, codes);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    decode_grouped(codec_, call, scratch, stream);
  }

 private:
  /// Of codecs whose rows have scales of their own; else 0.
  int bits() const {
    return codec_ == GroupedCodec::kInt4 ? 4 : codec_ == GroupedCodec::kInt8 ? 8 : 0;
  }

  std::string name_;
  GroupedCodec codec_;
};

}  // namespace

std::shared_ptr<const DeviceCodec> make_grouped(const std::string& name, GroupedCodec codec,
                                                const GroupedForm& form) {
  if (form.hadamard || form.center > 0 || form.mean_rows > 0) return make_levels(name, codec, form);
  return std::make_shared<QuantCodec>(name, codec);
}

std::shared_ptr<const DeviceCodec> make_int8_beside_int4() {
  return std::make_shared<Int8Int4Codec>();
}

std::shared_ptr<const DeviceCodec> make_beside_rows(int bits, DType rows, bool row_keys) {
  const GroupedCodec codec = bits == 8 ? GroupedCodec::kInt8 : GroupedCodec::kInt4;
  return std::make_shared<RowsBesideCodec>(codec, bits, RowsBesideCodec::Rows{row_keys, rows});
}

}  // namespace pith::cuda
