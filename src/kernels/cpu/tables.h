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
  void fill_sparse(Kernels& table);      \
  void fill_level_rows(Kernels& table);  \
  }

#if defined(__x86_64__)
PITH_DECLARE_FILLS(N_AVX2)
PITH_DECLARE_FILLS(N_AVX3)
namespace N_AVX3_DL {  // NOLINT(readability-identifier-naming): as Highway names it
void fill_code_rows(Kernels& table);
}
#endif

/// rms_norm of a row whose squares overflow f32 (numbers beyond 10^19): the sum is formed in
/// double, where eps does not count. Infinity in x gives NaN, which the forward pass refuses.
void rms_norm_huge(float* out, const float* x, const float* weight, size_t n);

/// gelu(x) = x sigmoid(2 (kGeluLinear x + kGeluCubic x^3)): sqrt(2 / pi), and 0.044715 times it.
inline constexpr float kGeluLinear = 0.7978845608f, kGeluCubic = 0.0356774081f;

/// The scalar twins of the sparse rows' primitives, in a file of their own.
namespace sparse_scalar {
size_t add_find_largest(float* acc, const float* x, float s, size_t n);
void sum_atoms(float* out, const SparseRows& rows, const AtomRows& atoms, size_t count);
void sparse_dots(float* out, size_t ld, const float* dots, size_t atoms, size_t queries,
                 const SparseRows& rows, size_t count, float scale);
void add_coefficients(float* sums, size_t atoms, const float* p, size_t ld, size_t queries,
                      const SparseRows& rows, size_t count);
}  // namespace sparse_scalar

/// The twins of level_rows.cc, too.
namespace levels_scalar {
void dot_levels(float* out, size_t ld, const float* q, size_t queries, const LevelRows& rows,
                size_t count, float scale);
void add_levels(float* acc, const float* p, size_t ld, size_t queries, const LevelRows& rows,
                size_t count);
void unpack_levels(float* out, const LevelRows& rows, const float* scale, const float* low,
                   size_t count);
}  // namespace levels_scalar

/// Plain C++, the oracle of the others.
Kernels scalar_kernels();

}  // namespace pith
