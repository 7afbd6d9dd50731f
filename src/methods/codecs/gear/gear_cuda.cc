// gear on the GPU: KIVI's codes as rows of levels, with a product and numbers apart.

#include <fmt/format.h>

#include "methods/codecs/gear/gear.h"
#include "methods/codecs/gear/gear_rows.h"
#include "methods/registry_cuda.h"
#include "rows/cuda/level_means.h"

namespace pith::cuda {
namespace {

/// Without its sizes, which depend on head_dim, and without a layer's random numbers.
class GearDeviceCodec final : public LevelCodec {
 public:
  GearDeviceCodec(std::string name, const LevelFormat& format, const GearFormat& gear)
      : LevelCodec(std::move(name), format), gear_(gear) {}
  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override;
  std::shared_ptr<const LevelCodec> in_form(const LevelFormat& format) const override {
    return std::make_shared<GearDeviceCodec>(name_, format, gear_);
  }

 private:
  GearFormat gear_;
};

std::shared_ptr<const DeviceCodec> GearDeviceCodec::with_tables(const TableSite& site) const {
  auto own = std::make_shared<GearDeviceCodec>(*this);
  const auto dim = static_cast<size_t>(site.head_dim);
  const size_t apart = GearCodec(gear_).at(dim).outliers;
  own->format_.keys.apart = own->format_.values.apart = static_cast<int>(apart);
  own->name_ = fmt::format("{}, layer {} from head {}", name_, site.layer, site.first_head);
  const uint32_t stream = kGearStream + 2 * site.first_head;
  own->key_random_ = {site.seed, site.layer, stream};
  own->value_random_ = {site.seed, site.layer, stream + 1};
  return own;
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_gear_on_gpu(const MethodOptions& o) {
  const auto& asked = o.as<GearOptions>();
  const GearFormat gear = asked.format();
  static_assert(LevelSide::kMostRank == kGearRankOnGpu);
  static_assert(LevelSide::kMostApart == kApartOnGpu);
  const CodecRow& kivi = codec_row("kivi");
  const PolicyPart part{kivi.info.name, {{"bits", std::to_string(gear.bits)}}};
  LevelFormat format = make_kivi_on_gpu(kivi.read(part))->as_levels()->format();
  const int blocks = level_group(gear.group_rows);
  for (LevelSide* side : {&format.keys, &format.values}) {
    side->missed = true;
    side->rank = static_cast<int>(gear.rank);
    side->group_blocks = blocks;
  }
  const std::string name =
      fmt::format("gear of {} bits, rank {} over {} rows", gear.bits, gear.rank, gear.group_rows);
  return around_mean(std::make_shared<GearDeviceCodec>(name, format, gear), asked.mean_rows());
}

}  // namespace pith::cuda
