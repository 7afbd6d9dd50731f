#pragma once
// core/philox.h on the device, word for word: a row's random numbers do not depend on the device.

#include <cstdint>

namespace pith::cuda {

/// The stream of one (seed, layer, head).
struct DevicePhilox {
  uint32_t key[2];
  uint32_t stream;

  static __host__ __device__ DevicePhilox make(uint64_t seed, uint32_t layer, uint32_t head) {
    return {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, (layer << 16) ^ head};
  }
  __device__ uint4 words(uint64_t row, uint32_t draw) const {
    uint4 x = {static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32) ^ (draw << 16), stream,
               0x50495448u};
    uint32_t k0 = key[0], k1 = key[1];
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53u} * x.x, b = uint64_t{0xCD9E8D57u} * x.z;
      x = {static_cast<uint32_t>(b >> 32) ^ x.y ^ k0, static_cast<uint32_t>(b),
           static_cast<uint32_t>(a >> 32) ^ x.w ^ k1, static_cast<uint32_t>(a)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return x;
  }
  __device__ float uniform(uint64_t row, uint32_t draw) const {
    return static_cast<float>(words(row, draw).x >> 8) * 0x1p-24f;
  }
  __device__ uint64_t word64(uint64_t row, uint32_t draw) const {
    const uint4 w = words(row, draw);
    return (uint64_t{w.x} << 32) | w.y;
  }
};

}  // namespace pith::cuda
