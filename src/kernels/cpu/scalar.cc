// Plain C++ twins of every primitive: the oracle of the SIMD ones and the fallback of any CPU.
// Simple loops and f32 sums, so that they can be checked by reading.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/dtype.h"
#include "kernels/cpu/tables.h"

namespace pith {
namespace {

const char* ran() { return "scalar"; }

float load(const void* x, DType dtype, size_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(x)[i];
  const uint16_t bits = static_cast<const uint16_t*>(x)[i];
  return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void to_f32(float* out, const void* in, DType dtype, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = load(in, dtype, i);
}

void from_f32(void* out, const float* in, DType dtype, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (dtype == DType::kF32) static_cast<float*>(out)[i] = in[i];
    if (dtype == DType::kF16) static_cast<uint16_t*>(out)[i] = f32_to_f16(in[i]);
    if (dtype == DType::kBF16) static_cast<uint16_t*>(out)[i] = f32_to_bf16(in[i]);
  }
}

float dot_stored(const float* q, const void* rows, DType dtype, size_t row, size_t dim) {
  float sum = 0;
  for (size_t c = 0; c < dim; ++c) sum += q[c] * load(rows, dtype, row * dim + c);
  return sum;
}

void dot_rows(float* out, size_t ld, const float* q, size_t queries, const DenseRows& rows,
              size_t count, float scale) {
  for (size_t m = 0; m < queries; ++m)
    for (size_t t = 0; t < count; ++t)
      out[m * ld + t] = scale * dot_stored(q + m * rows.dim, rows.rows, rows.dtype, t, rows.dim);
}

void add_rows(float* acc, const float* p, size_t ld, size_t queries, const DenseRows& rows,
              size_t count) {
  for (size_t m = 0; m < queries; ++m)
    for (size_t t = 0; t < count; ++t)
      for (size_t c = 0; c < rows.dim; ++c)
        acc[m * rows.dim + c] += p[m * ld + t] * load(rows.rows, rows.dtype, t * rows.dim + c);
}

float max(const float* x, size_t n) {
  float best = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

float exp_sum(float* x, float shift, size_t n) {
  float sum = 0;
  for (size_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - shift);
  return sum;
}

void soft_cap(float* x, float cap, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

void add(float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] += y[i];
}

void scale(float* x, float s, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] *= s;
}

void axpy(float* acc, const float* x, float s, size_t n) {
  for (size_t i = 0; i < n; ++i) acc[i] += s * x[i];
}

void multiply(float* out, const float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * y[i];
}

float dot(const float* x, const float* y, size_t n) {
  float sum = 0;
  for (size_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

void gemm(const GemmF32& g) {
  for (size_t i = 0; i < g.m; ++i) {
    float* c = g.c + i * g.ldc;
    if (!g.accumulate) std::memset(c, 0, g.n * sizeof(float));
    for (size_t k = 0; k < g.k; ++k)
      for (size_t j = 0; j < g.n; ++j) c[j] += g.a[i * g.lda + k] * g.b[k * g.ldb + j];
  }
}

void transpose_rows(float* out, size_t ld, const DenseRows& rows, size_t count) {
  for (size_t t = 0; t < count; ++t)
    for (size_t c = 0; c < rows.dim; ++c)
      out[c * ld + t] = load(rows.rows, rows.dtype, t * rows.dim + c);
}

void matvec(float* out, size_t ldo, const float* x, size_t batch, const void* w, DType dtype,
            size_t inner, size_t first, size_t last) {
  for (size_t b = 0; b < batch; ++b)
    for (size_t o = first; o < last; ++o)
      out[b * ldo + o] = dot_stored(x + b * inner, w, dtype, o, inner);
}

void rms_norm(float* out, const float* x, const float* weight, float eps, size_t n) {
  const float mean = n == 0 ? 0 : dot(x, x, n) / static_cast<float>(n);
  if (std::isinf(mean)) return rms_norm_huge(out, x, weight, n);
  const float factor = 1 / std::sqrt(mean + eps);
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void silu_mul(float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
}

void gelu_mul(float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float g = gate[i];
    gate[i] = g / (1 + std::exp(-2 * g * (kGeluLinear + kGeluCubic * g * g))) * up[i];
  }
}

void rotate(float* x, const float* cos, const float* sin, size_t n) {
  for (size_t i = 0; i < n / 2; ++i) {
    const float a = x[i], b = x[i + n / 2];
    x[i] = a * cos[i] - b * sin[i];
    x[i + n / 2] = b * cos[i] + a * sin[i];
  }
}

void rotate_by_two(float* x, const float* far, const float* near, size_t n) {
  const size_t half = n / 2;
  for (size_t i = 0; i < half; ++i) {
    const float cos = far[i] * near[i] - far[half + i] * near[half + i];
    const float sin = far[i] * near[half + i] + far[half + i] * near[i];
    const float a = x[i], b = x[i + half];
    x[i] = a * cos - b * sin;
    x[i + half] = b * cos + a * sin;
  }
}

/// Calls f(channel, code) for every channel of row t.
template <class F>
void each_code(const CodeRows& rows, size_t t, F f) {
  const size_t bits = static_cast<size_t>(rows.bits);
  const uint8_t* row = rows.codes + t * rows.dim * bits / 8;
  for (size_t first = 0; first < rows.dim; first += 32) {
    const size_t bytes = std::min<size_t>(32, rows.dim - first) * bits / 8;
    for (size_t i = 0; i < bytes; ++i)
      for (size_t slot = 0; slot < 8 / bits; ++slot)
        f(first + slot * bytes + i, row[i] >> (slot * bits) & ((1u << bits) - 1));
    row += bytes;
  }
}

/// Calls f(channel, number) for every channel of row t of codes in token form.
template <class F>
void each_number(const CodeRows& rows, const CodeSides& sides, size_t t, F f) {
  const size_t groups = (rows.dim + 31) / 32;
  each_code(rows, t, [&](size_t c, uint32_t code) {
    if (!sides.numbers) return f(c, static_cast<float>(code));
    const uint16_t* side = sides.numbers + (t * groups + c / 32) * (sides.minima ? 2 : 1);
    const float scale = f16_to_f32(side[0]);
    const float low =
        sides.minima ? f16_to_f32(side[1]) : -scale * static_cast<float>(1 << (rows.bits - 1));
    f(c, std::fma(scale, static_cast<float>(code), low));
  });
}

void unpack_tokens(float* out, const CodeRows& rows, const CodeSides& sides, size_t count) {
  for (size_t t = 0; t < count; ++t)
    each_number(rows, sides, t, [&](size_t c, float x) { out[t * rows.dim + c] = x; });
}

void unpack_channels(float* out, const CodeRows& rows, const float* scale, const float* low,
                     size_t count) {
  for (size_t t = 0; t < count; ++t)
    each_code(rows, t, [&](size_t c, uint32_t code) {
      out[t * rows.dim + c] = std::fma(scale[c], static_cast<float>(code), low[c]);
    });
}

void dot_codes(float* out, size_t ld, const float* q, size_t queries, const CodeRows& rows,
               const CodeSides& sides, size_t count, float scale) {
  for (size_t t = 0; t < count; ++t)
    for (size_t m = 0; m < queries; ++m) {
      float sum = 0;
      each_number(rows, sides, t, [&](size_t c, float x) { sum += q[m * rows.dim + c] * x; });
      out[m * ld + t] = sum * scale;
    }
}

void add_codes(float* acc, const float* p, size_t ld, size_t queries, const CodeRows& rows,
               const CodeSides& sides, size_t count) {
  for (size_t t = 0; t < count; ++t)
    each_number(rows, sides, t, [&](size_t c, float x) {
      for (size_t m = 0; m < queries; ++m) acc[m * rows.dim + c] += p[m * ld + t] * x;
    });
}

void sum_set_bits(float* out, size_t ld, const float* sketch, size_t queries, const uint8_t* rows,
                  size_t stride, size_t bits, size_t count) {
  for (size_t t = 0; t < count; ++t)
    for (size_t m = 0; m < queries; ++m) {
      // Partial sums as the tables of the other instruction sets have them: four bits, 512 bits.
      float all = 0, sum = 0;
      for (size_t i = 0; i < bits; i += 4) {
        float four = 0;
        for (size_t b = i; b < i + 4; ++b)
          if (rows[t * stride + b / 8] >> (b % 8) & 1) four += sketch[m * bits + b];
        sum += four;
        if (i % 512 != 508) continue;
        all += sum;
        sum = 0;
      }
      out[m * ld + t] = all + sum;
    }
}

void hadamard(float* x, size_t n) {
  for (size_t half = 1; half < n; half *= 2)
    for (size_t i = 0; i < n; i += 2 * half)
      for (size_t j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
  const float norm = 1 / std::sqrt(static_cast<float>(n));
  for (size_t i = 0; i < n; ++i) x[i] *= norm;
}

}  // namespace

void rms_norm_huge(float* out, const float* x, const float* weight, size_t n) {
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(n));
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] * factor * weight[i]);
}

Kernels scalar_kernels() {
  return {.isa = "scalar",
          .ran = ran,
          .to_f32 = to_f32,
          .from_f32 = from_f32,
          .dot_rows = dot_rows,
          .add_rows = add_rows,
          .unpack_tokens = unpack_tokens,
          .unpack_channels = unpack_channels,
          .dot_codes = dot_codes,
          .add_codes = add_codes,
          .sum_set_bits = sum_set_bits,
          .dot_levels = levels_scalar::dot_levels,
          .add_levels = levels_scalar::add_levels,
          .unpack_levels = levels_scalar::unpack_levels,
          .hadamard = hadamard,
          .add_find_largest = sparse_scalar::add_find_largest,
          .sum_atoms = sparse_scalar::sum_atoms,
          .sparse_dots = sparse_scalar::sparse_dots,
          .add_coefficients = sparse_scalar::add_coefficients,
          .max = max,
          .exp_sum = exp_sum,
          .soft_cap = soft_cap,
          .add = add,
          .scale = scale,
          .axpy = axpy,
          .multiply = multiply,
          .dot = dot,
          .gemm = gemm,
          .transpose_rows = transpose_rows,
          .matvec = matvec,
          .rms_norm = rms_norm,
          .silu_mul = silu_mul,
          .gelu_mul = gelu_mul,
          .rotate = rotate,
          .rotate_by_two = rotate_by_two};
}

}  // namespace pith
