#pragma once
// The CPU primitives: one table of functions per instruction set, all with the same contract.
// `scalar` is plain C++ and the oracle of the others. A table is chosen once, when a Context is
// built; PITH_ISA=scalar|avx2|avx512|avx512_vnni
// forces one.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "pith/dtype.h"

namespace pith {

/// Dense rows of one KV head: `rows` points at row 0, consecutive rows are `dim` numbers apart.
struct DenseRows {
  const void* rows = nullptr;  // [T, D]
  DType dtype = DType::kF32;
  size_t dim = 0;  // D, a multiple of 16
};

/// Row-major f32 matrix product: C[m, n] (+)= A[m, k] B[k, n]. Strides in numbers.
struct GemmF32 {
  float* c = nullptr;
  size_t ldc = 0;
  const float* a = nullptr;
  size_t lda = 0;
  const float* b = nullptr;
  size_t ldb = 0;
  size_t m = 0, n = 0, k = 0;
  bool accumulate = false;
};

/// Rows of b-bit codes, in groups of 32 consecutive channels (the last of 16, if D is not a
/// multiple of 32). A group of w channels is n = w b / 8 bytes; byte i holds channels i, n + i, 2 n
/// + i, ... from its low bits on, so that unpacking needs no shuffles.
struct CodeRows {
  const uint8_t* codes = nullptr;  // [T, D b / 8]
  int bits = 8;                    ///< b: 2, 4 or 8
  size_t dim = 0;                  // D, a multiple of 16
};

/// Scales of rows in token form: f16 scale of row t and group g at [t, g], or scale and minimum
/// side by side; without minima the minimum is -2^(b-1) scale. 2 bytes past the last are readable.
struct CodeSides {
  const uint16_t* numbers = nullptr;
  bool minima = false;
};

/// Whether dot_codes and add_codes take rows of this head_dim.
constexpr bool codes_attend(size_t dim) { return dim % 32 == 0 && dim <= 512; }

/// Rows of b-bit codes that name levels of a table: channel c of a row begins at its bit c b, the
/// lowest first. 4 bytes past the last row are readable.
struct LevelRows {
  const uint8_t* codes = nullptr;  // [T, stride], D b / 8 bytes of each
  int bits = 4;                    ///< b: 1 to 4
  size_t dim = 0;                  // D, a multiple of 16
  size_t stride = 0;               ///< bytes from row to row
  const float* levels = nullptr;   // [2^b]
};

/// Atoms of a dictionary as f16, in two tables: atom n is row n of `first` while n < split, else
/// row n - split of `second`.
struct AtomRows {
  const uint16_t* first = nullptr;  // [split, dim]
  size_t split = 0;
  const uint16_t* second = nullptr;  // [.., dim]
  size_t dim = 0;                    // a multiple of 16
};

/// Rows as sums of atoms: each of a row's `chunks` parts is `pairs` pairs of index and coefficient.
struct SparseRows {
  const uint16_t* indices = nullptr;       // [T, chunks, pairs]
  const uint16_t* coefficients = nullptr;  // [T, chunks, pairs] f16
  size_t pairs = 0, chunks = 1;            // at most 4 kMaxPairs together

  static constexpr size_t kMaxPairs = 64;
};

struct Kernels {
  const char* isa;       ///< "scalar", "avx2", "avx512" or "avx512_vnni"
  const char* (*ran)();  ///< the instruction set that the function itself was compiled for

  /// out[n] <- in[n], widened or rounded to nearest even.
  void (*to_f32)(float* out, const void* in, DType dtype, size_t n);
  void (*from_f32)(void* out, const float* in, DType dtype, size_t n);

  /// out[m * ld + t] = scale * <q[m], rows[t]> for m < queries, t < count. q is [queries, D].
  /// Reads each row once for all queries: D * size_of(dtype) bytes per row.
  void (*dot_rows)(float* out, size_t ld, const float* q, size_t queries, const DenseRows& rows,
                   size_t count, float scale);
  /// acc[m, :] += sum_t p[m * ld + t] rows[t, :]. acc is [queries, D].
  void (*add_rows)(float* acc, const float* p, size_t ld, size_t queries, const DenseRows& rows,
                   size_t count);

