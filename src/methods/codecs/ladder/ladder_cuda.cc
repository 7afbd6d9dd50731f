// ladder on the GPU: two formats of rows of levels under one decode kernel.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "methods/codecs/ladder/ladder.h"
#include "methods/registry_cuda.h"
#include "policy/registry.h"
#include "rows/cuda/level_codec.h"

namespace pith::cuda {
namespace {

constexpr size_t kStep = 64;  // rows that age together on the CPU

class LadderDeviceCodec final : public DeviceCodec {
 public:
  LadderDeviceCodec(std::shared_ptr<const LevelCodec> old_codec,
                    std::shared_ptr<const LevelCodec> young, size_t rows)
      : old_(std::move(old_codec)),
        young_(std::move(young)),
        aged_{young_, old_, rows,
              std::lcm(kStep, std::lcm(old_->block_rows(), young_->block_rows()))} {}

  std::string name() const override {
    return fmt::format("{} and, {} rows on, {}", young_->name(), aged_.rows, old_->name());
  }
  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override {
    const auto of = [&](const std::shared_ptr<const LevelCodec>& codec) {
      const auto own = codec->with_tables(site);
      return own ? own->as_levels() : codec;
    };
    return std::make_shared<LadderDeviceCodec>(of(old_), of(young_), aged_.rows);
  }
  size_t scratch_bytes() const override {
    return std::max(old_->scratch_bytes(), young_->scratch_bytes());
  }
  const AgedCodec* aged() const override { return &aged_; }
  // Rows come to the young ones:
  size_t block_rows() const override { return young_->block_rows(); }
  GroupedBytes block_bytes(int head_dim) const override { return young_->block_bytes(head_dim); }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    young_->code(batch, keys, values, stream);
  }
  void unpack_keys_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    young_->unpack_keys_of(calls, stream);
  }
  void unpack_values_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    young_->unpack_values_of(calls, stream);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    const LevelFormat formats[] = {young_->format(), old_->format()};
    decode_levels(formats, call, scratch, stream);
  }

 private:
  std::shared_ptr<const LevelCodec> old_, young_;
  AgedCodec aged_;
};

std::shared_ptr<const LevelCodec> step_of(const PolicyPart& part) {
  return find_device_codec(part.name)->make(codec_row(part.name).read(part))->as_levels();
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_ladder_on_gpu(const MethodOptions& options) {
  const auto& o = options.as<LadderOptions>();
  return std::make_shared<LadderDeviceCodec>(step_of(o.old), step_of(o.young), o.rows);
}

}  // namespace pith::cuda
