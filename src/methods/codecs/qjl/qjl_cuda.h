#pragma once
// QJL keys on the GPU (Zandieh et al. 2024): sign bits of a Johnson-Lindenstrauss sketch and the
// norm, outlying channels with a sketch of their own; values in 2 bits, per token, groups of 32.
//
// The estimator is the CPU's: queries are masked, the inliers' sketch knows nothing of the outlying
// channels and the outliers' of them alone. A sketch of the query for every list of channels would
// cost more than the rows; so what masking changes is worked out when a row is coded. With t the
// number that S^T sign(S k) has at a channel, a row keeps for each outlying channel
//   u = |k_out| c / m_out t_out - |k_in| c / m t_in   (f16)
// in place of the outliers' sign bits, and a score is c |k_in| / m <S q, sign(S k_in)> + <u, q>.
// At m_out = D = 128 and 8 channels u takes the bytes that the bits took.
//
// A block of 32 rows, keys: codes are m words of bits (grouped_layout.h, keys of 1 bit and
// dimension m) and 512 bytes of u, [lane][4 pairs of channels 2c, 2c + 1] of rows r + 8 i; the side
// is 32 f16 norms times c / m, [r][i], the 8 channels as bytes, and 8 bytes that are 0. Rows that
// are selected again move from block to block and take their channels with them: then the side is
// the norms and 256 bytes of channels, [lane][4 pairs] as in u.

#include <memory>
#include <span>

#include "attend/cuda/code_rows.h"
#include "attend/cuda/decode.h"
#include "attend/cuda/mass.h"

namespace pith::cuda {

inline constexpr int kQjlOutliers = 8;  ///< channels a group of 32 rows has room for
inline constexpr int kQjlApartBytes = 32 * kQjlOutliers * 2;
inline constexpr int kQjlNormBytes = 64;
inline constexpr int kQjlSideBytes = kQjlNormBytes + 16;  ///< one list for 32 rows
inline constexpr int kQjlListsSideBytes = kQjlNormBytes + 32 * kQjlOutliers;  ///< one for each

/// The projection of a layer, on the device. Rows 0 .. m - 1 are the inliers' sketch, the others
/// the outliers'.
struct QjlProjection {
  const float* rows = nullptr;      // [m + m_out, D]
  const void* half_rows = nullptr;  // the same as f16
  int m = 0;                        ///< bits: 2 or 4 D
  int m_out = 128;                  ///< bits of the outliers' sketch, a multiple of 16, at most 128
  int outliers = kQjlOutliers;      ///< channels apart, up to 8; 0: m_out is 0
  int head_dim = 0;                 // D: 64 or 128
  float unbias = 0;                 ///< c: what makes the estimator unbiased for these rows
  bool row_lists = false;           ///< each row names its channels; else 32 rows share a list

  /// Throws kInvalidArgument for sizes that the kernels do not know.
  void check() const;
};

/// Bytes of one block of 32 rows.
GroupedBytes qjl_bytes(int m, int head_dim, bool row_lists = false);

/// Codes keys; values go through code_grouped(kKivi2, ...).
void code_qjl_keys(const QjlProjection& projection, const CodeBatch& batch, const CodeJob& job,
                   cudaStream_t stream);
/// Coded keys as dense rows: the linear estimate, inliers and outliers each in their channels.
void unpack_qjl_keys(const QjlProjection& projection, const UnpackRowsCall& call,
                     cudaStream_t stream);

/// Keys that name their channels, as they are, to other places (see MoveCodesCall); no values.
void move_qjl_keys(const QjlProjection& projection, const MoveCodesCall& call, cudaStream_t stream);
/// The mass of a token over dense keys and such ones (see MassTarget).
void add_qjl_mass(const QjlProjection& projection, const TokenMass& call, const MassTarget* target,
                  cudaStream_t stream);

/// Decode attention over dense spans and spans of QJL keys with 2-bit values.
void decode_qjl(const QjlProjection& projection, const DecodeCall& call,
                const DecodeScratch& scratch, cudaStream_t stream);

}  // namespace pith::cuda
