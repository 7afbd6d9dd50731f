#pragma once
// Softmax sums over tiles of a KV head's rows, as a device makes them, for the error probe: each
// tile's weights are relative to its own largest score, so that tiles merge in any other unit (f64,
// on the host).

#include <memory>
#include <span>
#include <vector>

#include "probe/error_probe.h"

namespace pith {

/// One tile's rows in one query's softmax: the largest score s, and with p = e^(score - s) the sums
/// of p, p^2, p^2 |v|^2, p v [D] and p^2 v [D], in this order.
struct TileSums {
  static constexpr size_t kScalars = 4;
  static constexpr size_t numbers(size_t dim) { return kScalars + 2 * dim; }

  const float* all = nullptr;  // [numbers(D)]
  double top() const { return all[0]; }
  double p() const { return all[1]; }
  double squares() const { return all[2]; }
  double lengths() const { return all[3]; }
  const float* values() const { return all + kScalars; }                   // [D]
  const float* square_values(size_t dim) const { return values() + dim; }  // [D]
};

/// One KV head's tiles.
class HeadTiles {
 public:
  HeadTiles(size_t group, size_t dim) : dim_(dim), all_(group) {}

  /// A tile of rows of `span`, or of dense ones (ProbedHead::kDense); sums [group, numbers(D)].
  void add(const float* sums, int32_t span);
  /// The answer over all tiles: `known` and `log_sum`.
  void answer(ProbedHead& head) const;
  /// The tiles of coded spans, of so many rows; the sums must outlive them.
  std::unique_ptr<CodedSpans> coded(std::vector<size_t> rows) const;

 private:
  size_t dim_;
  std::vector<std::vector<TileSums>> all_;                 // [group] lists
  std::vector<std::vector<std::vector<TileSums>>> coded_;  // [spans, group] lists
};

}  // namespace pith
