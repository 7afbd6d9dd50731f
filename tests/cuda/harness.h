#pragma once
// Shared by the GPU tests: heads on the device, decoding of device blocks on the host, and
// attention in double precision as the oracle.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "attend/cuda/decode.h"
#include "kernels/cuda/device.h"

namespace pith::cuda {

/// Skips the test where no GPU answers; the other tests of the suite still count.
#define PITH_NEEDS_GPU()                                                  \
  if (int count = 0; cudaGetDeviceCount(&count) != cudaSuccess || !count) \
  GTEST_SKIP() << "no GPU on this machine"

/// Whether the card is the CPU (tests/emulated).
inline bool emulated() {
  cudaDeviceProp card;
  cudaGetDeviceProperties(&card, 0);
  return std::strstr(card.name, "emulated") != nullptr;
}

/// Whether kernels of Hopper's own instructions run; what chooses kernels takes the emulated card
/// for an older one.
inline bool has_wgmma() { return device_info().wgmma() || emulated(); }

/// Whether a test's case is left out: all but the first in each PITH_CASES of a test are; unset, on
/// the emulated card, where a case takes seconds, of each 8, and a card runs all.
inline bool left_out() {
  static const int share = [] {
    const char* cases = std::getenv("PITH_CASES");
    return cases ? std::max(1, std::atoi(cases)) : emulated() ? 8 : 1;
  }();
  static const testing::TestInfo* test = nullptr;
  static int cases = 0;
  const testing::TestInfo* now = testing::UnitTest::GetInstance()->current_test_info();
  if (std::exchange(test, now) != now) cases = 0;
  return cases++ % share != 0;
}

inline float bf16_to_float(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t float_to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float f16_to_float(uint16_t h) {
  _Float16 x;
  std::memcpy(&x, &h, 2);
  return static_cast<float>(x);
}
inline uint16_t float_to_f16(float f) {
  const auto x = static_cast<_Float16>(f);
  uint16_t h;
  std::memcpy(&h, &x, 2);
  return h;
}
inline float to_float(DType dtype, uint16_t x) {
  return dtype == DType::kBF16 ? bf16_to_float(x) : f16_to_float(x);
}
inline uint16_t from_float(DType dtype, float x) {
  return dtype == DType::kBF16 ? float_to_bf16(x) : float_to_f16(x);
}

/// n normal numbers of a 16-bit dtype.
inline std::vector<uint16_t> normals(size_t n, DType dtype, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> draw;
  std::vector<uint16_t> x(n);
  for (uint16_t& v : x) v = from_float(dtype, draw(rng));
  return x;
}
inline std::vector<float> widen(const std::vector<uint16_t>& x, DType dtype) {
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = to_float(dtype, x[i]);
  return y;
}

/// Rows [.., dim] after the orthonormal Walsh-Hadamard transform, its own inverse.
inline std::vector<float> rotated(std::vector<float> rows, int dim) {
  const auto scale = static_cast<float>(1 / std::sqrt(dim));
  for (auto row = rows.begin(); row != rows.end(); row += dim) {
    for (int bit = 1; bit < dim; bit *= 2) {
      for (int i = 0; i < dim; ++i) {
        if (i & bit) continue;
        const float a = row[i], b = row[i | bit];
        row[i] = a + b;
        row[i | bit] = a - b;
      }
    }
    for (int i = 0; i < dim; ++i) row[i] *= scale;
  }
  return rows;
}

template <class T>
DeviceArray<T> to_device(MemoryCounter& counter, const std::vector<T>& host) {
  DeviceArray<T> device(counter, MemoryKind::kPayload, std::max<size_t>(host.size(), 1), nullptr);
  if (!host.empty()) device.upload(host.data(), host.size(), nullptr);
  check(cudaStreamSynchronize(nullptr), "upload");
  return device;
}
template <class T>
std::vector<T> to_host(const DeviceArray<T>& device) {
  std::vector<T> host(device.size());
  device.download(host.data(), host.size(), nullptr);
  check(cudaStreamSynchronize(nullptr), "download");
  return host;
}

/// Rows of one KV head as the oracle sees them.
struct OracleSpan {
  std::vector<float> k, v;         // [rows, D]
  std::vector<float> log_weights;  // [rows]
};

/// out [D] and the logarithm of the denominator for one query.
inline double oracle(std::vector<double>& out, const float* q, int dim, double scale,
                     const std::vector<const OracleSpan*>& spans) {
  double top = -INFINITY, sum = 0;
  const auto score = [&](const OracleSpan& s, size_t row) {
    double x = 0;
    for (int d = 0; d < dim; ++d) x += static_cast<double>(q[d]) * s.k[row * dim + d];
    return x * scale + s.log_weights[row];
  };
  for (const OracleSpan* s : spans) {
    for (size_t t = 0; t < s->log_weights.size(); ++t) top = std::max(top, score(*s, t));
  }
  out.assign(dim, 0);
  for (const OracleSpan* s : spans) {
    for (size_t t = 0; t < s->log_weights.size(); ++t) {
      const double p = std::exp(score(*s, t) - top);
      sum += p;
      for (int d = 0; d < dim; ++d) out[d] += p * s->v[t * dim + d];
    }
  }
  for (double& x : out) x = sum > 0 ? x / sum : 0;
  return top + std::log(sum);
}

/// |a - b| / |b| over all numbers; 0 for equal, 1 where either is not finite.
inline double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return 1;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace pith::cuda
