#pragma once
// Dense 16-bit weights times the activations of up to kMostSkinny tokens on Hopper's tensor cores
// (sm_90a), for passes of many sessions: weights are read once and are asked for before the kernel
// ahead has ended. Tokens are the instruction's rows: what a token gets does not depend, bit for
// bit, on the other tokens and their number.
// Decision: docs/decisions/0180-one-pass-of-many-sessions-on-the-gpu.md.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/matvec.h"

namespace pith::cuda {

inline constexpr size_t kMostSkinny = 64;  ///< tokens
inline constexpr int kMostSkinnyParts = 4;
inline constexpr int kSkinnyPiece = 64;  ///< numbers of a row that a block multiplies at a time

/// How a product is shared out: blocks of `rows` rows of the matrix, each of a part of their
/// length. It decides about bits, so that it depends on the matrix and the card alone.
struct SkinnyForm {
  int rows = 64;  ///< 32, 64 or 128; two halves of a gated product
  int parts = 1;
};
/// `whole`: in one part.
SkinnyForm skinny_form(const DeviceMatrix& w, MatvecEnd end, bool whole);

/// y <- end(W x[t] + bias). Sums are f32.
struct SkinnyCall {
  /// kStore: f32 [parts, tokens, out], sums of parts of the inner length, to be added up in order;
  /// gated: [tokens, out / 2] of w's type.
  void* y = nullptr;
  DeviceMatrix w;
  const void* x = nullptr;      // [tokens, in] of w's type
  const float* bias = nullptr;  // [out] or null, of gated products alone
  MatvecEnd end = MatvecEnd::kStore;
  size_t tokens = 1;
  SkinnyForm form{};
};

/// Whether there is a kernel for a matrix: rows of whole blocks of 64 numbers of 16 bits, an even
/// number of 8 rows of each half.
bool skinny_takes(const DeviceMatrix& w);

/// Throws kInternal for calls that it does not take.
void skinny_product(const SkinnyCall& call, cudaStream_t stream);
/// The same, of a call that is known to be right.
void launch_skinny(const SkinnyCall& call, cudaStream_t stream);

}  // namespace pith::cuda
