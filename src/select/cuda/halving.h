#pragma once
// Halving on the GPU (see select/halving.h for what is computed): many runs of one size a launch,
// one block per run. Kernel entries are sums in a fixed order on the tensor cores, from the stored
// 16-bit rows, and random words are the CPU's: the same rows stay as on the CPU, but for steps
// where the walk's sum is a tie within the rounding of f32.
//
// Cost of S rows: S^2 D multiply-adds for the kernel (half of the CPU's: only entries below the
// diagonal are needed), S / 2 dependent steps of about 40 cycles; S D 2 bytes read S / 128 times
// from the L2 cache; no scratch in device memory.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device.h"
#include "pith/dtype.h"
#include "select/wide_room.h"

namespace pith {
struct HalvingRule;
}

namespace pith::cuda {

/// See Walk in select/halving.h.
enum class DeviceWalk : int32_t { kPairs, kRows, kRowsExact };

/// HalvingRule, as the kernels see it.
struct DeviceHalvingRule {
  float scale = 0;  ///< of <k, k'>: the softmax scale times the temperature
  float value_constant = 1, balance = 0, delta = 0.5f;
  DeviceWalk walk = DeviceWalk::kPairs;
  bool values = true, centre = false, coin_side = false;
};
DeviceHalvingRule device_rule(const HalvingRule& rule);

/// The most rows of a run: two numbers per row stay in shared memory, beside four tiles of rows.
constexpr int most_halving_rows(int dim) { return dim > 128 ? 8192 : 16384; }

/// Runs of `size` rows: run (head, group) is rows[head * rows_stride + group * size ..], numbers of
/// rows in k and v. Survivors, ascending, go to kept[head * kept_stride + group * kept_size ..].
struct HalvingCall {
  DType dtype = DType::kBF16;     ///< of k and v: kF16 or kBF16
  int dim = 0;                    ///< D: 64, 128 or 256
  const void* k = nullptr;        // row r of head h is at h * head_stride + r * row_stride
  const void* v = nullptr;        // the same
  size_t head_stride = 0;         ///< in numbers
  size_t row_stride = 0;          ///< in numbers; a multiple of 8
  const int32_t* rows = nullptr;  // [heads, rows_stride]; null: rows group * size ..
  size_t rows_stride = 0;
  const int32_t* positions = nullptr;  // [heads, positions_stride] of row numbers, or null
  size_t positions_stride = 0;
  /// Of row i itself, where there are no numbers; or null.
  const int64_t* row_positions = nullptr;  // [heads, positions_stride]
  int32_t* kept = nullptr;                 // [heads, kept_stride]
  size_t kept_stride = 0;
  int32_t* counts = nullptr;    // [heads, groups] survivors, or null
  int32_t* failures = nullptr;  // [heads, groups] steps out of the guarantee's range, or null
  int heads = 0, groups = 0, size = 0;
  int64_t first_position = 0;  ///< of row number 0, if positions is null
  uint64_t seed = 0;
  uint32_t layer = 0, first_head = 0;
  uint32_t tag = 0;

  /// Room for one run's survivors: half of it, or all where a walk over rows may keep any number.
  int kept_size(const DeviceHalvingRule& rule) const;
  /// Throws kInvalidArgument for shapes and dtypes that the kernel does not know.
  void check(const DeviceHalvingRule& rule) const;
};

/// One launch for all runs.
void halve_batch(const DeviceHalvingRule& rule, const HalvingCall& call, cudaStream_t stream);

/// Numbers that halve_wide needs room for.
size_t wide_numbers(const HalvingCall& call);
/// The same rows stay, of few runs of pairs, by all blocks of the device: panel by panel of the
/// rows one block per run walks, then blocks for 64 rows each add its part to the sums of the rows
/// behind it. Two launches for each kWidePanel rows; pays from runs of more on.
void halve_wide(const DeviceHalvingRule& rule, const HalvingCall& call, float* room,
                cudaStream_t stream);

}  // namespace pith::cuda
