#include "select/halving.h"

#include <algorithm>
#include <cmath>

#include "core/allocation.h"

namespace pith {
namespace {

constexpr size_t kTileRows = 64;  // even: a tile of rows is a whole number of pairs

/// max |x[i]|, in lanes: one chain of comparisons took half of a halving's time.
float largest_entry(const float* x, size_t n) {
  constexpr size_t kLanes = 32;
  float lanes[kLanes] = {}, largest = 0;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      const float a = std::fabs(x[i + l]);
      lanes[l] = lanes[l] > a ? lanes[l] : a;
    }
  for (; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  for (float lane : lanes) largest = std::max(largest, lane);
  return largest;
}

/// Rows of the kernel matrix, a tile at a time, so that scratch stays O(S D).
class KernelTiles {
 public:
  KernelTiles(const Kernels& kernels, MemoryCounter& memory, const HalvingRule& rule,
              const HalvingRows& rows)
      : kernels_(kernels),
        rows_(rows),
        scale_(rule.scale * rule.temperature),
        values_(rule.values),
        transposed_k_(memory, MemoryKind::kScratch),
        transposed_v_(memory, MemoryKind::kScratch),
        tile_(memory, MemoryKind::kScratch),
        products_(memory, MemoryKind::kScratch) {
    if (rule.centre) centre();
    if (rule.walk == Walk::kPairs) {
      split_pairs(rows.k);
      if (values_) split_pairs(rows.v);
    }
    transpose(transposed_k_, rows.k);
    if (values_) transpose(transposed_v_, rows.v);
    float largest_key = 0;
    for (size_t i = 0; i < rows.rows; ++i) {
      const float* k = rows.k + i * rows.dim;
      largest_key = std::max(largest_key, kernels.dot(k, k, rows.dim));
    }
    shift_ = largest_key * scale_;
    float entry = 0, largest_value = 0;
    for (size_t i = 0; values_ && i < rows.rows; ++i) {
      const float* v = rows.v + i * rows.dim;
      largest_value = std::max(largest_value, kernels.dot(v, v, rows.dim));
    }
    if (values_) entry = largest_entry(rows.v, rows.rows * rows.dim);
    constant_ = values_ ? rule.value_constant * entry * entry : 1.0f;
    bound_ = largest_value + constant_;
    const size_t tile = std::min(kTileRows, rows.rows);
    tile_.resize(tile * rows.rows);
    if (values_) products_.resize(tile * rows.rows);
  }

  /// Computes K(i, j) for i in [first, first + count), j in [from, S); returns the row of i =
  /// first. Rows of the result are S numbers apart.
  const float* compute(size_t first, size_t count, size_t from) {
    compute_block(0, first, count, from, rows_.rows - from);
    return tile_.data();
  }
  /// For Walk::kPairs, whose rows are numbered here with the first of all pairs before the seconds:
  /// the kernel of pairs [first, first + count), the tile's rows [0, count) and [count, 2 count),
  /// with pairs from `first` on.
  const float* compute_pairs(size_t first, size_t count) {
    const size_t pairs = rows_.rows / 2, n = pairs - first;
    for (size_t half : {size_t{0}, size_t{1}}) {
      const size_t to = half * count, row = half * pairs + first;
      if (first == 0) {
        compute_block(to, row, count, 0, rows_.rows);
      } else {
        compute_block(to, row, count, first, n);
        compute_block(to, row, count, pairs + first, n);
      }
    }
    return tile_.data();
  }
  /// The square of the paper's radius, R^2 = max exp(|k|^2 scale) max |v|^2, in shifted units.
  float bound() const { return bound_; }

