#include "rows/cuda/grouped_codec.h"

#include <fmt/format.h>

#include "core/finite.h"
#include "pith/error.h"
#include "rows/cuda/grouped_decode.h"
#include "rows/cuda/level_means.h"

namespace pith::cuda {
namespace {

int bits_of(GroupedCodec codec) {
  if (codec == GroupedCodec::kKivi2) return 2;
  return codec == GroupedCodec::kInt8 || codec == GroupedCodec::kRotatedInt8 ? 8 : 4;
}
/// Those are KIVI's; its keys share a scale per channel, and its rows are not moved alone.
bool has_minima(GroupedCodec codec) {
  return codec == GroupedCodec::kKivi2 || codec == GroupedCodec::kKivi4;
}
bool is_rotated(GroupedCodec codec) {
  return codec == GroupedCodec::kRotatedInt4 || codec == GroupedCodec::kRotatedInt8;
}

}  // namespace

GroupedBytes grouped_bytes(GroupedCodec codec, int head_dim) {
  const auto d = static_cast<size_t>(head_dim);
  const size_t codes = 4 * static_cast<size_t>(bits_of(codec)) * d;
  const size_t scales = 2 * d;  // f16, one for 32 numbers
  const bool minima = has_minima(codec);
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
    case GroupedCodec::kRotatedInt4: return decode_rotated_int4(call, scratch, stream);
    case GroupedCodec::kRotatedInt8: return decode_rotated_int8(call, scratch, stream);
  }
}

namespace {

/// The same codes as rows of levels, transformed and around means if asked.
std::shared_ptr<const LevelCodec> make_levels(const std::string& name, GroupedCodec codec,
                                              const GroupedForm& form) {
  const bool minima = has_minima(codec);
  LevelSide side;
  side.bits = bits_of(codec);
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

class QuantCodec final : public DeviceCodec {
 public:
  QuantCodec(std::string name, GroupedCodec codec) : name_(std::move(name)), codec_(codec) {}

  std::string name() const override { return name_; }
  TileForm tiles() const override {
    switch (codec_) {
      case GroupedCodec::kInt4: return TileForm::kInt4;
      case GroupedCodec::kInt8: return TileForm::kInt8;
      case GroupedCodec::kRotatedInt4: return TileForm::kRotatedInt4;
      default: return TileForm::kNone;
    }
  }
  std::shared_ptr<const LevelCodec> as_levels() const override {
    return make_levels(name_, codec_, {.hadamard = is_rotated(codec_)});
  }
  GroupedBytes block_bytes(int head_dim) const override { return grouped_bytes(codec_, head_dim); }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    code_grouped(codec_, batch, keys, values, stream);
  }
  void unpack_keys_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    unpack_grouped_keys(codec_, calls, stream);
  }
  void unpack_values_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    unpack_grouped_values(codec_, calls, stream);
  }
  std::shared_ptr<const DeviceCodec> with_rows_alone(int head_dim) const override {
    return as_levels()->with_rows_alone(head_dim);
  }
  void move_rows_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    move_coded_rows(bits_of(codec_), calls, stream);
  }
  void move_keys_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    move_sides(true, calls, stream);
  }
  void move_values_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    if (codec_ != GroupedCodec::kKivi2) return move_sides(false, calls, stream);
    for (const MoveCodesCall& call : calls) move_kivi2_values(call, stream);
  }
  void add_token_mass(const TokenMass& call, const MassTarget* target,
                      cudaStream_t stream) const override {
    add_coded_mass(codec_, call, target, stream);
  }
  void check_loaded(const Archive& a, const LoadedCodes& codes) const override {
    check_grouped(a, codes);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    decode_grouped(codec_, call, scratch, stream);
  }

 private:
  void move_sides(bool keys, std::span<const MoveCodesCall> calls, cudaStream_t stream) const {
    if (has_minima(codec_)) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("{} of {} do not move alone", keys ? "keys" : "values", name_));
    }
    move_coded_sides(bits_of(codec_), keys, calls, stream);
  }

  std::string name_;
  GroupedCodec codec_;
};

}  // namespace

std::shared_ptr<const DeviceCodec> make_grouped(const std::string& name, GroupedCodec codec,
                                                const GroupedForm& form) {
  const bool centred = form.center > 0 || form.mean_rows > 0;
  if (centred || (form.hadamard && has_minima(codec))) return make_levels(name, codec, form);
  if (!form.hadamard) return std::make_shared<QuantCodec>(name, codec);
  const bool eight = bits_of(codec) == 8;
  return std::make_shared<QuantCodec>(
      name + " rotated", eight ? GroupedCodec::kRotatedInt8 : GroupedCodec::kRotatedInt4);
}

}  // namespace pith::cuda
