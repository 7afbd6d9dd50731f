#include "probe/probe_tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pith {
namespace {

using QueryTiles = std::vector<std::vector<TileSums>>;  // [group] lists

class TileSpans final : public CodedSpans {
 public:
  TileSpans(std::vector<size_t> rows, std::vector<QueryTiles> tiles)
      : rows_(std::move(rows)), tiles_(std::move(tiles)) {}

  size_t spans() const override { return rows_.size(); }
  size_t rows(size_t span) const override { return rows_[span]; }
  std::vector<CodedSums> sums(size_t span, const HeadAnswers& a) const override {
    std::vector<CodedSums> sums(a.group, CodedSums(a.dim));
    for (size_t j = 0; j < a.group && span < tiles_.size(); ++j)
      for (const TileSums& tile : tiles_[span][j]) add(sums[j], tile, a, j);
    return sums;
  }

 private:
  /// |v - o|^2 = |v|^2 - 2 v.o + |o|^2.
  static void add(CodedSums& sums, const TileSums& tile, const HeadAnswers& a, size_t query) {
    const float* o = a.o + query * a.dim;
    const double factor = std::exp(tile.top() - a.log_sum[query]);
    double along = 0, size = 0;
    for (size_t c = 0; c < a.dim; ++c) {
      along += double{tile.square_values(a.dim)[c]} * o[c], size += double{o[c]} * o[c];
      sums.values[c] += factor * tile.values()[c];
    }
    sums.p += factor * tile.p();
    sums.squares += factor * factor * tile.squares();
    sums.spread += factor * factor * (tile.lengths() - 2 * along + size * tile.squares());
  }

  std::vector<size_t> rows_;       // [spans]
  std::vector<QueryTiles> tiles_;  // [spans]
};

}  // namespace

void HeadTiles::add(const float* sums, int32_t span) {
  for (size_t j = 0; j < all_.size(); ++j) {
    const TileSums tile{sums + j * TileSums::numbers(dim_)};
    all_[j].push_back(tile);
    if (span < 0) continue;
    const auto s = static_cast<size_t>(span);
    if (coded_.size() <= s) coded_.resize(s + 1, QueryTiles(all_.size()));
    coded_[s][j].push_back(tile);
  }
}

void HeadTiles::answer(ProbedHead& head) const {
  head.known.resize(all_.size() * dim_), head.log_sum.resize(all_.size());
  for (size_t j = 0; j < all_.size(); ++j) {
    double top = -std::numeric_limits<double>::infinity(), z = 0;
    for (const TileSums& tile : all_[j]) top = std::max(top, tile.top());
    std::vector<double> n(dim_);
    for (const TileSums& tile : all_[j]) {
      const double factor = std::exp(tile.top() - top);
      z += factor * tile.p();
      for (size_t c = 0; c < dim_; ++c) n[c] += factor * tile.values()[c];
    }
    for (size_t c = 0; c < dim_; ++c) head.known[j * dim_ + c] = static_cast<float>(n[c] / z);
    head.log_sum[j] = static_cast<float>(top + std::log(z));
  }
}

std::unique_ptr<CodedSpans> HeadTiles::coded(std::vector<size_t> rows) const {
  return std::make_unique<TileSpans>(std::move(rows), coded_);
}

}  // namespace pith
