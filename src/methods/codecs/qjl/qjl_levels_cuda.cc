#include "methods/codecs/qjl/qjl_levels_cuda.h"

#include <fmt/format.h>

#include <algorithm>

#include "rows/cpu/plane_rows.h"
#include "rows/cuda/level_means.h"
#include "rows/tight_rows.h"

namespace pith::cuda {
namespace {

/// Codes of 2 and 3 bits lie in fragments and have decode kernels of their own. They lie in rows
/// beside another codec's, with 1 or 4 bits, and where they move: without a mean they may anywhere.
class QjlLevels final : public LevelCodec {
 public:
  using LevelCodec::LevelCodec;

  std::shared_ptr<const LevelCodec> as_levels() const override {
    LevelFormat rows = format_;
    rows.keys.order = rows.values.order = LevelOrder::kRows;
    return in_form(rows);
  }
  std::shared_ptr<const LevelCodec> in_form(const LevelFormat& format) const override {
    return std::make_shared<QjlLevels>(name_, format);
  }
  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override;
  size_t shared_bytes() const override { return sizeof(uint32_t) * flips_.size(); }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    if (!in_fragments()) return LevelCodec::attend(call, scratch, stream);
    DecodeCall own = call;
    own.table = flips_.data();
    decode_qjl_levels(format_.keys.bits, own, scratch, stream);
  }

 private:
  bool in_fragments() const { return format_.keys.form() == LevelForm::kFragments; }

  DeviceArray<uint32_t> flips_;  // [4] the format's, for kernels of fragments
};

std::shared_ptr<const DeviceCodec> QjlLevels::with_tables(const TableSite& site) const {
  LevelFormat format = format_;
  auto& flips = format.keys.flips;
  std::ranges::fill(flips, 0u);
  for (int c = 0; c < site.head_dim; ++c) {
    const bool other = turn_flips(site.seed, site.layer, static_cast<size_t>(c));
    flips[c / 32] |= static_cast<uint32_t>(other) << (c % 32);
  }
  auto own = std::make_shared<QjlLevels>(fmt::format("{}, layer {}", name_, site.layer), format);
  if (!in_fragments()) return own;
  own->flips_ = {*site.memory, MemoryKind::kShared, std::size(flips), site.stream};
  own->flips_.upload(flips, std::size(flips), site.stream);
  check(cudaStreamSynchronize(site.stream), "qjl's signs");
  return own;
}

LevelSide side_of(const PlaneFormat& planes) {
  LevelSide side;
  side.bits = planes.planes;
  side.choice = LevelChoice::kTight;
  side.rotated = true;
  const int half = 1 << (side.bits - 1);
  for (int i = 0; i < half; ++i) {
    side.levels[half + i] = tight_level(side.bits, i);
    side.levels[half - 1 - i] = -side.levels[half + i];
  }
  return side;
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_qjl_levels(const QjlOptions& o) {
  LevelFormat format{side_of(o.key_planes()), side_of(o.value_planes())};
  centre_keys(format.keys, o.group_rows());
  if (o.group_rows() > 0 && (o.residual == 2 || o.residual == 3)) {
    format.keys.order = LevelOrder::kKeyFragments;
    format.values.order = LevelOrder::kValueFragments;
  }
  const std::string name = fmt::format("qjl in {} bits, centred by {}", o.residual, o.group_rows());
  return around_mean(std::make_shared<QjlLevels>(name, format), o.mean_rows());
}

}  // namespace pith::cuda
