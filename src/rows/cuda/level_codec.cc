#include "rows/cuda/level_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/finite.h"
#include "kernels/cuda/device.h"
#include "pith/error.h"
#include "rows/tight_rows.h"

namespace pith::cuda {

GroupedBytes LevelFormat::bytes(int dim) const {
  const auto of = [](int n) { return static_cast<size_t>(n); };
  return {of(keys.code_bytes(dim)), of(keys.side_bytes(dim)), of(values.code_bytes(dim)),
          of(values.side_bytes(dim))};
}

LevelFormat LevelFormat::named_rows(int dim, bool turned) const {
  LevelFormat named = *this;
  const int blocks = record_blocks();
  const int of_keys = keys.record_part(dim, blocks), of_values = values.record_part(dim, blocks);
  named.keys.positions = turned;
  named.values.record_at = of_keys;
  for (LevelSide* side : {&named.keys, &named.values}) {
    side->order = LevelOrder::kRows;
    if (!side->shares()) continue;
    side->record_bytes = of_keys + of_values;
    side->record_shift = std::countr_zero(static_cast<unsigned>(blocks));
  }
  return named;
}

void check_level_room(const char* what, size_t bytes) {
  const size_t most = device_info().shared_per_block;
  if (bytes <= most) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{} takes {} bytes of shared memory, and this GPU has {} for a block; use "
                  "smaller groups (center=, rows=), or --device cpu",
                  what, bytes, most));
}

size_t LevelCodec::block_rows() const {
  return static_cast<size_t>(std::max(format_.keys.group_rows(), format_.values.group_rows()));
}

std::shared_ptr<const DeviceCodec> LevelCodec::with_rows_alone(int head_dim) const {
  if (format_.rows_alone() && (!turns_keys() || format_.keys.positions)) return nullptr;
  return in_form(format_.named_rows(head_dim, turns_keys()));
}

void LevelCodec::check_loaded(const Archive& a, const LoadedCodes& codes) const {
  const auto finite = [&](size_t at, size_t count) {
    a.need(!has_non_finite(codes.bytes.data() + at, DType::kF16, count), "a number is not finite");
  };
  if (codes.part == CodePartOf::kRecords) return finite(0, codes.bytes.size() / 2);
  const LevelSide& f = codes.keys() ? format_.keys : format_.values;
  if (!codes.side()) {
    const DType dtype = f.bf16 ? DType::kBF16 : DType::kF16;
    a.need(f.scale != LevelScale::kNone ||
               !has_non_finite(codes.bytes.data(), dtype, codes.bytes.size() / 2),
           "a number is not finite");
    return;
  }
  const PlacedSide side(f, codes.head_dim);
  const auto of = [](int n) { return static_cast<size_t>(n); };
  const size_t names = codes.records << side.record_shift, block = of(side.at.side);
  const bool tight = f.tight();
  for (size_t at = 0; at < codes.bytes.size(); at += block) {
    for (size_t i = 0; tight && i < of(side.at.scales); ++i)
      a.need(static_cast<uint8_t>(codes.bytes[at + i]) <= kLargestTightScale,
             "a number is not finite");
    const size_t first = tight ? of(side.at.minima) : 0;
    finite(at + first, (of(side.at.channels) - first) / 2);
    for (int i = side.at.channels; i < side.at.left; ++i)
      a.need(static_cast<int>(codes.bytes[at + of(i)]) < codes.head_dim,
             "a channel that is not there");
    finite(at + of(side.at.left), of(side.at.numbers - side.at.left) / 2);
    finite(at + of(side.at.share), of(side.at.share_bytes) / 2);
    if (side.record_bytes == 0) continue;
    const auto* numbers = codes.at<int32_t>(at + of(side.at.numbers));
    for (int row = 0; row < kBlockRows; ++row)
      a.need(numbers[row] >= 0 && of(numbers[row]) < names, "a group that is not there");
  }
}

void LevelCodec::code(const CodeBatch& batch, std::span<const CodeJob> keys,
                      std::span<const CodeJob> values, cudaStream_t stream) const {
  code_levels(format_.keys, key_random_, batch, keys, stream);
  code_levels(format_.values, value_random_, batch, values, stream);
}

