#include "rows/cuda/level_means.h"

#include <fmt/format.h>

#include "kernels/cuda/device_archive.h"
#include "rows/cuda/head_sample.h"

namespace pith::cuda {
namespace {

class MeanLevels final : public LevelCodec {
 public:
  MeanLevels(std::shared_ptr<const LevelCodec> inner, size_t rows)
      : LevelCodec(*inner), inner_(std::move(inner)), rows_(rows) {
    name_ = fmt::format("{} around the mean of {} rows", name_, rows_);
  }

  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override {
    const auto inner = inner_->with_tables(site);
    return with_means(inner ? inner->as_levels() : inner_, site);
  }
  std::shared_ptr<const DeviceCodec> copy(cudaStream_t stream) const override {
    auto own = with_means(inner_, site_);
    check(cudaMemcpyAsync(own->means_.data(), means_.data(), 2 * means_.size(),
                          cudaMemcpyDeviceToDevice, stream),
          "a copy of the means of keys");
    return own;
  }
  std::shared_ptr<const LevelCodec> in_form(const LevelFormat& format) const override {
    return std::make_shared<MeanLevels>(inner_->in_form(format), rows_);
  }
  std::shared_ptr<const LevelCodec> of_values() const override { return inner_; }
  bool turns_keys() const override { return true; }
  size_t shared_bytes() const override {
    return inner_->shared_bytes() + 2 * means_.size() + 8 * turns_.size();
  }
  size_t learns_from() const override {
    return (rows_ + block_rows() - 1) / block_rows() * block_rows();
  }
  void learn(const RowTarget& rows, DType dtype, const RowPositions& positions,
             cudaStream_t stream) const override {
    learn_means(means_.data(), turns_.data(), sample_keys({rows, dtype, positions}, site_, rows_),
                stream);
  }
  void archive(Archive& a, cudaStream_t stream) const override {
    archive_finite(a, {means_.data(), 2 * means_.size()}, DType::kF16, stream);
  }

 private:
  /// With room for means of its own.
  std::shared_ptr<MeanLevels> with_means(std::shared_ptr<const LevelCodec> inner,
                                         const TableSite& site) const {
    auto own = std::make_shared<MeanLevels>(std::move(inner), rows_);
    own->name_ += fmt::format(", layer {}", site.layer);
    own->site_ = site;
    own->turns_ = rope_turns(site, "pre_rope=true codes keys before RoPE");
    const auto numbers = static_cast<size_t>(site.kv_heads * site.head_dim);
    own->means_ = {*site.memory, MemoryKind::kShared, numbers, site.stream};
    own->format_.keys.turns = own->turns_.data();
    own->format_.keys.means = own->means_.data();
    return own;
  }

  std::shared_ptr<const LevelCodec> inner_;
  size_t rows_;
  TableSite site_;
  DeviceArray<double> turns_;    // [D/2]
  DeviceArray<uint16_t> means_;  // [G, D] f16
};

}  // namespace

std::shared_ptr<const LevelCodec> around_mean(std::shared_ptr<const LevelCodec> codec,
                                              size_t rows) {
  if (rows == 0) return codec;
  return std::make_shared<MeanLevels>(codec->as_levels(), rows);
}

}  // namespace pith::cuda
