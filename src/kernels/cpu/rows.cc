// Queries against stored rows, and weights against activations: the loops of decoding. Each is
// bound by reading the rows, so a row is read from memory once for all queries and everything else
// is arranged to stay below that: D * size_of(dtype) bytes and 2 * D * queries operations per row.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "hwy/cache_control.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

// Rows and queries of one register block of dot products; one block ends in sum_four.
constexpr size_t kDotRows = 4;
constexpr size_t kDotQueries = kManyRegisters ? 4 : 2;
// Queries and vectors of one register block of weighted sums.
constexpr size_t kAddQueries = 4;
constexpr size_t kAddVectors = kManyRegisters ? 4 : 2;
// Places of the rows that are read alternately. One run of memory keeps few requests under way; the
// processor's prefetchers follow many at once, and two cores then read half as much again.
constexpr size_t kStreams = 8;
// Numbers of longer rows make streams enough by themselves.
constexpr size_t kShortRow = 512;
template <DType K>
constexpr size_t kLine = 64 / sizeof(Stored<K>);  // numbers of a cache line

struct Dots {
  float* out;  // [queries, ld]
  size_t ld;
  const float* q;  // [queries, dim]
  size_t dim;
  float scale;
};

/// out[m, r] for Q queries and R rows at x. kAsk: the R rows after them, which their stream's next
/// turn wants, are asked for on the way; a burst of requests would hold up the loads.
template <DType K, size_t Q, size_t R, bool kAsk>
HWY_INLINE void dot_block(const Dots& a, size_t query, size_t row,
                          const Stored<K>* HWY_RESTRICT x) {
  const Stored<K>* ask = x + R * a.dim;
  const F32 d;
  const size_t dim = a.dim;
  const float* HWY_RESTRICT q = a.q + query * dim;
  Vec sums[Q][R];
  HWY_UNROLL(16)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(16)
    for (size_t r = 0; r < R; ++r) sums[m][r] = hn::Zero(d);
  }
  size_t c = 0;
  for (; c + kLanes <= dim; c += kLanes) {
    Vec rows[R];
    HWY_UNROLL(16)
    for (size_t r = 0; r < R; ++r) rows[r] = load_widened<K>(x + r * dim + c);
    if constexpr (kAsk) {
      HWY_UNROLL(16)
      for (size_t i = 0; i < R * kLanes; i += kLine<K>) hwy::Prefetch(ask + i);
      ask += R * kLanes;
    }
    HWY_UNROLL(16)
    for (size_t m = 0; m < Q; ++m) {
      const Vec v = hn::LoadU(d, q + m * dim + c);
      HWY_UNROLL(16)
      for (size_t r = 0; r < R; ++r) sums[m][r] = hn::MulAdd(v, rows[r], sums[m][r]);
    }
  }
  if (c < dim) {
    HWY_UNROLL(16)
    for (size_t r = 0; r < R; ++r) {
      const Vec tail = load_widened_part<K>(x + r * dim + c, dim - c);
      HWY_UNROLL(16)
      for (size_t m = 0; m < Q; ++m)
        sums[m][r] = hn::MulAdd(load_part(q + m * dim + c, dim - c), tail, sums[m][r]);
    }
  }
  float* out = a.out + query * a.ld + row;
  HWY_UNROLL(16)
  for (size_t m = 0; m < Q; ++m) {
    if constexpr (R == kDotRows) {
      const hn::Full128<float> four;
      const auto sum = sum_four(sums[m][0], sums[m][1], sums[m][2], sums[m][3]);
      hn::StoreU(hn::Mul(sum, hn::Set(four, a.scale)), four, out + m * a.ld);
    } else {
      HWY_UNROLL(16)
      for (size_t r = 0; r < R; ++r) out[m * a.ld + r] = sum_lanes(sums[m][r]) * a.scale;
    }
  }
}

/// R rows at x against all queries; kAsk for the first of them alone.
template <DType K, size_t R, bool kAsk>
HWY_INLINE void dot_all(const Dots& a, size_t queries, size_t row, const Stored<K>* x) {
  for_query_blocks<kDotQueries>(queries, [&]<size_t Q>(size_t m) HWY_ATTR {
    if (kAsk && m == 0) return dot_block<K, Q, R, kAsk>(a, m, row, x);
    dot_block<K, Q, R, false>(a, m, row, x);
  });
}

template <DType K>
void dot_many(const Dots& a, size_t queries, const Stored<K>* x, size_t count) {
  size_t t = 0;
  if (a.dim <= kShortRow) {
    const size_t run = count / (kStreams * kDotRows) * kDotRows;  // rows of a stream
    for (; t < run; t += kDotRows)
      for (size_t row = t; row < kStreams * run; row += run)
        dot_all<K, kDotRows, true>(a, queries, row, x + row * a.dim);
    t = kStreams * run;
  }
  for (; t + kDotRows <= count; t += kDotRows)
    dot_all<K, kDotRows, false>(a, queries, t, x + t * a.dim);
  for (; t < count; ++t) dot_all<K, 1, false>(a, queries, t, x + t * a.dim);
}

