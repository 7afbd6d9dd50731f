// Primitives over one or two f32 vectors: softmax's parts, sums, norms, activations, rotation.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include <cmath>
#include <limits>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

const char* ran() { return hwy::TargetName(HWY_TARGET); }

/// e^x within 2 ulp; 0 where the result would be below the normal numbers; e^88 past 88. NaN stays.
/// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r + r^2 p(r) with p the degree-4 polynomial
/// of least relative error of e^r (3e-9), found by reweighted least squares.
HWY_INLINE Vec exp(Vec x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  x = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.0f)), hn::Set(d, 88.0f), x);
  // Adding 1.5 * 2^23 leaves n in the low mantissa bits.
  const Vec magic = hn::Set(d, 0x1.8p23f);
  const Vec shifted = hn::MulAdd(x, hn::Set(d, 0x1.715476p+0f), magic);
  const Vec n = hn::Sub(shifted, magic);
  // ln 2 in two parts; the first has 9 trailing zero bits, so n times it is exact.
  Vec r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e4p-1f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.7f7d1cp-20f), r);
  Vec p = hn::Set(d, 0x1.6a23cep-10f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.123a2p-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5558f2p-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.55549p-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.fffffcp-2f));
  p = hn::MulAdd(p, hn::Mul(r, r), r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const Vec y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3f)), y);
}

float max(const float* x, size_t n) {
  const F32 d;
  const float none = -std::numeric_limits<float>::infinity();
  Vec a = hn::Set(d, none), b = a;
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    a = hn::Max(a, hn::LoadU(d, x + i));
    b = hn::Max(b, hn::LoadU(d, x + i + kLanes));
  }
  float best = hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

float exp_sum(float* x, float shift, size_t n) {
  const F32 d;
  const Vec s = hn::Set(d, shift);
  Vec a = hn::Zero(d), b = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec e = exp(hn::Sub(hn::LoadU(d, x + i), s));
    const Vec f = exp(hn::Sub(hn::LoadU(d, x + i + kLanes), s));
    hn::StoreU(e, d, x + i);
    hn::StoreU(f, d, x + i + kLanes);
    a = hn::Add(a, e);
    b = hn::Add(b, f);
  }
  for (; i < n; i += kLanes) {
    const size_t left = n - i < kLanes ? n - i : kLanes;
    Vec e = exp(hn::Sub(load_part(x + i, left), s));
    e = hn::IfThenElseZero(hn::FirstN(d, left), e);
    store_part(x + i, e, left);
    a = hn::Add(a, e);
  }
  return sum_lanes(hn::Add(a, b));
}

/// tanh u = (1 - e^(-2 u)) / (1 + e^(-2 u)).
void soft_cap(float* x, float cap, size_t n) {
  const F32 d;
  const Vec one = hn::Set(d, 1.0f), to = hn::Set(d, cap), inner = hn::Set(d, -2 / cap);
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t left = n - i < kLanes ? n - i : kLanes;
    const Vec e = exp(hn::Mul(load_part(x + i, left), inner));
    store_part(x + i, hn::Mul(to, hn::Div(hn::Sub(one, e), hn::Add(one, e))), left);
  }
}

void add(float* HWY_RESTRICT x, const float* HWY_RESTRICT y, size_t n) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, x + i);
  for (; i < n; ++i) x[i] += y[i];
}

void scale(float* x, float s, size_t n) {
  const F32 d;
  const Vec factor = hn::Set(d, s);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factor), d, x + i);
  for (; i < n; ++i) x[i] *= s;
}

void axpy(float* HWY_RESTRICT acc, const float* HWY_RESTRICT x, float s, size_t n) {
  const F32 d;
  const Vec factor = hn::Set(d, s);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, x + i), hn::LoadU(d, acc + i)), d, acc + i);
  for (; i < n; ++i) acc[i] += s * x[i];
}

void multiply(float* out, const float* x, const float* y, size_t n) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, out + i);
  for (; i < n; ++i) out[i] = x[i] * y[i];
}