  /// out[t, c] = low + scale code[t, c], in token form. b / 8 bytes read a number.
  void (*unpack_tokens)(float* out, const CodeRows& rows, const CodeSides& sides, size_t count);
  /// Channel form: scale[c] and low[c] are f32, the same for all rows.
  void (*unpack_channels)(float* out, const CodeRows& rows, const float* scale, const float* low,
                          size_t count);
  /// dot_rows and add_rows straight from codes in token form, if codes_attend(D). In dot_codes
  /// sides without numbers are allowed: the codes themselves are the rows. avx512_vnni rounds q to
  /// 2^-16 of its largest number, and 64 rows' p times scale to 2^-16 of the largest.
  void (*dot_codes)(float* out, size_t ld, const float* q, size_t queries, const CodeRows& rows,
                    const CodeSides& sides, size_t count, float scale);
  void (*add_codes)(float* acc, const float* p, size_t ld, size_t queries, const CodeRows& rows,
                    const CodeSides& sides, size_t count);
  /// out[m * ld + t] = sum of sketch[m, i] over the bits i of row t that are 1, four bits first,
  /// then in their order: the same to the last bit on every instruction set. Rows are `bits` / 8
  /// bytes each, `stride` bytes apart, bits a multiple of 16; 8 bytes past the last are readable.
  void (*sum_set_bits)(float* out, size_t ld, const float* sketch, size_t queries,
                       const uint8_t* rows, size_t stride, size_t bits, size_t count);
  /// dot_rows, add_rows and unpack_channels of levels; the first two if codes_attend(D).
  void (*dot_levels)(float* out, size_t ld, const float* q, size_t queries, const LevelRows& rows,
                     size_t count, float scale);
  void (*add_levels)(float* acc, const float* p, size_t ld, size_t queries, const LevelRows& rows,
                     size_t count);
  void (*unpack_levels)(float* out, const LevelRows& rows, const float* scale, const float* low,
                        size_t count);
  /// x [n] <- H x in place, n a power of two: the orthonormal Walsh-Hadamard transform.
  void (*hadamard)(float* x, size_t n);

  /// acc[i] += s x[i]; returns the index of the largest |acc[i]|, the lowest of equal ones. n > 0.
  size_t (*add_find_largest)(float* acc, const float* x, float s, size_t n);
  /// out[t, j dim + c] = sum over the pairs of chunk j: coefficient * atom[c]. out is [T, chunks
  /// dim]; pairs * dim multiply-adds per chunk.
  void (*sum_atoms)(float* out, const SparseRows& rows, const AtomRows& atoms, size_t count);
  /// out[m * ld + t] = scale * sum over the pairs of row t: coefficient * dots[j, index, m]. dots
  /// is [chunks, atoms, queries].
  void (*sparse_dots)(float* out, size_t ld, const float* dots, size_t atoms, size_t queries,
                      const SparseRows& rows, size_t count, float scale);
  /// sums[j, index, m] += p[m * ld + t] * coefficient over the pairs of all rows; sums as dots.
  void (*add_coefficients)(float* sums, size_t atoms, const float* p, size_t ld, size_t queries,
                           const SparseRows& rows, size_t count);

  /// Largest of x[n]; -inf for n = 0.
  float (*max)(const float* x, size_t n);
  /// x[i] <- exp(x[i] - shift) in place, returns the sum. exp(-inf) is 0.
  float (*exp_sum)(float* x, float shift, size_t n);
  /// x[i] <- cap tanh(x[i] / cap) in place, within 4 ulp of cap; cap > 0.
  void (*soft_cap)(float* x, float cap, size_t n);
  /// x[i] <- x[i] + y[i]; x[i] <- x[i] * s; acc[i] += s * x[i].
  void (*add)(float* x, const float* y, size_t n);
  void (*scale)(float* x, float s, size_t n);
  void (*axpy)(float* acc, const float* x, float s, size_t n);
  /// out[i] = x[i] * y[i]; out may be x.
  void (*multiply)(float* out, const float* x, const float* y, size_t n);
  float (*dot)(const float* x, const float* y, size_t n);

  /// f32 block product for attention tiles (operands in L2): see GemmF32.
  void (*gemm)(const GemmF32& g);
  /// out[c * ld + r] = in[r * dim + c]: a tile of rows as f32, transposed, for gemm's B.
  void (*transpose_rows)(float* out, size_t ld, const DenseRows& rows, size_t count);

  /// out[o] = <x, w[o, :]> for o in [first, last); w is [O, I] row-major of `dtype`, x is f32 [I];
  /// for `batch` vectors x [batch, I], out [batch, ldo]. Memory-bound: reads w once.
  void (*matvec)(float* out, size_t ldo, const float* x, size_t batch, const void* w, DType dtype,
                 size_t inner, size_t first, size_t last);

  /// out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i].
  void (*rms_norm)(float* out, const float* x, const float* weight, float eps, size_t n);
  /// gate[i] <- silu(gate[i]) * up[i].
  void (*silu_mul)(float* gate, const float* up, size_t n);
  /// gate[i] <- gelu(gate[i]) * up[i], gelu by its tanh form.
  void (*gelu_mul)(float* gate, const float* up, size_t n);
  /// Rotates pairs (x[i], x[i + n/2]) by the angles whose cosines and sines are given, [n/2] each.
  void (*rotate)(float* x, const float* cos, const float* sin, size_t n);
  /// The same by the sum of two angles, whose cosines and sines are [2, n/2] numbers each.
  void (*rotate_by_two)(float* x, const float* far, const float* near, size_t n);
};

/// Returns the table named `isa`; "" picks the best that this CPU runs (or PITH_ISA's).
/// Throws kUnsupported naming the choices if the CPU or the build lacks it.
const Kernels& kernels_for(std::string_view isa = "");
/// The names that this CPU can run, best first; "scalar" is always last.
std::span<const std::string_view> available_isas();

}  // namespace pith