void dot_rows(float* out, size_t ld, const float* q, size_t queries, const DenseRows& rows,
              size_t count, float scale) {
  const Dots a{out, ld, q, rows.dim, scale};
  PITH_VISIT_DTYPE(rows.dtype,
                   dot_many<K>(a, queries, static_cast<const Stored<K>*>(rows.rows), count));
}

void matvec(float* out, size_t ldo, const float* x, size_t batch, const void* w, DType dtype,
            size_t inner, size_t first, size_t last) {
  if (first >= last) return;
  const Dots a{out + first, ldo, x, inner, 1.0f};
  PITH_VISIT_DTYPE(
      dtype, dot_many<K>(a, batch, static_cast<const Stored<K>*>(w) + first * inner, last - first));
}

struct Sums {
  float* acc;      // [queries, dim]
  const float* p;  // [queries, ld]
  size_t ld;
  size_t dim;
};

/// Rows first, first + step, ...: `count` of them.
struct Turn {
  size_t first, step, count;
};

/// acc[m, c ...] += sum_t p[m, t] x[t, c ...] for Q queries and V vectors of columns.
template <DType K, size_t Q, size_t V>
HWY_INLINE void add_block(const Sums& a, size_t query, size_t column,
                          const Stored<K>* HWY_RESTRICT x, const Turn& turn) {
  const F32 d;
  float* HWY_RESTRICT acc = a.acc + query * a.dim + column;
  const float* HWY_RESTRICT p = a.p + query * a.ld + turn.first;
  x += turn.first * a.dim + column;
  Vec sums[Q][V];
  HWY_UNROLL(16)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < V; ++v) sums[m][v] = hn::LoadU(d, acc + m * a.dim + v * kLanes);
  }
  for (size_t i = 0; i < turn.count; ++i, x += turn.step * a.dim, p += turn.step) {
    Vec row[V];
    HWY_UNROLL(16)
    for (size_t v = 0; v < V; ++v) row[v] = load_widened<K>(x + v * kLanes);
    // The next row of each stream belongs to the next round.
    HWY_UNROLL(16)
    for (size_t c = 0; c < V * kLanes; c += kLine<K>) hwy::Prefetch(x + a.dim + c);
    HWY_UNROLL(16)
    for (size_t m = 0; m < Q; ++m) {
      const Vec weight = hn::Set(d, p[m * a.ld]);
      HWY_UNROLL(16)
      for (size_t v = 0; v < V; ++v) sums[m][v] = hn::MulAdd(weight, row[v], sums[m][v]);
    }
  }
  HWY_UNROLL(16)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < V; ++v) hn::StoreU(sums[m][v], d, acc + m * a.dim + v * kLanes);
  }
}

template <DType K, size_t Q>
HWY_INLINE void add_columns(const Sums& a, size_t query, const Stored<K>* x, const Turn& turn) {
  size_t c = 0;
  for (; c + kAddVectors * kLanes <= a.dim; c += kAddVectors * kLanes)
    add_block<K, Q, kAddVectors>(a, query, c, x, turn);
  for (; c < a.dim; c += kLanes) add_block<K, Q, 1>(a, query, c, x, turn);
}

/// All queries and columns: what a turn reads stays in L1 meanwhile.
template <DType K>
HWY_INLINE void add_turn(const Sums& a, size_t queries, const Stored<K>* x, const Turn& turn) {
  for_query_blocks<kAddQueries>(
      queries, [&]<size_t Q>(size_t m) HWY_ATTR { add_columns<K, Q>(a, m, x, turn); });
}

template <DType K>
void add_many(const Sums& a, size_t queries, const Stored<K>* x, size_t count) {
  const size_t run = count / kStreams;  // rows of a stream
  for (size_t t = 0; t < run; ++t) add_turn<K>(a, queries, x, {t, run, kStreams});
  for (size_t t = kStreams * run; t < count; ++t) add_turn<K>(a, queries, x, {t, 1, 1});
}

void add_rows(float* acc, const float* p, size_t ld, size_t queries, const DenseRows& rows,
              size_t count) {
  const Sums a{acc, p, ld, rows.dim};
  PITH_VISIT_DTYPE(rows.dtype,
                   add_many<K>(a, queries, static_cast<const Stored<K>*>(rows.rows), count));
}

}  // namespace

void fill_rows(Kernels& table) {
  table.dot_rows = dot_rows;
  table.add_rows = add_rows;
  table.matvec = matvec;
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
