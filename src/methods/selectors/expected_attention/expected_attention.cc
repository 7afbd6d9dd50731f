// expected_attention: keep the rows that future queries are expected to attend to (Devoto et al.,
// "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries", 2025,
// section 3). Queries before RoPE are taken as Gaussian with the mean mu and covariance S of those
// seen so far; turned by the RoPE averaged over the next `future` positions they give a key k the
// expected score k.mu / sqrt(D) + k S k / (2 D). A row's score is the softmax of that over the
// body, averaged over the group's query heads, times (plus epsilon) the norm of its value.
//
// Cost: D^2 multiply-adds per query head and token for S, and per query head and body row at each
// selection; state of D^2 + D floats per query head.

#include <algorithm>
#include <cmath>

#include "methods/methods.h"
#include "methods/selectors/expected_attention/expected_attention.h"
#include "methods/selectors/scores/scores.h"

namespace pith {
namespace {

constexpr size_t kTile = 64;

class ExpectedAttention final : public Scorer {
 public:
  ExpectedAttention(const Context& c, const SelectorSite& s, const ExpectedOptions& options)
      : Scorer(c, s),
        options_(options),
        mean_(c.memory, MemoryKind::kMetadata),
        scatter_(c.memory, MemoryKind::kMetadata) {
    const size_t heads = s.heads * s.group, dim = s.head_dim;
    mean_.resize(heads * dim);
    std::ranges::fill(mean_, 0.0f);
    scatter_.resize(options.covariance ? heads * dim * dim : 0);
    std::ranges::fill(scatter_, 0.0f);
  }

  void observe(std::span<HeadBody> bodies, const QueryBlock& queries) override;
  void archive(Archive& a, const ChooserPlace& place) override {
    a.number(counted_, place.tokens, "more queries than tokens");
    a.number(next_, static_cast<int64_t>(place.tokens), "a query past the tokens");
    if (a.loads()) rope_ = options_.rope && next_ > 0 ? place.rope : nullptr;
    a.floats(mean_, mean_.size());
    a.floats(scatter_, scatter_.size());
  }
  size_t state_bytes() const override { return (mean_.size() + scatter_.size()) * sizeof(float); }
  size_t allocated_state_bytes() const override {
    return mean_.capacity_bytes() + scatter_.capacity_bytes();
  }
  std::unique_ptr<Chooser> clone() const override {
    return std::make_unique<ExpectedAttention>(*this);
  }

 private:
  /// The RoPE averaged over the coming positions: pair i is turned by cos[i], sin[i].
  struct Turn {
    std::vector<double> cos, sin;  // [D/2], empty without RoPE
    void apply(double* x, size_t stride) const {
      for (size_t i = 0; i < cos.size(); ++i) {
        double &a = x[i * stride], &b = x[(i + cos.size()) * stride];
        const double turned = a * cos[i] - b * sin[i];
        b = b * cos[i] + a * sin[i];
        a = turned;
      }
    }
  };
  Turn average_turn() const;
  void add_queries(size_t index, size_t head, const QueryBlock& block, size_t first);
  void score(std::span<HeadBody> bodies, Scores& scores) const override;
  void add_head(std::vector<double>& scores, const RowStore& store, size_t index,
                const Turn& turn) const;

