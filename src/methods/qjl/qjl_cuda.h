#pragma once
// QJL keys on the GPU (Zandieh et al. 2024): sign bits of a Johnson-Lindenstrauss sketch and the
// norm, outlier channels with a sketch of their own; values in 2 bits, per token, groups of 32.
// The score of a row is c |k| / m <S q, sign(S k)> for the inliers plus the same for the outliers.
// Queries are sketched whole: where the key's vector is zero, the query's numbers add noise of mean
// zero only, and no group of rows needs a query sketch of its own.

#include "attend/cuda/code_rows.h"
#include "attend/cuda/decode.h"

namespace pith::cuda {

inline constexpr int kQjlOutliers = 8;         ///< channels a group of 32 rows
inline constexpr int kQjlOutlierSketch = 128;  // bits

/// The projection of a layer, on the device. Rows 0 .. m - 1 are the inliers' sketch, the other
/// 128 the outliers'.
struct QjlProjection {
  const float* rows = nullptr;  // [m + 128, D]
  int m = 0;                    ///< 256 or 512 bits
  int head_dim = 0;             // D: 64 or 128
  float unbias = 0;             ///< c: what makes the estimator unbiased for these rows

  /// Throws kInvalidArgument for sizes that the kernels do not know.
  void check() const;
};

/// Bytes of one block of 32 rows.
GroupedBytes qjl_bytes(int m, int head_dim);

/// Codes keys into sign bits and norms; values go through code_grouped_values(kKivi2, ...).
void code_qjl_keys(const QjlProjection& projection, const CodeRowsCall& call, cudaStream_t stream);

/// Decode attention over dense spans and spans of QJL keys with 2-bit values. `call.q_sketch` is
/// written first: [B, H, m + 128].
void decode_qjl(const QjlProjection& projection, const DecodeCall& call, float* q_sketch,
                const DecodeScratch& scratch, cudaStream_t stream);

}  // namespace pith::cuda