 private:
  /// tile rows [to, to + count) <- K(i, j) for rows i from `first` on, columns [from, from + n).
  void compute_block(size_t to, size_t first, size_t count, size_t from, size_t n) {
    const size_t s = rows_.rows, d = rows_.dim;
    float* const tile = tile_.data() + to * s + from;
    kernels_.gemm(
        {tile, s, rows_.k + first * d, d, transposed_k_.data() + from, s, count, n, d, false});
    float* const products = values_ ? products_.data() + to * s + from : nullptr;
    if (values_)
      kernels_.gemm({products, s, rows_.v + first * d, d, transposed_v_.data() + from, s, count, n,
                     d, false});
    for (size_t i = 0; i < count; ++i) {
      float* x = tile + i * s;
      kernels_.scale(x, scale_, n);
      kernels_.exp_sum(x, shift_, n);
      if (!values_) continue;
      const float* p = products + i * s;
      for (size_t j = 0; j < n; ++j) x[j] *= p[j] + constant_;
    }
  }
  /// Rows 0, 2, 4, ... first, then 1, 3, 5, ...: differences over pairs then run over neighbouring
  /// numbers.
  void split_pairs(float* x) {
    const size_t d = rows_.dim, pairs = rows_.rows / 2;
    transposed_k_.resize(rows_.rows * d);  // free until it is filled
    std::copy_n(x, rows_.rows * d, transposed_k_.data());
    for (size_t i = 0; i < rows_.rows; ++i)
      std::copy_n(transposed_k_.data() + i * d, d, x + (i % 2 * pairs + i / 2) * d);
  }
  void centre() {
    std::vector<float> mean(rows_.dim);
    for (size_t i = 0; i < rows_.rows; ++i)
      kernels_.axpy(mean.data(), rows_.k + i * rows_.dim, 1.0f / static_cast<float>(rows_.rows),
                    rows_.dim);
    for (size_t i = 0; i < rows_.rows; ++i)
      kernels_.axpy(rows_.k + i * rows_.dim, mean.data(), -1.0f, rows_.dim);
  }
  void transpose(Array<float>& out, const float* x) const {
    out.resize(rows_.dim * rows_.rows);
    kernels_.transpose_rows(out.data(), rows_.rows, {x, DType::kF32, rows_.dim}, rows_.rows);
  }

