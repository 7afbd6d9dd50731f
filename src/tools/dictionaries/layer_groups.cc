#include "tools/dictionaries/layer_groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/philox.h"

namespace pith {
namespace {

constexpr size_t kBins = 200;
constexpr int kIterations = 200;

using Axes = std::array<std::vector<double>, 2>;  // [2] of [dim]

std::vector<double> unit_rows(std::span<const float> x, size_t dim) {
  std::vector<double> out(x.begin(), x.end());
  for (size_t t = 0; t + dim <= out.size(); t += dim) {
    double norm = 0;
    for (size_t c = 0; c < dim; ++c) norm += out[t + c] * out[t + c];
    if (norm > 0)
      for (size_t c = 0; c < dim; ++c) out[t + c] /= std::sqrt(norm);
  }
  return out;
}

/// Covariance [dim, dim] of the rows of both, and their mean.
std::vector<double> covariance(const std::vector<double>& x, const std::vector<double>& y,
                               size_t dim, std::vector<double>& mean) {
  const double rows = static_cast<double>(x.size() + y.size()) / static_cast<double>(dim);
  mean.assign(dim, 0);
  std::vector<double> sums(dim * dim);
  for (const auto* side : {&x, &y})
    for (size_t t = 0; t < side->size(); t += dim)
      for (size_t a = 0; a < dim; ++a) {
        const double u = (*side)[t + a];
        mean[a] += u / rows;
        for (size_t b = a; b < dim; ++b) sums[a * dim + b] += u * (*side)[t + b] / rows;
      }
  for (size_t a = 0; a < dim; ++a)
    for (size_t b = a; b < dim; ++b) sums[b * dim + a] = sums[a * dim + b] -= mean[a] * mean[b];
  return sums;
}

/// The two leading eigenvectors, by power iteration; the second stays orthogonal to the first.
Axes principal_axes(const std::vector<double>& matrix, size_t dim) {
  Axes axes;
  for (size_t k = 0; k < 2; ++k) {
    std::vector<double>& v = axes[k];
    v.resize(dim);
    for (size_t c = 0; c < dim; ++c) v[c] = 1 + 0.01 * static_cast<double>((c * (k + 3)) % 17);
    std::vector<double> next(dim);
    for (int i = 0; i < kIterations; ++i) {
      for (size_t a = 0; a < dim; ++a) {
        next[a] = 0;
        for (size_t b = 0; b < dim; ++b) next[a] += matrix[a * dim + b] * v[b];
      }
      if (k == 1) {
        double along = 0;
        for (size_t c = 0; c < dim; ++c) along += next[c] * axes[0][c];
        for (size_t c = 0; c < dim; ++c) next[c] -= along * axes[0][c];
      }
      double norm = 0;
      for (double n : next) norm += n * n;
      if (norm == 0) break;
      for (size_t c = 0; c < dim; ++c) v[c] = next[c] / std::sqrt(norm);
    }
  }
  return axes;
}

std::vector<std::array<double, 2>> project(const std::vector<double>& x, size_t dim,
                                           const Axes& axes, const std::vector<double>& mean) {
  std::vector<std::array<double, 2>> out(x.size() / dim);
  for (size_t t = 0; t < out.size(); ++t)
    for (size_t k = 0; k < 2; ++k)
      for (size_t c = 0; c < dim; ++c) out[t][k] += (x[t * dim + c] - mean[c]) * axes[k][c];
  return out;
}

using BinsOfRows = std::array<std::vector<uint32_t>, 2>;

double jensen_shannon(const BinsOfRows& bins) {
  std::array<std::vector<double>, 2> share;
  for (size_t s = 0; s < 2; ++s) {
    share[s].resize(kBins * kBins);
    for (const uint32_t bin : bins[s]) share[s][bin] += 1 / static_cast<double>(bins[s].size());
  }
  double divergence = 0;
  for (size_t i = 0; i < kBins * kBins; ++i) {
    const double middle = (share[0][i] + share[1][i]) / 2;
    for (size_t s = 0; s < 2; ++s)
      if (share[s][i] > 0) divergence += share[s][i] * std::log2(share[s][i] / middle) / 2;
  }
  return divergence;
}

/// The rows of both sides, dealt out anew; whose they were decides nothing.
BinsOfRows random_split(const BinsOfRows& bins) {
  std::vector<uint32_t> all(bins[0]);
  all.insert(all.end(), bins[1].begin(), bins[1].end());
  std::sort(all.begin(), all.end());
  const Philox random(0, 0, 0);
  std::vector<std::pair<uint32_t, uint32_t>> dealt;  // order, bin
  for (const uint32_t bin : all) dealt.emplace_back(random.words(dealt.size())[0], bin);
  std::sort(dealt.begin(), dealt.end());
  BinsOfRows out;
  for (size_t i = 0; i < dealt.size(); ++i)
    out[i < bins[0].size() ? 0 : 1].push_back(dealt[i].second);
  return out;
}

}  // namespace

double layer_divergence(std::span<const float> x, std::span<const float> y, size_t dim) {
  const auto a = unit_rows(x, dim), b = unit_rows(y, dim);
  std::vector<double> mean;
  const Axes axes = principal_axes(covariance(a, b, dim, mean), dim);
  const std::array<std::vector<std::array<double, 2>>, 2> points = {project(a, dim, axes, mean),
                                                                    project(b, dim, axes, mean)};
  std::array<double, 2> low = {INFINITY, INFINITY}, high = {-INFINITY, -INFINITY};
  for (const auto& side : points)
    for (const auto& p : side)
      for (size_t k = 0; k < 2; ++k) {
        low[k] = std::min(low[k], p[k]);
        high[k] = std::max(high[k], p[k]);
      }
  std::array<std::vector<uint32_t>, 2> bins;
  for (size_t s = 0; s < 2; ++s)
    for (const auto& p : points[s]) {
      size_t bin = 0;
      for (size_t k = 0; k < 2; ++k) {
        const double width = high[k] > low[k] ? high[k] - low[k] : 1;
        const auto at = static_cast<size_t>((p[k] - low[k]) / width * kBins);
        bin = bin * kBins + std::min(at, kBins - 1);
      }
      bins[s].push_back(static_cast<uint32_t>(bin));
    }
  const double noise = jensen_shannon(random_split(bins));
  return noise < 1 ? std::max(0.0, (jensen_shannon(bins) - noise) / (1 - noise)) : 1;
}

std::vector<LayerGroup> group_layers(std::span<const std::vector<float>> rows, size_t dim,
                                     const GroupingOptions& options) {
  std::vector<LayerGroup> groups;
  double along = 0;
  for (size_t layer = 0; layer < rows.size(); ++layer) {
    if (!groups.empty()) {
      LayerGroup& group = groups.back();
      bool alike = true;
      double nearest = 0;  // to the layer before
      for (size_t l = layer; alike && l-- > group.first;) {
        const double divergence = layer_divergence(rows[l], rows[layer], dim);
        if (l + 1 == layer) nearest = divergence;
        alike = divergence <= options.pairwise && along + nearest <= options.along;
      }
      if (alike) {
        group.last = layer;
        along += nearest;
        continue;
      }
    }
    groups.push_back({layer, layer});
    along = 0;
  }
  return groups;
}

}  // namespace pith
