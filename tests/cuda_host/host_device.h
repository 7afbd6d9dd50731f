#pragma once
// The GPU as plain loops on the host, by the linker: the files of this folder define CUDA's memory
// and streams, and the entry points of the cache's kernels with what their headers promise, so that
// the cache's host half (what is where, when it moves, what attention is told) runs and is tested
// where no GPU is. What kernels compute is tests/cuda's business.
//
// Codecs are one that loses nothing (PlainCodec in host_codec.cc): rows of f16 in blocks of 32.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attend/cuda/decode.h"
#include "attend/cuda/mass.h"
#include "compress/cuda/judged_rows.h"
#include "cuda/harness.h"

namespace pith::cuda {

/// Number `i` of a 16-bit array.
inline float number(DType dtype, const void* x, size_t i) {
  return to_float(dtype, static_cast<const uint16_t*>(x)[i]);
}
inline void put(DType dtype, void* x, size_t i, float value) {
  static_cast<uint16_t*>(x)[i] = from_float(dtype, value);
}
inline std::vector<float> floats(DType dtype, const void* x, size_t first, size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = number(dtype, x, first + i);
  return out;
}
inline double dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}
/// Row `row` of head `head`, of 16-bit numbers.
inline uint16_t* row_at(const void* x, size_t head_stride, int head, int64_t row, int dim) {
  return const_cast<uint16_t*>(static_cast<const uint16_t*>(x)) +
         static_cast<size_t>(head) * head_stride +
         static_cast<size_t>(row) * static_cast<size_t>(dim);
}
inline void copy_row(uint16_t* to, const uint16_t* from, int dim) { std::copy_n(from, dim, to); }

inline int64_t position_of(const JudgedRows& rows, int head, int row) {
  return row < rows.known
             ? rows.positions[rows.beside(static_cast<size_t>(head), rows.side_stride) +
                              static_cast<size_t>(row)]
             : rows.first_position + row - rows.known;
}

/// What the host gave the device, beside kernels, and how often it waited.
struct DeviceWork {
  size_t copies = 0, clears = 0, allocations = 0, waits = 0;

  DeviceWork operator-(const DeviceWork& o) const {
    return {copies - o.copies, clears - o.clears, allocations - o.allocations, waits - o.waits};
  }
  bool operator==(const DeviceWork&) const = default;
};
DeviceWork device_work();

/// A caller's stream that is being captured.
inline auto* const kCapturedStream = reinterpret_cast<cudaStream_t>(0x77);
/// Events that streams recorded and waited for, with how many strided copies came before.
struct StreamOrderNote {
  bool records = false;
  cudaStream_t stream = nullptr;
  size_t copies_before = 0;
};
std::vector<StreamOrderNote> stream_order();
void forget_stream_order();
void note_strided_copy();

/// Decode attention over dense spans, and over coded ones of f16 rows.
void attend_spans(const DecodeCall& call);
/// A token's mass, of dense rows and coded ones.
void add_mass(const TokenMass& call, const MassTarget& target);

}  // namespace pith::cuda
