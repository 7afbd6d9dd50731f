// Rows that are sums of a few atoms, and the pursuit that finds them. Atoms and sums lie in L1 or
// L2; a row costs 4 bytes per pair from memory.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sparse.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include <cmath>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

using Four = hn::Full128<float>;

// One load, fma, store and a compare for kLanes numbers; each lane remembers its own best.
size_t add_find_largest(float* HWY_RESTRICT acc, const float* HWY_RESTRICT x, float s, size_t n) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const Vec factor = hn::Set(d, s);
  Vec best = hn::Set(d, -1.0f);
  auto best_at = hn::Zero(di);
  auto at = hn::Iota(di, 0);
  const auto step = hn::Set(di, static_cast<int32_t>(kLanes));
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec sum = hn::MulAdd(factor, hn::LoadU(d, x + i), hn::LoadU(d, acc + i));
    hn::StoreU(sum, d, acc + i);
    const auto larger = hn::Gt(hn::Abs(sum), best);
    best = hn::IfThenElse(larger, hn::Abs(sum), best);
    best_at = hn::IfThenElse(hn::RebindMask(di, larger), at, best_at);
    at = hn::Add(at, step);
  }
  float sizes[kLanes];
  int32_t indices[kLanes];
  hn::StoreU(best, d, sizes);
  hn::StoreU(best_at, di, indices);
  float largest = -1;
  size_t found = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const auto index = static_cast<size_t>(indices[lane]);
    if (sizes[lane] > largest || (sizes[lane] == largest && index < found)) {
      largest = sizes[lane];
      found = index;
    }
  }
  for (; i < n; ++i) {
    acc[i] = std::fma(s, x[i], acc[i]);
    if (std::abs(acc[i]) > largest) {
      largest = std::abs(acc[i]);
      found = i;
    }
  }
  return found;
}

/// out <- n coefficients, widened; room for whole vectors is there.
HWY_INLINE void widen(float* HWY_RESTRICT out, const uint16_t* HWY_RESTRICT in, size_t n) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_widened<DType::kF16>(in + i), d, out + i);
  if (i < n) hn::StoreU(load_widened_part<DType::kF16>(in + i, n - i), d, out + i);
}

// Coefficients are widened for several rows at once: those of one seldom fill a vector.
constexpr size_t kBulk = 8 * SparseRows::kMaxPairs;

/// Calls f(row, coefficients of it) for rows of `pairs` coefficients.
template <class F>
HWY_INLINE void for_coefficients(const uint16_t* from, size_t pairs, size_t count, const F& f) {
  float wide[kBulk + kLanes];
  const size_t step = kBulk / pairs;
  for (size_t t = 0; t < count; t += step) {
    const size_t n = count - t < step ? count - t : step;
    widen(wide, from + t * pairs, n * pairs);
    for (size_t i = 0; i < n; ++i) f(t + i, wide + i * pairs);
  }
}

/// V vectors of one chunk from column `column` on.
template <size_t V>
HWY_INLINE void sum_columns(float* HWY_RESTRICT out, const uint16_t* HWY_RESTRICT indices,
                            const float* HWY_RESTRICT coefficients, size_t pairs,
                            const AtomRows& atoms, size_t column) {
  const F32 d;
  Vec sums[V];
  HWY_UNROLL(8)
  for (size_t v = 0; v < V; ++v) sums[v] = hn::Zero(d);
  for (size_t i = 0; i < pairs; ++i) {
    const size_t n = indices[i];
    const bool first = n < atoms.split;
    const uint16_t* table = first ? atoms.first : atoms.second;
    const uint16_t* x = table + (first ? n : n - atoms.split) * atoms.dim + column;
    const Vec factor = hn::Set(d, coefficients[i]);
    HWY_UNROLL(8)
    for (size_t v = 0; v < V; ++v)
      sums[v] = hn::MulAdd(factor, load_widened<DType::kF16>(x + v * kLanes), sums[v]);
  }
  HWY_UNROLL(8)
  for (size_t v = 0; v < V; ++v) hn::StoreU(sums[v], d, out + column + v * kLanes);
}

