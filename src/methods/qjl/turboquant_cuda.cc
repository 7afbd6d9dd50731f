// turboquant on the GPU: rows of levels, transformed, with one scale a row.

#include <fmt/format.h>

#include "attend/cuda/level_codec.h"
#include "methods/qjl/plane_rows.h"
#include "methods/qjl/qjl.h"

namespace pith::cuda {

std::shared_ptr<const DeviceCodec> make_turboquant_on_gpu(const Parameters& p) {
  PlaneFormat planes;
  planes.planes = p.choice("bits", {"1", "2", "3", "4"})[0] - '0';
  LevelSide side;
  side.bits = planes.planes;
  side.choice = LevelChoice::kSigns;
  side.rotated = true;
  for (uint32_t code = 0; code < 1u << planes.planes; ++code) {
    side.levels[code] = planes.level(code);
  }
  LevelFormat format{side, side};
  const size_t centre = p.count("center", 0);
  centre_keys(format.keys, p.method(), centre);
  return std::make_shared<LevelCodec>(
      fmt::format("turboquant of {} bits, centred by {}", side.bits, centre), format);
}

}  // namespace pith::cuda
