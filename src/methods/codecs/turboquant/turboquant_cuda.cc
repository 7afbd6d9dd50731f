// turboquant on the GPU: rows of levels, transformed, with one scale per row. Codes lie in
// fragments and have decode kernels of their own; beside another codec's they lie in rows.

#include <fmt/format.h>

#include "methods/codecs/turboquant/turboquant.h"
#include "methods/codecs/turboquant/turboquant_cuda.h"
#include "methods/registry_cuda.h"
#include "rows/cpu/plane_rows.h"
#include "rows/cuda/level_means.h"

namespace pith::cuda {
namespace {

class TurboquantCodec final : public LevelCodec {
 public:
  TurboquantCodec(std::string name, const LevelFormat& rows)
      : LevelCodec(std::move(name), in_fragments(rows)), rows_(rows) {}

  std::shared_ptr<const LevelCodec> as_levels() const override { return in_form(rows_); }
  TileForm tiles() const override {
    switch (format_.keys.bits) {
      case 2: return TileForm::kTurboquant2;
      case 3: return TileForm::kTurboquant3;
      case 4: return TileForm::kTurboquant4;
      default: return TileForm::kNone;
    }
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    switch (format_.keys.bits) {
      case 1: return decode_turboquant1(call, scratch, stream);
      case 2: return decode_turboquant2(call, scratch, stream);
      case 3: return decode_turboquant3(call, scratch, stream);
      default: return decode_turboquant4(call, scratch, stream);
    }
  }

 private:
  static LevelFormat in_fragments(LevelFormat format) {
    format.keys.order = LevelOrder::kKeyFragments;
    format.values.order = LevelOrder::kValueFragments;
    return format;
  }
  LevelFormat rows_;
};

}  // namespace

std::shared_ptr<const DeviceCodec> make_turboquant_on_gpu(const MethodOptions& options) {
  const auto& o = options.as<TurboquantOptions>();
  PlaneFormat planes;
  planes.planes = o.bits;
  LevelSide side;
  side.bits = planes.planes;
  side.choice = LevelChoice::kSigns;
  side.rotated = true;
  for (uint32_t code = 0; code < 1u << side.bits; ++code) {
    uint32_t signs = 0;  // plane 0, the largest, is the code's highest bit: levels ascend
    for (int i = 0; i < side.bits; ++i) signs |= (code >> (side.bits - 1 - i) & 1) << i;
    side.levels[code] = planes.level(signs);
  }
  LevelFormat format{side, side};
  format.keys.whole_rows = o.whole_rows(Side::kKeys);
  format.values.whole_rows = o.whole_rows(Side::kValues);
  centre_keys(format.keys, o.group_rows());
  const std::string name = fmt::format("turboquant of {} bits, centred by {}{}", side.bits,
                                       o.group_rows(), o.fit ? ", scales that fit" : "");
  return around_mean(std::make_shared<TurboquantCodec>(name, format), o.mean_rows());
}

}  // namespace pith::cuda
