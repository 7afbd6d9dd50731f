#include "methods/qjl/qjl_levels_cuda.h"

#include <fmt/format.h>

#include <algorithm>

#include "attend/cuda/level_codec.h"
#include "compress/tight_rows.h"
#include "methods/qjl/plane_rows.h"

namespace pith::cuda {
namespace {

class QjlLevels final : public LevelCodec {
 public:
  using LevelCodec::LevelCodec;

  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override {
    LevelFormat format = format_;
    std::ranges::fill(format.keys.flips, 0u);
    for (int c = 0; c < site.head_dim; ++c) {
      const bool flips = turn_flips(site.seed, site.layer, static_cast<size_t>(c));
      format.keys.flips[c / 32] |= static_cast<uint32_t>(flips) << (c % 32);
    }
    return std::make_shared<QjlLevels>(fmt::format("{}, layer {}", name_, site.layer), format);
  }
  std::shared_ptr<const LevelCodec> in_form(const LevelFormat& format) const override {
    return std::make_shared<QjlLevels>(name_, format);
  }
};

LevelSide side_of(const PlaneFormat& planes) {
  LevelSide side;
  side.bits = planes.planes;
  side.choice = LevelChoice::kTight;
  side.rotated = true;
  const int count = 1 << side.bits;
  for (int code = 0; code < count; ++code)
    side.levels[code] = planes.level(static_cast<uint32_t>(code));
  std::sort(side.levels, side.levels + count);
  return side;
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_qjl_levels(const QjlOptions& o) {
  LevelFormat format{side_of(o.key_planes()), side_of(o.value_planes())};
  centre_keys(format.keys, o.center);
  return std::make_shared<QjlLevels>(
      fmt::format("qjl in {} bits, centred by {}", o.residual, o.center), format);
}

}  // namespace pith::cuda