float dot(const float* x, const float* y, size_t n) {
  const F32 d;
  Vec sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    HWY_UNROLL(4)
    for (size_t j = 0; j < 4; ++j)
      sums[j] =
          hn::MulAdd(hn::LoadU(d, x + i + j * kLanes), hn::LoadU(d, y + i + j * kLanes), sums[j]);
  }
  for (; i < n; i += kLanes) {
    const size_t left = n - i < kLanes ? n - i : kLanes;
    sums[0] = hn::MulAdd(load_part(x + i, left), load_part(y + i, left), sums[0]);
  }
  return sum_lanes(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

void rms_norm(float* out, const float* x, const float* weight, float eps, size_t n) {
  const F32 d;
  const float mean = dot(x, x, n) / static_cast<float>(n == 0 ? 1 : n);
  if (std::isinf(mean)) return rms_norm_huge(out, x, weight, n);
  const float factor = 1.0f / std::sqrt(mean + eps);
  const Vec f = hn::Set(d, factor);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = hn::Mul(hn::LoadU(d, x + i), f);
    hn::StoreU(hn::Mul(v, hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void silu_mul(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, size_t n) {
  const F32 d;
  const Vec one = hn::Set(d, 1.0f);
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t left = n - i < kLanes ? n - i : kLanes;
    const Vec g = load_part(gate + i, left);
    const Vec sigmoid = hn::Div(one, hn::Add(one, exp(hn::Neg(g))));
    store_part(gate + i, hn::Mul(hn::Mul(g, sigmoid), load_part(up + i, left)), left);
  }
}

/// (1 + tanh u) / 2 is the sigmoid of 2 u.
void gelu_mul(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, size_t n) {
  const F32 d;
  const Vec one = hn::Set(d, 1.0f), linear = hn::Set(d, -2 * kGeluLinear),
            cubic = hn::Set(d, -2 * kGeluCubic);
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t left = n - i < kLanes ? n - i : kLanes;
    const Vec g = load_part(gate + i, left);
    const Vec u = hn::Mul(g, hn::MulAdd(cubic, hn::Mul(g, g), linear));
    const Vec sigmoid = hn::Div(one, hn::Add(one, exp(u)));
    store_part(gate + i, hn::Mul(hn::Mul(g, sigmoid), load_part(up + i, left)), left);
  }
}

void rotate(float* HWY_RESTRICT x, const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin,
            size_t n) {
  const F32 d;
  const size_t half = n / 2;
  float* HWY_RESTRICT y = x + half;
  for (size_t i = 0; i < half; i += kLanes) {
    const size_t left = half - i < kLanes ? half - i : kLanes;
    const Vec a = load_part(x + i, left), b = load_part(y + i, left);
    const Vec c = load_part(cos + i, left), s = load_part(sin + i, left);
    store_part(x + i, hn::NegMulAdd(b, s, hn::Mul(a, c)), left);
    store_part(y + i, hn::MulAdd(a, s, hn::Mul(b, c)), left);
  }
}

/// The pairs of one vector, or of its first `left` lanes.
template <bool kPart>
HWY_INLINE void rotate_pairs(float* x, float* y, const float* far, const float* near, size_t half,
                             size_t left) {
  const auto get = [left](const float* p) {
    const F32 d;
    return kPart ? load_part(p, left) : hn::LoadU(d, p);
  };
  const auto put = [left](float* p, Vec v) {
    const F32 d;
    if constexpr (kPart)
      store_part(p, v, left);
    else
      hn::StoreU(v, d, p);
  };
  const Vec c0 = get(far), s0 = get(far + half), c1 = get(near), s1 = get(near + half);
  const Vec c = hn::NegMulAdd(s0, s1, hn::Mul(c0, c1)), s = hn::MulAdd(s0, c1, hn::Mul(c0, s1));
  const Vec a = get(x), b = get(y);
  put(x, hn::NegMulAdd(b, s, hn::Mul(a, c)));
  put(y, hn::MulAdd(a, s, hn::Mul(b, c)));
}

void rotate_by_two(float* x, const float* far, const float* near, size_t n) {
  const size_t half = n / 2;
  size_t i = 0;
  for (; i + kLanes <= half; i += kLanes)
    rotate_pairs<false>(x + i, x + half + i, far + i, near + i, half, kLanes);
  if (i < half) rotate_pairs<true>(x + i, x + half + i, far + i, near + i, half, half - i);
}

}  // namespace

void fill_elementwise(Kernels& table) {
  table.ran = ran;
  table.max = max;
  table.exp_sum = exp_sum;
  table.soft_cap = soft_cap;
  table.add = add;
  table.scale = scale;
  table.axpy = axpy;
  table.multiply = multiply;
  table.dot = dot;
  table.rms_norm = rms_norm;
  table.silu_mul = silu_mul;
  table.gelu_mul = gelu_mul;
  table.rotate = rotate;
  table.rotate_by_two = rotate_by_two;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
