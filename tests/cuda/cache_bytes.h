#pragma once
// A GPU's cache as bytes, as sessions save it.

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "cache/cuda/device_cache.h"
#include "core/archive.h"
#include "pair_shape.h"

namespace pith::cuda {

inline std::string save_cache(DeviceCache& cache) {
  std::string bytes;
  Archive a([&](std::span<const std::byte> more) {
    bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
  });
  Archive counted;
  for (Archive* each : {&a, &counted}) {
    cache.archive(*each);
    for (int l = 0; l < kLayers; ++l) cache.archive_layer(l, *each);
  }
  EXPECT_EQ(counted.bytes(), bytes.size());
  return bytes;
}
/// Into a cache that has seen nothing.
inline void load_cache(DeviceCache& cache, const std::string& bytes) {
  const std::vector<char> own(bytes.begin(), bytes.end());  // a sanitizer sees its end
  Archive a({reinterpret_cast<const std::byte*>(own.data()), own.size()}, "a test");
  cache.archive(a);
  for (int l = 0; l < kLayers; ++l) cache.archive_layer(l, a);
  a.end();
}

}  // namespace pith::cuda