namespace {

/// Tables and random numbers are the two codecs' own.
class MixedCodec final : public LevelCodec {
 public:
  MixedCodec(std::shared_ptr<const LevelCodec> keys, std::shared_ptr<const LevelCodec> values)
      : LevelCodec(fmt::format("keys in {}, values in {}", keys->name(), values->name()),
                   {keys->format().keys, values->format().values}),
        keys_(std::move(keys)),
        values_(std::move(values)) {}

  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override {
    return with([&](const LevelCodec& codec) { return codec.with_tables(site); });
  }
  std::shared_ptr<const DeviceCodec> copy(cudaStream_t stream) const override {
    return with([&](const LevelCodec& codec) { return codec.copy(stream); });
  }
  std::shared_ptr<const LevelCodec> in_form(const LevelFormat& format) const override {
    return std::make_shared<MixedCodec>(keys_->in_form({format.keys, keys_->format().values}),
                                        values_->in_form({values_->format().keys, format.values}));
  }
  bool turns_keys() const override { return keys_->turns_keys(); }
  size_t shared_bytes() const override { return keys_->shared_bytes() + values_->shared_bytes(); }
  size_t scratch_bytes() const override {
    return std::max(keys_->scratch_bytes(), values_->scratch_bytes());
  }
  size_t learns_from() const override {
    const size_t most = std::max(keys_->learns_from(), values_->learns_from());
    return (most + block_rows() - 1) / block_rows() * block_rows();  // whole groups are coded then
  }
  void learn(const RowTarget& rows, DType dtype, const RowPositions& positions,
             cudaStream_t stream) const override {
    keys_->learn(rows, dtype, positions, stream);
    values_->learn(rows, dtype, positions, stream);
  }
  size_t first_queries() const override { return keys_->first_queries(); }
  void see_queries(const FirstQueries& queries, cudaStream_t stream) const override {
    keys_->see_queries(queries, stream);
  }
  void archive_queries(Archive& a, cudaStream_t stream) const override {
    keys_->archive_queries(a, stream);
  }
  void archive(Archive& a, cudaStream_t stream) const override {
    if (keys_->learns_from() > 0) keys_->archive(a, stream);
    if (values_->learns_from() > 0) values_->archive(a, stream);
  }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    keys_->code(batch, keys, {}, stream);
    values_->code(batch, {}, values, stream);
  }

 private:
  /// The same with what `make` makes of both; null where it makes nothing of either.
  template <class Make>
  std::shared_ptr<const DeviceCodec> with(const Make& make) const {
    const std::shared_ptr<const DeviceCodec> keys = make(*keys_), values = make(*values_);
    if (!keys && !values) return nullptr;
    return std::make_shared<MixedCodec>(keys ? keys->as_levels() : keys_,
                                        values ? values->as_levels() : values_);
  }

  std::shared_ptr<const LevelCodec> keys_, values_;
};

}  // namespace

std::shared_ptr<const DeviceCodec> mix_levels(const std::shared_ptr<const LevelCodec>& keys,
                                              const std::shared_ptr<const LevelCodec>& values) {
  return std::make_shared<MixedCodec>(keys->of_keys(), values->of_values());
}

std::shared_ptr<const LevelCodec> dense_levels(DType dtype) {
  LevelSide side;
  side.bits = 16;
  side.scale = LevelScale::kNone;
  side.bf16 = dtype == DType::kBF16;
  return std::make_shared<LevelCodec>(to_string(dtype), LevelFormat{side, side});
}

int level_group(size_t rows) {
  for (const int blocks : {1, 2, 4, 8}) {
    if (rows == static_cast<size_t>(blocks * kBlockRows)) return blocks;
  }
  throw Error(ErrorCode::kInternal, fmt::format("a group of {} rows, which Limit::of_group lets "
                                                "nobody ask for",
                                                rows));
}

void centre_keys(LevelSide& keys, size_t rows) {
  if (rows == 0) return;
  keys.group_blocks = level_group(rows);
  keys.centred = true;
  keys.rank = 1;
}

}  // namespace pith::cuda
