#include "attend/cuda/decode_groups.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pith::cuda {

void DecodeGroups::add(const Call& call, std::vector<std::byte> params, size_t placed) {
  added_.push_back({call, std::move(params), placed, stage_++});
}

bool DecodeGroups::alike(const Added& a, const Added& b) {
  return a.call.place && a.stage == b.stage && a.call.kernel == b.call.kernel &&
         a.call.shape.block.x == b.call.shape.block.x &&
         a.call.shape.shared_bytes == b.call.shape.shared_bytes && a.params == b.params;
}

void DecodeGroups::run(cudaStream_t stream) {
  std::ranges::stable_sort(added_, {}, &Added::stage);
  for (size_t first = 0, end = 0; first < added_.size(); first = end) {
    Added& group = added_[first];
    LaunchShape& shape = group.call.shape;
    end = first + 1;
    while (end < added_.size() && alike(group, added_[end]) &&
           added_[end].call.place == group.call.place + (end - first)) {
      shape.grid.x = std::max(shape.grid.x, added_[end++].call.shape.grid.x);
    }
    const auto count = static_cast<unsigned>(end - first);
    if (group.call.place) {
      shape.grid.*group.call.calls = count;
      const unsigned least = std::min(group.call.least_blocks, shape.grid.y);
      if (least > 0) shape.grid.y = std::max(least, shape.grid.y / count);
      const PlacedParams placed{{}, group.call.place};
      std::memcpy(group.params.data() + group.placed, &placed, sizeof(placed));
    }
    group.call.kernel(shape, group.params.data(), stream, group.call.what);
  }
  added_.clear();
  stage_ = 0;
}

}  // namespace pith::cuda
