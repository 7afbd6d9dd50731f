#pragma once
// The partners of a method on the GPU, in words: for `pith policies NAME`.

#include <string>
#include <utility>
#include <vector>

namespace pith {

struct GpuPartners {
  std::vector<std::string> with;
  std::vector<std::pair<std::string, std::string>> without;  ///< a partner, and why not
  /// Parameters of which the GPU takes fewer values, and which ones.
  std::vector<std::pair<std::string, std::string>> limits;
};
/// Of the selector or codec of that name, at head_dim 128.
GpuPartners gpu_partners(const std::string& method);

}  // namespace pith
