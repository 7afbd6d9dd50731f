// Sums of a sketch over the bits that are set, as QJL scores its keys: 16 sums of every four
// neighbouring numbers lie in a table, and a nibble of a row looks its sum up. One row a lane, the
// nibbles in their order, so that every instruction set gives the same result to the last bit.
// Beside one shift, two instructions for four bits of 16 rows and a query.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sign_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "kernels/cpu/words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pith {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kBits = 512;   // of one pass; longer sketches take several
constexpr size_t kQueries = 4;  // of one pass

static_assert(kLanes == 8 || kLanes == 16, "a table is one vector, or two");

struct Tables {
  alignas(64) float sums[kQueries][kBits / 4][16];
};

/// Entry e of a table: the sum of the numbers whose bit is set in e, from the first on.
void fill_tables(Tables& tables, const float* sketch, size_t ld, size_t queries, size_t bits) {
  const F32 d;
  const I32 di;
  for (size_t half = 0; half < 16; half += kLanes) {
    Vec one[4];  // 1 in the entries whose bit is set
    for (int b = 0; b < 4; ++b) {
      const auto entry = hn::Iota(di, static_cast<int32_t>(half));
      one[b] = hn::ConvertTo(d, hn::And(hn::ShiftRightSame(entry, b), hn::Set(di, 1)));
    }
    for (size_t m = 0; m < queries; ++m)
      for (size_t i = 0; i < bits; i += 4) {
        const float* s = sketch + m * ld + i;
        Vec sum = hn::Mul(one[0], hn::Set(d, s[0]));
        sum = hn::MulAdd(one[1], hn::Set(d, s[1]), sum);
        sum = hn::MulAdd(one[2], hn::Set(d, s[2]), sum);
        sum = hn::MulAdd(one[3], hn::Set(d, s[3]), sum);
        hn::Store(sum, d, tables.sums[m][i / 4] + half);
      }
  }
}

HWY_INLINE Vec look_up(const float* table, Words nibbles) {
  const F32 d;
  if constexpr (kLanes == 16) {
    return hn::TableLookupLanes(hn::Load(d, table), hn::IndicesFromVec(d, nibbles));
  } else {
    const I32 di;
    const auto index = hn::IndicesFromVec(d, hn::And(nibbles, hn::Set(di, 7)));
    const auto upper = hn::RebindMask(d, hn::Gt(nibbles, hn::Set(di, 7)));
    return hn::IfThenElse(upper, hn::TableLookupLanes(hn::Load(d, table + 8), index),
                          hn::TableLookupLanes(hn::Load(d, table), index));
  }
}

/// out[m, row ...] (+)= the sums of two vectors of rows, Q queries.
template <size_t Q>
HWY_INLINE void sum_pair(float* out, size_t ld, const Tables& tables, const int32_t* words,
                         size_t bits, size_t n, bool add, const uint8_t* ahead) {
  const F32 d;
  const I32 di;
  const auto mask = hn::Set(di, 15);
  Vec sums[Q][2];
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) sums[m][0] = sums[m][1] = hn::Zero(d);
  for (size_t w = 0; w < bits; w += 32) {
    // A word of these rows is as long as this of the next block's.
    for (size_t i = 0; i < 8 * kLanes; i += 64) hwy::Prefetch(ahead + i);
    ahead += 8 * kLanes;
    const int32_t* from = words + w / 32 * kWordRows;
    Words v0 = hn::Load(di, from), v1 = hn::Load(di, from + kLanes);
    const size_t end = bits - w < 32 ? bits - w : 32;
    for (size_t i = 0; i < end; i += 4) {
      const Words n0 = hn::And(v0, mask), n1 = hn::And(v1, mask);
      v0 = hn::ShiftRight<4>(v0);
      v1 = hn::ShiftRight<4>(v1);
      HWY_UNROLL(4)
      for (size_t m = 0; m < Q; ++m) {
        const float* table = tables.sums[m][(w + i) / 4];
        sums[m][0] = hn::Add(sums[m][0], look_up(table, n0));
        sums[m][1] = hn::Add(sums[m][1], look_up(table, n1));
      }
    }
  }
  HWY_UNROLL(4)
  for (size_t m = 0; m < Q; ++m) {
    HWY_UNROLL(2)
    for (size_t r = 0; r < 2; ++r) {
      if (r * kLanes >= n) break;
      float* to = out + m * ld + r * kLanes;
      const size_t part = n - r * kLanes;
      if (part >= kLanes) {
        hn::StoreU(add ? hn::Add(hn::LoadU(d, to), sums[m][r]) : sums[m][r], d, to);
      } else {
        store_part(to, add ? hn::Add(load_part(to, part), sums[m][r]) : sums[m][r], part);
      }
    }
  }
}

void sum_rows(float* out, size_t ld, const Tables& tables, size_t queries, const uint8_t* rows,
              size_t stride, size_t bits, size_t count, bool add) {
  alignas(64) int32_t words[kBits / 32 * kWordRows];
  for (size_t t = 0; t < count; t += kWordRows, out += kWordRows) {
    const size_t n = count - t < kWordRows ? count - t : kWordRows;
    transpose_words(words, rows + t * stride, stride, (bits + 31) / 32, n);
    const uint8_t* ahead = rows + (t + kWordRows) * stride;
    for (size_t r = 0; r < n; r += 2 * kLanes) {
      switch (queries) {
        case 4:
          sum_pair<4>(out + r, ld, tables, words + r, bits, n - r, add, ahead + r * stride);
          break;
        case 3:
          sum_pair<3>(out + r, ld, tables, words + r, bits, n - r, add, ahead + r * stride);
          break;
        case 2:
          sum_pair<2>(out + r, ld, tables, words + r, bits, n - r, add, ahead + r * stride);
          break;
        default:
          sum_pair<1>(out + r, ld, tables, words + r, bits, n - r, add, ahead + r * stride);
          break;
      }
    }
  }
}

void sum_set_bits(float* out, size_t ld, const float* sketch, size_t queries, const uint8_t* rows,
                  size_t stride, size_t bits, size_t count) {
  Tables tables;
  for (size_t m = 0; m < queries; m += kQueries) {
    const size_t batch = queries - m < kQueries ? queries - m : kQueries;
    for (size_t first = 0; first < bits; first += kBits) {
      const size_t part = bits - first < kBits ? bits - first : kBits;
      fill_tables(tables, sketch + m * bits + first, bits, batch, part);
      sum_rows(out + m * ld, ld, tables, batch, rows + first / 8, stride, part, count, first > 0);
    }
  }
}

}  // namespace

void fill_sign_rows(Kernels& table) { table.sum_set_bits = sum_set_bits; }

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
#endif  // PITH_SIMD_TARGET
