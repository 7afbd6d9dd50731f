// The f32 block product of attention's prefill: scores (B a transposed tile of keys) and values (B
// a tile of values). Operands lie in L2 and are used in place; a panel of B, 128 rows by four
// vectors (32 KiB with AVX-512), stays in L1 while the rows of A pass by. A register block is six
// rows by four vectors (two with AVX2): 24 independent sums for 4 + 6 loads.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include <algorithm>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kBlockRows = 6;
constexpr size_t kBlockVectors = kManyRegisters ? 4 : 2;
constexpr size_t kPanelDepth = 128;

/// C[R, V vectors] (+)= A[R, depth] B[depth, V vectors]. kPart: one vector of which only the first
/// `lanes` lanes exist.
template <size_t R, size_t V, bool kPart>
HWY_INLINE void block(const GemmF32& g, float* HWY_RESTRICT c, const float* HWY_RESTRICT a,
                      const float* HWY_RESTRICT b, size_t lanes) {
  static_assert(!kPart || V == 1);
  const F32 d;
  const auto mask = hn::FirstN(d, lanes);
  Vec sums[R][V];
  HWY_UNROLL(16)
  for (size_t i = 0; i < R; ++i) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < V; ++v) {
      if (!g.accumulate)
        sums[i][v] = hn::Zero(d);
      else if constexpr (kPart)
        sums[i][v] = hn::MaskedLoad(mask, d, c + i * g.ldc);
      else
        sums[i][v] = hn::LoadU(d, c + i * g.ldc + v * kLanes);
    }
  }
  for (size_t k = 0; k < g.k; ++k, b += g.ldb) {
    Vec row[V];
    HWY_UNROLL(16)
    for (size_t v = 0; v < V; ++v) {
      if constexpr (kPart)
        row[v] = hn::MaskedLoad(mask, d, b);
      else
        row[v] = hn::LoadU(d, b + v * kLanes);
    }
    HWY_UNROLL(16)
    for (size_t i = 0; i < R; ++i) {
      const Vec x = hn::Set(d, a[i * g.lda + k]);
      HWY_UNROLL(16)
      for (size_t v = 0; v < V; ++v) sums[i][v] = hn::MulAdd(x, row[v], sums[i][v]);
    }
  }
  HWY_UNROLL(16)
  for (size_t i = 0; i < R; ++i) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < V; ++v) {
      if constexpr (kPart)
        hn::BlendedStore(sums[i][v], mask, d, c + i * g.ldc);
      else
        hn::StoreU(sums[i][v], d, c + i * g.ldc + v * kLanes);
    }
  }
}

/// All rows of C for V vectors of columns from `column` on; g.k is at most kPanelDepth.
template <size_t V, bool kPart>
void panel(const GemmF32& g, size_t column, size_t lanes) {
  size_t i = 0;
  const float* b = g.b + column;
  for (; i + kBlockRows <= g.m; i += kBlockRows)
    block<kBlockRows, V, kPart>(g, g.c + i * g.ldc + column, g.a + i * g.lda, b, lanes);
  float* c = g.c + i * g.ldc + column;
  const float* a = g.a + i * g.lda;
  switch (g.m - i) {
    case 5: block<5, V, kPart>(g, c, a, b, lanes); break;
    case 4: block<4, V, kPart>(g, c, a, b, lanes); break;
    case 3: block<3, V, kPart>(g, c, a, b, lanes); break;
    case 2: block<2, V, kPart>(g, c, a, b, lanes); break;
    case 1: block<1, V, kPart>(g, c, a, b, lanes); break;
    default: break;
  }
}

void gemm(const GemmF32& whole) {
  size_t k = 0;
  do {  // once even for k = 0, which clears C
    GemmF32 g = whole;
    g.k = std::min(kPanelDepth, whole.k - k);
    g.a += k;
    g.b += k * g.ldb;
    g.accumulate = whole.accumulate || k != 0;
    size_t j = 0;
    for (; j + kBlockVectors * kLanes <= g.n; j += kBlockVectors * kLanes)
      panel<kBlockVectors, false>(g, j, kLanes);
    if (kBlockVectors > 2 && j + 2 * kLanes <= g.n) {
      panel<2, false>(g, j, kLanes);
      j += 2 * kLanes;
    }
    if (j + kLanes <= g.n) {
      panel<1, false>(g, j, kLanes);
      j += kLanes;
    }
    if (j < g.n) panel<1, true>(g, j, g.n - j);
    k += g.k;
  } while (k < whole.k);
}

}  // namespace

void fill_gemm(Kernels& table) { table.gemm = gemm; }

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
