#pragma once
// Calls of many sequences that differ in nothing but where their numbers are, decode attention and
// what follows it: one launch for all of them. Decode calls are cut by their own rows (see
// DecodeCompany).

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "attend/cuda/decode.h"
#include "kernels/cuda/launch.h"

namespace pith::cuda {

/// The parameters of such a kernel.
struct PlacedParams {
  DecodePlace place;                    // of the launch's one call
  const DecodePlace* places = nullptr;  // [calls] on the device, or null
};

/// One launch for the calls of some sequences.
struct DecodeLaunch {
  LateKernel kernel;
  const char* what = "";
  LaunchShape shape;
  std::vector<std::byte> params;

  /// The same work over what lies at the same places.
  bool operator==(const DecodeLaunch& o) const;
};

class DecodeGroups {
 public:
  struct Call {
    LateKernel kernel;
    const char* what = "";
    LaunchShape shape;
    const DecodePlace* place = nullptr;  ///< on the device
    unsigned dim3::*calls = &dim3::y;    ///< which of the grid's numbers counts them
    /// A call does not depend on how many blocks grid.y has: all calls get at most as many as the
    /// card has room for at once.
    bool any_blocks = false;
  };

  /// Calls that are added from here on are another sequence's. One sequence's calls read what those
  /// before them wrote, and nothing of others.
  void next_sequence() { stage_ = 0; }

  template <class Params>
  void add(const Call& call, Params params) {
    static_assert(std::is_trivially_copyable_v<Params> && std::is_base_of_v<PlacedParams, Params>);
    PlacedParams& placed = params;
    placed = {};
    const auto* bytes = reinterpret_cast<const std::byte*>(&params);
    const auto at = reinterpret_cast<const std::byte*>(&placed) - bytes;
    add(call, {bytes, bytes + sizeof(params)}, static_cast<size_t>(at));
  }
  /// A call that has a launch of its own, in its turn.
  template <class Params>
  void add_alone(Call call, const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&params);
    call.place = nullptr;
    add(call, {bytes, bytes + sizeof(params)}, 0);
  }
  /// The added calls, as launches in their order: all sequences' first calls, then their second
  /// ones; neighbours whose places are neighbours together. Nothing is left.
  std::vector<DecodeLaunch> take();
  static void run(std::span<const DecodeLaunch> launches, cudaStream_t stream);

 private:
  struct Added {
    Call call;
    std::vector<std::byte> params;
    size_t placed = 0;  // where PlacedParams are among them
    int stage = 0;      // calls of the same sequence before it
  };
  void add(const Call& call, std::vector<std::byte> params, size_t placed);
  static unsigned blocks_of_call(const Call& call);
  static bool alike(const Added& a, const Added& b);

  std::vector<Added> added_;
  int stage_ = 0;  // of the call that comes next
};

/// Of grid.y, for each of so many calls in one launch: see Call::any_blocks.
unsigned blocks_in_room(const DecodeGroups::Call& call, unsigned calls);

}  // namespace pith::cuda
