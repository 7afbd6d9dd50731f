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

// Blocks that take several pieces of a call begin and end once. Those that run at a time are as
// many as there is room for, in up to four rounds: with the least rounds that leave little of it
// empty.
unsigned DecodeGroups::blocks_of_call(const Call& call) {
  const LaunchShape& shape = call.shape;
  int resident = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &resident, reinterpret_cast<const void*>(call.kernel.kernel),
            static_cast<int>(shape.block.x), shape.shared_bytes),
        call.what);
  const unsigned room =
      static_cast<unsigned>(device_info().multiprocessors * std::max(resident, 1));
  const unsigned pieces = shape.grid.x, calls = shape.grid.y;
  unsigned best = 1;
  double best_share = 0;
  for (unsigned rounds = 1; rounds <= 4; ++rounds) {
    const unsigned n = std::clamp(rounds * room / calls, 1u, pieces);
    const unsigned taken = (n * calls + room - 1) / room * room;
    const double share = static_cast<double>(n * calls) / taken;
    if (share > best_share + 0.03) best = n, best_share = share;
  }
  return best;
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
      if (count > 1 && group.call.calls == &dim3::y) shape.grid.x = blocks_of_call(group.call);
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
