#pragma once
// Decode calls of many sequences that differ in nothing but where their numbers are: one launch for
// all of them, in which each is cut by its own rows (see DecodeCompany).

#include <cstddef>
#include <type_traits>
#include <vector>

#include "attend/cuda/decode.h"
#include "kernels/cuda/launch.h"

namespace pith::cuda {

/// What the parameters of a decode kernel begin with.
struct PlacedParams {
  DecodePlace place;                    // of the launch's one call
  const DecodePlace* places = nullptr;  // [calls] on the device, or null
};

class DecodeGroups {
 public:
  /// Launches `kernel`, whose type it knows, with `params`, its one parameter's bytes.
  using Launcher = void (*)(void (*kernel)(), const LaunchShape&, const void* params, cudaStream_t,
                            const char* what);
  struct Call {
    void (*kernel)() = nullptr;  ///< any kernel, by the launcher's type
    Launcher launch = nullptr;
    const char* what = "";
    LaunchShape shape;
    const DecodePlace* place = nullptr;  ///< on the device
  };

  template <class Params>
  void add(const Call& call, Params params) {
    static_assert(std::is_trivially_copyable_v<Params> && std::is_base_of_v<PlacedParams, Params>);
    PlacedParams& placed = params;
    placed = {};
    const auto* bytes = reinterpret_cast<const std::byte*>(&params);
    const auto at = reinterpret_cast<const std::byte*>(&placed) - bytes;
    add(call, {bytes, bytes + sizeof(params)}, static_cast<size_t>(at));
  }
  /// Launches what was added: neighbours whose places are neighbours together.
  void run(cudaStream_t stream);

 private:
  struct Added {
    Call call;
    std::vector<std::byte> params;
    size_t placed = 0;  // where PlacedParams are among them
  };
  void add(const Call& call, std::vector<std::byte> params, size_t placed);
  static bool alike(const Added& a, const Added& b);

  std::vector<Added> added_;
};

}  // namespace pith::cuda