void sum_atoms(float* out, const SparseRows& rows, const AtomRows& atoms, size_t count) {
  const auto sum_chunk = [&](size_t r, const float* coefficients) {
    const uint16_t* indices = rows.indices + r * rows.pairs;
    float* to = out + r * atoms.dim;
    size_t c = 0;
    for (; c + 8 * kLanes <= atoms.dim; c += 8 * kLanes)
      sum_columns<8>(to, indices, coefficients, rows.pairs, atoms, c);
    for (; c + 4 * kLanes <= atoms.dim; c += 4 * kLanes)
      sum_columns<4>(to, indices, coefficients, rows.pairs, atoms, c);
    for (; c < atoms.dim; c += kLanes)
      sum_columns<1>(to, indices, coefficients, rows.pairs, atoms, c);
  };
  for_coefficients(rows.coefficients, rows.pairs, count * rows.chunks, sum_chunk);
}

/// Four queries, or fewer (kPart), from query m on.
template <bool kPart>
HWY_INLINE hn::Vec<Four> load_queries(const float* p, size_t n) {
  const Four d;
  if constexpr (kPart) return hn::MaskedLoad(hn::FirstN(d, n), d, p);
  return hn::LoadU(d, p);
}

template <bool kPart>
HWY_INLINE void dots_of(float* out, size_t ld, const float* HWY_RESTRICT dots, size_t atoms,
                        size_t queries, const SparseRows& rows, size_t count, float scale,
                        size_t n) {
  const Four d;
  const size_t all = rows.chunks * rows.pairs;
  for_coefficients(rows.coefficients, all, count, [&](size_t t, const float* coefficients) {
    const uint16_t* indices = rows.indices + t * all;
    auto sum = hn::Zero(d);
    for (size_t j = 0; j < rows.chunks; ++j)
      for (size_t i = j * rows.pairs; i < (j + 1) * rows.pairs; ++i)
        sum = hn::MulAdd(hn::Set(d, coefficients[i]),
                         load_queries<kPart>(dots + (j * atoms + indices[i]) * queries, n), sum);
    float four[4];
    hn::StoreU(hn::Mul(sum, hn::Set(d, scale)), d, four);
    for (size_t m = 0; m < n; ++m) out[m * ld + t] = four[m];
  });
}

void sparse_dots(float* out, size_t ld, const float* dots, size_t atoms, size_t queries,
                 const SparseRows& rows, size_t count, float scale) {
  size_t m = 0;
  for (; m + 4 <= queries; m += 4)
    dots_of<false>(out + m * ld, ld, dots + m, atoms, queries, rows, count, scale, 4);
  if (m < queries)
    dots_of<true>(out + m * ld, ld, dots + m, atoms, queries, rows, count, scale, queries - m);
}

template <bool kPart>
HWY_INLINE void add_for(float* HWY_RESTRICT sums, size_t atoms, const float* HWY_RESTRICT p,
                        size_t ld, size_t queries, const SparseRows& rows, size_t count, size_t n) {
  const Four d;
  const auto mask = hn::FirstN(d, n);
  const size_t all = rows.chunks * rows.pairs;
  for_coefficients(rows.coefficients, all, count, [&](size_t t, const float* coefficients) {
    const uint16_t* indices = rows.indices + t * all;
    float four[4] = {};
    for (size_t m = 0; m < n; ++m) four[m] = p[m * ld + t];
    const auto weights = hn::LoadU(d, four);
    for (size_t j = 0; j < rows.chunks; ++j)
      for (size_t i = j * rows.pairs; i < (j + 1) * rows.pairs; ++i) {
        float* at = sums + (j * atoms + indices[i]) * queries;
        const auto sum =
            hn::MulAdd(weights, hn::Set(d, coefficients[i]), load_queries<kPart>(at, n));
        if constexpr (kPart)
          hn::BlendedStore(sum, mask, d, at);
        else
          hn::StoreU(sum, d, at);
      }
  });
}

void add_coefficients(float* sums, size_t atoms, const float* p, size_t ld, size_t queries,
                      const SparseRows& rows, size_t count) {
  size_t m = 0;
  for (; m + 4 <= queries; m += 4)
    add_for<false>(sums + m, atoms, p + m * ld, ld, queries, rows, count, 4);
  if (m < queries)
    add_for<true>(sums + m, atoms, p + m * ld, ld, queries, rows, count, queries - m);
}

}  // namespace

void fill_sparse(Kernels& table) {
  table.add_find_largest = add_find_largest;
  table.sum_atoms = sum_atoms;
  table.sparse_dots = sparse_dots;
  table.add_coefficients = add_coefficients;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
