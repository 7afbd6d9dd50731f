#pragma once
// The parts from which one table per instruction set is put together: each file of this folder
// fills in its own primitives for the instruction set that its namespace is compiled for.

#include "kernels/kernels.h"

namespace pith {

#define PITH_DECLARE_FILLS(NAMESPACE)    \
  namespace NAMESPACE {                  \
  void fill_convert(Kernels& table);     \
  void fill_rows(Kernels& table);        \
  void fill_gemm(Kernels& table);        \
  void fill_elementwise(Kernels& table); \
  void fill_codes(Kernels& table);       \
  void fill_code_rows(Kernels& table);   \
  void fill_sign_rows(Kernels& table);   \
  }

#if defined(__x86_64__)
PITH_DECLARE_FILLS(N_AVX2)
PITH_DECLARE_FILLS(N_AVX3)
#endif

/// rms_norm of a row whose squares overflow f32 (numbers beyond 10^19): the sum is formed in
/// double, where eps does not count. Infinity in x gives NaN, which the forward pass refuses.
void rms_norm_huge(float* out, const float* x, const float* weight, size_t n);

/// Plain C++, the oracle of the others.
Kernels scalar_kernels();

}  // namespace pith
