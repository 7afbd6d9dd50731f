#include "attend/cuda/decode_groups.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pith::cuda {
namespace {

bool same(const dim3& a, const dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

/// Blocks that the card works on at once.
unsigned room_for(const DecodeGroups::Call& call) {
  const LaunchShape& shape = call.shape;
  int resident = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &resident, reinterpret_cast<const void*>(call.kernel.kernel),
            static_cast<int>(shape.block.x), shape.shared_bytes),
        call.what);
  return static_cast<unsigned>(device_info().multiprocessors * std::max(resident, 1));
}

}  // namespace

bool DecodeLaunch::operator==(const DecodeLaunch& o) const {
  return kernel == o.kernel && same(shape.grid, o.shape.grid) && same(shape.block, o.shape.block) &&
         shape.shared_bytes == o.shape.shared_bytes && params == o.params;
}

void DecodeGroups::add(const Call& call, std::vector<std::byte> params, size_t placed) {
  added_.push_back({call, std::move(params), placed, stage_++});
}

bool DecodeGroups::alike(const Added& a, const Added& b) {
  return a.call.place && a.stage == b.stage && a.call.kernel == b.call.kernel &&
         a.call.shape.block.x == b.call.shape.block.x &&
         a.call.shape.shared_bytes == b.call.shape.shared_bytes && a.params == b.params;
}

// Blocks that take several pieces of a call begin once, a quarter of a piece's time, but all of a
// round wait for the one with most pieces: the number with the least time, of those that fill whole
// rounds of what the card has room for.
unsigned DecodeGroups::blocks_of_call(const Call& call) {
  constexpr float kBegin = 0.25f;
  constexpr unsigned kMostRounds = 8;
  const LaunchShape& shape = call.shape;
  const auto up = [](unsigned a, unsigned b) { return (a + b - 1) / b; };
  const unsigned room = room_for(call);
  const unsigned pieces = shape.grid.x, calls = shape.grid.y;
  unsigned best = pieces;
  float least = static_cast<float>(up(pieces * calls, room)) * (kBegin + 1);
  for (unsigned rounds = kMostRounds; rounds > 0; --rounds) {
    const unsigned most = std::clamp(rounds * room / calls, 1u, pieces);
    const unsigned n = up(pieces, up(pieces, most));
    const float time =
        static_cast<float>(up(n * calls, room)) * (kBegin + static_cast<float>(up(pieces, n)));
    if (time <= least) best = n, least = time;
  }
  return best;
}

unsigned blocks_in_room(const DecodeGroups::Call& call, unsigned calls) {
  const LaunchShape& shape = call.shape;
  return std::clamp(room_for(call) / (shape.grid.x * calls), 1u, shape.grid.y);
}

std::vector<DecodeLaunch> DecodeGroups::take() {
  std::vector<DecodeLaunch> launches;
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
      if (group.call.any_blocks) shape.grid.y = blocks_in_room(group.call, count);
      const PlacedParams placed{{}, group.call.place};
      std::memcpy(group.params.data() + group.placed, &placed, sizeof(placed));
    }
    launches.push_back({group.call.kernel, group.call.what, shape, std::move(group.params)});
  }
  added_.clear();
  stage_ = 0;
  return launches;
}

void DecodeGroups::run(std::span<const DecodeLaunch> launches, cudaStream_t stream) {
  for (const DecodeLaunch& l : launches) l.kernel(l.shape, l.params.data(), stream, l.what);
}

}  // namespace pith::cuda