  const Kernels& kernels_;
  HalvingRows rows_;
  float scale_, shift_ = 0, constant_ = 0, bound_ = 0;
  bool values_;
  Array<float> transposed_k_, transposed_v_;  // [D, S]
  Array<float> tile_, products_;              // [kTileRows, S]
};

/// Kernel halving. acc[b] = sum over earlier pairs a of sign_a D(a, b).
Halved halve_pairs(const Kernels& kernels, KernelTiles& tiles, const HalvingRule& rule,
                   const HalvingRows& rows, const HalvingRandom& random) {
  const size_t pairs = rows.rows / 2;
  const float threshold =
      rule.balance * (0.5f + std::log(2.0f * static_cast<float>(rows.rows) / rule.delta));
  // The coin symmetrises: every row stays with probability 1/2.
  const bool flip = random.coin(rows.positions[0]);
  std::vector<float> acc(pairs), d(pairs);
  float widest = 0;
  Halved out;
  out.kept.resize(pairs);
  const float* tile = nullptr;
  size_t in_all = 0;  // pairs of the tile
  for (size_t b = 0; b < pairs; ++b) {
    const size_t in_tile = b % (kTileRows / 2);
    if (in_tile == 0) {
      in_all = std::min(kTileRows / 2, pairs - b);
      tile = tiles.compute_pairs(b, in_all);
    }
    const float* one = tile + in_tile * rows.rows;
    const float* two = one + in_all * rows.rows;
    for (size_t c = b; c < pairs; ++c) d[c] = (one[c] - one[pairs + c]) - (two[c] - two[pairs + c]);
    const float width = std::sqrt(std::max(d[b], 0.0f));
    widest = std::max(widest, width);
    const float c_b = threshold * width * widest;
    bool swap = acc[b] > 0;
    if (c_b > 0) {
      out.failures += std::fabs(acc[b]) > c_b;
      swap = random.walk(rows.positions[2 * b]) < 0.5f + acc[b] / (2 * c_b);
    }
    if (b == 0) swap = false;
    out.kept[b] = static_cast<uint32_t>(2 * b + (swap != flip));
    kernels.axpy(acc.data() + b, d.data() + b, swap ? -1.0f : 1.0f, pairs - b);
  }
  return out;
}

/// Moves random rows to `kept` until it has half of the run.
void fill_to_half(std::vector<bool>& kept, size_t count, const HalvingRows& rows,
                  const HalvingRandom& random) {
  std::vector<std::pair<uint32_t, uint32_t>> others;
  for (uint32_t i = 0; i < rows.rows; ++i)
    if (!kept[i]) others.emplace_back(random.order(rows.positions[i]), i);
  std::sort(others.begin(), others.end());
  for (size_t i = 0; count < rows.rows / 2; ++i, ++count) kept[others[i].second] = true;
}

/// SoftmaxBalance. y[j] = sum over earlier rows i of eta_i K(i, j).
Halved halve_rows(const Kernels& kernels, KernelTiles& tiles, const HalvingRule& rule,
                  const HalvingRows& rows, const HalvingRandom& random) {
  const size_t s = rows.rows;
  const float limit =
      rule.balance * 30 * std::log(static_cast<float>(s) / rule.delta) * tiles.bound();
  const bool flip = random.coin(rows.positions[0]);
  std::vector<float> y(s);
  std::vector<bool> plus(s);
  Halved out;
  size_t ones = 0;
  const float* tile = nullptr;
  for (size_t j = 0; j < s; ++j) {
    if (j % kTileRows == 0) tile = tiles.compute(j, std::min(kTileRows, s - j), j);
    // With no threshold the first row has nothing to go by: the run's coin decides.
    bool up = y[j] < 0 || (y[j] == 0 && flip);
    if (limit > 0) {
      out.failures += std::fabs(y[j]) > limit;
      up = random.walk(rows.positions[j]) < 0.5f - y[j] / (2 * limit);
    }
    plus[j] = up;
    ones += up;
    const float* row = tile + (j % kTileRows) * s;
    kernels.axpy(y.data() + j, row + j, up ? 1.0f : -1.0f, s - j);
  }
  bool keep_plus = 2 * ones < s || (2 * ones == s && flip);
  if (rule.side == KeptSide::kCoin && rule.walk == Walk::kRows)
    keep_plus = random.side(rows.positions[0]);
  if (!keep_plus) plus.flip();
  const size_t count = keep_plus ? ones : s - ones;
  if (rule.walk == Walk::kRowsExact) fill_to_half(plus, count, rows, random);
  for (uint32_t i = 0; i < s; ++i)
    if (plus[i]) out.kept.push_back(i);
  return out;
}

}  // namespace

Halved halve(const Kernels& kernels, MemoryCounter& memory, const HalvingRule& rule,
             const HalvingRows& rows, const HalvingRandom& random) {
  if (rows.rows == 0) return {};
  KernelTiles tiles(kernels, memory, rule, rows);
  return rule.walk == Walk::kPairs ? halve_pairs(kernels, tiles, rule, rows, random)
                                   : halve_rows(kernels, tiles, rule, rows, random);
}

size_t halving_scratch(size_t rows, size_t dim) {
  // Keys, values, both transposed; a tile of the kernel and one of products of values.
  return 4 * grown_bytes(rows * dim * sizeof(float)) +
         2 * grown_bytes(std::min(kTileRows, rows) * rows * sizeof(float));
}

SegmentHalved halve_segment(const Context& context, RowStore& store, const HalvingRule& rule,
                            const SegmentHalving& segment, const HalvingRandom& random) {
  const size_t dim = store.keys().dim();
  Array<float> k(context.memory, MemoryKind::kScratch), v(context.memory, MemoryKind::kScratch);
  k.resize(segment.count * dim);
  v.resize(segment.count * dim);
  store.read(k.data(), v.data(), segment.first, segment.count);
  std::vector<int64_t> positions(segment.count);
  for (size_t i = 0; i < segment.count; ++i) positions[i] = store.position(segment.first + i);
  const Halved halved = halve(context.kernels, context.memory, rule,
                              {k.data(), v.data(), positions.data(), segment.count, dim}, random);

  std::vector<uint32_t> stay = halved.kept;
  for (uint32_t& row : stay) row += static_cast<uint32_t>(segment.first);
  for (size_t i = 0; i < segment.behind; ++i)
    stay.push_back(static_cast<uint32_t>(segment.first + segment.count + i));
  store.keep_after(segment.first, stay);
  for (size_t i = 0; i < halved.kept.size(); ++i)
    store.set_log_weight(segment.first + i, segment.log_weight);
  return {halved.kept.size(), halved.failures};
}

}  // namespace pith