  ExpectedOptions options_;
  Array<float> mean_;     // [heads * group, D] of queries before RoPE
  Array<float> scatter_;  // [heads * group, D, D] sum of (q - mean)(q - mean)'
  size_t counted_ = 0;    ///< queries in them
  int64_t next_ = 0;      ///< position after the last query
  const Rope* rope_ = nullptr;
};

void ExpectedAttention::observe(std::span<HeadBody> bodies, const QueryBlock& block) {
  rope_ = options_.rope ? block.rope : nullptr;
  next_ = block.first_position + static_cast<int64_t>(block.tokens);
  // Queries at the sink's positions are unlike all others.
  const int64_t skip = std::clamp<int64_t>(int64_t{site().sink} - block.first_position, 0,
                                           static_cast<int64_t>(block.tokens));
  const auto first = static_cast<size_t>(skip);
  if (first == block.tokens) return;
  context().pool.parallel_for(bodies.size() * site().group, [&](size_t i, int) {
    add_queries(i, bodies[i / site().group].head() * site().group + i % site().group, block, first);
  });
  counted_ += block.tokens - first;
}

/// Merges the mean and scatter of one block with those so far (Chan et al. 1983): no cancellation,
/// whatever the queries' bias.
void ExpectedAttention::add_queries(size_t index, size_t head, const QueryBlock& block,
                                    size_t first) {
  const size_t dim = site().head_dim, n = block.tokens - first;
  std::vector<float> x(n * dim), across(n * dim), cos(dim / 2), sin(dim / 2);  // [n, D], [D, n]
  std::vector<double> mean(dim);
  for (size_t t = 0; t < n; ++t) {
    float* row = x.data() + t * dim;
    std::copy_n(block.q + ((first + t) * block.query_heads + head) * dim, dim, row);
    if (rope_) {
      rope_->angles(cos.data(), sin.data(),
                    -(block.first_position + static_cast<int64_t>(first + t)));
      context().kernels.rotate(row, cos.data(), sin.data(), dim);
    }
    for (size_t c = 0; c < dim; ++c) mean[c] += row[c] / static_cast<double>(n);
  }
  float* total_mean = mean_.data() + index * dim;
  const auto before = static_cast<double>(counted_), added = static_cast<double>(n);
  std::vector<double> shift(dim);
  for (size_t c = 0; c < dim; ++c) {
    shift[c] = mean[c] - total_mean[c];
    total_mean[c] += static_cast<float>(shift[c] * added / (before + added));
  }
  if (!options_.covariance) return;
  for (size_t t = 0; t < n; ++t)
    for (size_t c = 0; c < dim; ++c) {
      x[t * dim + c] -= static_cast<float>(mean[c]);
      across[c * n + t] = x[t * dim + c];
    }
  float* scatter = scatter_.data() + index * dim * dim;
  context().kernels.gemm({.c = scatter,
                          .ldc = dim,
                          .a = across.data(),
                          .lda = n,
                          .b = x.data(),
                          .ldb = dim,
                          .m = dim,
                          .n = dim,
                          .k = n,
                          .accumulate = true});
  const double weight = before * added / (before + added);
  for (size_t i = 0; i < dim; ++i)
    for (size_t j = 0; j < dim; ++j)
      scatter[i * dim + j] += static_cast<float>(weight * shift[i] * shift[j]);
}

ExpectedAttention::Turn ExpectedAttention::average_turn() const {
  Turn turn;
  if (!rope_) return turn;
  for (const double radians : rope_->frequencies()) {
    const std::complex<double> mean = mean_turn(radians, next_, options_.future);
    turn.cos.push_back(mean.real());
    turn.sin.push_back(mean.imag());
  }
  return turn;
}

/// Adds one query head's softmax over the body to the scores.
void ExpectedAttention::add_head(std::vector<double>& scores, const RowStore& store, size_t index,
                                 const Turn& turn) const {
  const size_t dim = site().head_dim, rows = store.rows();
  std::vector<double> mean(dim), wide(options_.covariance ? dim * dim : 0);
  std::copy_n(mean_.data() + index * dim, dim, mean.data());
  turn.apply(mean.data(), 1);
  for (size_t i = 0; i < wide.size(); ++i)
    wide[i] = scatter_[index * dim * dim + i] / std::max(1.0, static_cast<double>(counted_));
  for (size_t i = 0; i < (wide.empty() ? 0 : dim); ++i) turn.apply(wide.data() + i * dim, 1);
  for (size_t i = 0; i < (wide.empty() ? 0 : dim); ++i) turn.apply(wide.data() + i, dim);
  const std::vector<float> covariance(wide.begin(), wide.end());  // [D, D]
  std::vector<float> keys(kTile * dim), turned(kTile * dim);      // [kTile, D]
  std::vector<double> logits(rows);
  const double scale = site().scale;
  for (size_t first = 0; first < rows; first += kTile) {
    const size_t n = std::min(kTile, rows - first);
    store.decode_keys(keys.data(), first, n);
    if (options_.covariance)
      context().kernels.gemm({.c = turned.data(),
                              .ldc = dim,
                              .a = keys.data(),
                              .lda = dim,
                              .b = covariance.data(),
                              .ldb = dim,
                              .m = n,
                              .n = dim,
                              .k = dim});
    for (size_t t = 0; t < n; ++t) {
      const float* key = keys.data() + t * dim;
      double linear = 0, square = 0;
      for (size_t c = 0; c < dim; ++c) linear += key[c] * mean[c];
      if (options_.covariance)
        for (size_t c = 0; c < dim; ++c) square += double{turned[t * dim + c]} * key[c];
      logits[first + t] = scale * linear + scale * scale / 2 * square;
    }
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double& x : logits) sum += x = std::exp(x - top);
  for (size_t r = 0; r < rows; ++r)
    scores[r] += logits[r] / sum / static_cast<double>(site().group);
}

void ExpectedAttention::score(std::span<HeadBody> bodies, Scores& scores) const {
  const Turn turn = average_turn();
  for_heads(bodies, [&](size_t h) {
    const RowStore& store = bodies[h].store();
    for (size_t j = 0; j < site().group; ++j)
      add_head(scores[h], store, h * site().group + j, turn);
    if (!options_.vnorm) return;
    const size_t dim = site().head_dim;
    std::vector<float> tile(kTile * dim);  // [kTile, D]
    for (size_t first = 0; first < store.rows(); first += kTile) {
      const size_t n = std::min(kTile, store.rows() - first);
      store.values().decode(tile.data(), first, n);
      for (size_t t = 0; t < n; ++t) {
        double square = 0;
        for (size_t c = 0; c < dim; ++c) square += double{tile[t * dim + c]} * tile[t * dim + c];
        scores[h][first + t] = (scores[h][first + t] + options_.epsilon) * std::sqrt(square);
      }
    }
  });
}

}  // namespace

// A geometric series.
std::complex<double> mean_turn(double radians, int64_t first, size_t count) {
  const auto turn = [&](double positions) { return std::polar(1.0, positions * radians); };
  const auto n = static_cast<double>(count);
  const std::complex<double> one(1, 0), step = one - turn(1);
  const std::complex<double> sum = std::abs(step) > 0 ? (one - turn(n)) / step : n * one;
  return turn(static_cast<double>(first)) * sum / n;
}

Fields ExpectedOptions::fields() {
  return ScoreOptions::fields() +
         Fields{whole("future", future, {.least = 1, .most = size_t{1} << 20},
                      "coming positions over which RoPE is averaged"),
                flag("rope", rope,
                     "rotate queries by RoPE; false: take them as they are, which no model's are"),
                flag("covariance", covariance, "use the queries' covariance, not the mean alone"),
                flag("vnorm", vnorm, "multiply by the norm of the value"),
                number("epsilon", epsilon, {0, 1}, "added to the probability before that")};
}

SelectorRow expected_attention_row() {
  SelectorRow row =
      score_row("expected_attention", "rows that future queries are expected to attend to",
                "Devoto et al. 2025 (arXiv 2510.00636), as in kvpress");
  row.takes<ExpectedOptions>();
  row.state = [](const MethodOptions& o, const SelectorSite& site) -> StateSize {
    const size_t squares = o.as<ExpectedOptions>().covariance ? site.head_dim : 0;
    return {static_cast<double>(site.group * site.head_dim * (1 + squares) * sizeof(float)), 2};
  };
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) {
    const auto options = r.options.as<ExpectedOptions>();
    ResolvedSelector selector =
        best_by<ExpectedAttention>(r, "expected_attention", options, {}, options);
    selector.needs.queries = true;
    selector.needs.rope = options.rope;
    return selector;
  };
  return row;
}

}  // namespace pith
