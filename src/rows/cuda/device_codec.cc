#include "rows/cuda/device_codec.h"

#include <fmt/format.h>

#include <numbers>

#include "pith/error.h"

namespace pith::cuda {

DeviceArray<double> rope_turns(const TableSite& site, const std::string& what) {
  if (!site.frequencies) {
    throw Error(ErrorCode::kUnsupported,
                what + ", which needs the model's RoPE; none is known here");
  }
  std::vector<double> turns = *site.frequencies;
  for (double& x : turns) x /= 2 * std::numbers::pi;
  DeviceArray<double> out(*site.memory, MemoryKind::kShared, turns.size(), site.stream);
  out.upload(turns.data(), turns.size(), site.stream);
  return out;
}

}  // namespace pith::cuda
