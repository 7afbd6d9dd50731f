// Soft-capped scores and sink logits: attention in double over the rows that a cache says it holds,
// and the attention mass that selectors live on.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "layer/test_layer.h"
#include "pith/error.h"
#include "session/test_refused.h"

namespace pith {
namespace {

using test::options_of;
using test::out_view;
using test::refused;
using test::Rows;
using test::Shape;
using test::view;

constexpr size_t kTokens = 200;

struct Variant {
  double soft_cap;
  bool sinks;
};
constexpr Variant kVariants[] = {{1.5, false}, {0, true}, {1.5, true}};

LayerCacheOptions options_of(const Shape& s, const std::string& policy, const Variant& variant) {
  LayerCacheOptions o = test::options_of(s, policy);
  o.soft_cap = variant.soft_cap;
  for (int h = 0; variant.sinks && h < s.query_heads(); ++h)
    o.sink_logits.push_back(0.75f * static_cast<float>(h) - 1);
  return o;
}

/// One query's softmax in double.
struct Softmax {
  std::vector<double> shares;  // [rows] with their weights
  std::vector<double> out;     // [D]
};

Softmax softmax_of(const LayerCacheOptions& o, const Rows& rows, size_t token, int head,
                   const HeadRows& held) {
  const auto dim = static_cast<size_t>(o.head_dim);
  const auto heads = static_cast<size_t>(o.query_heads), kv_heads = static_cast<size_t>(o.kv_heads);
  const auto h = static_cast<size_t>(head), g = h / (heads / kv_heads);
  const float* q = rows.q.data() + (token * heads + h) * dim;
  const auto row = [&](const std::vector<float>& all, int64_t at) {
    return all.data() + (static_cast<size_t>(at) * kv_heads + g) * dim;
  };
  Softmax s{{}, std::vector<double>(dim)};
  double sum = o.sink_logits.empty() ? 0 : std::exp(double{o.sink_logits[h]});
  for (size_t i = 0; i < held.positions.size(); ++i) {
    double score = 0;
    for (size_t c = 0; c < dim; ++c) score += double{q[c]} * row(rows.k, held.positions[i])[c];
    score /= std::sqrt(static_cast<double>(dim));
    if (o.soft_cap > 0) score = o.soft_cap * std::tanh(score / o.soft_cap);
    s.shares.push_back(std::exp(score + double{held.log_weights[i]}));
    sum += s.shares.back();
  }
  for (size_t i = 0; i < s.shares.size(); ++i) {
    s.shares[i] /= sum;
    for (size_t c = 0; c < dim; ++c)
      s.out[c] += s.shares[i] * double{row(rows.v, held.positions[i])[c]};
  }
  return s;
}

HeadRows first_rows(size_t count) {
  HeadRows rows;
  for (size_t i = 0; i < count; ++i) rows.positions.push_back(static_cast<int64_t>(i));
  rows.log_weights.assign(count, 0.0f);
  return rows;
}

class LayerVariants {
 public:
  LayerVariants(const std::string& policy, const Variant& variant)
      : options_(options_of(shape_, policy, variant)), cache_(compute_, options_) {}

  std::vector<float> step(size_t first, size_t tokens) {
    const size_t heads = static_cast<size_t>(options_.query_heads),
                 dim = static_cast<size_t>(options_.head_dim);
    const auto kv_heads = static_cast<size_t>(options_.kv_heads);
    std::vector<float> out(tokens * shape_.q_size());
    cache_.step(out_view(out.data(), heads, dim),
                view(rows_.q.data() + first * shape_.q_size(), heads, dim),
                view(rows_.k.data() + first * shape_.kv_size(), kv_heads, dim),
                view(rows_.v.data() + first * shape_.kv_size(), kv_heads, dim), tokens);
    return out;
  }
  std::vector<float> attend(size_t token) {
    std::vector<float> out(shape_.q_size());
    const size_t heads = static_cast<size_t>(options_.query_heads),
                 dim = static_cast<size_t>(options_.head_dim);
    cache_.attend(out_view(out.data(), heads, dim),
                  view(rows_.q.data() + token * shape_.q_size(), heads, dim), 1);
    return out;
  }
  /// Answers of one token's query heads over the rows that `held(g)` says, [H, D].
  template <class F>
  std::vector<double> expected(size_t token, const F& held) const {
    std::vector<double> out;
    for (int h = 0; h < options_.query_heads; ++h) {
      const Softmax one = softmax_of(options_, rows_, token, h, held(h / shape_.group));
      out.insert(out.end(), one.out.begin(), one.out.end());
    }
    return out;
  }

  Shape shape_;
  Rows rows_{shape_, kTokens + 1, 5};
  LayerCacheOptions options_;
  std::shared_ptr<Runtime> compute_ = std::make_shared<Runtime>(RuntimeOptions{.threads = 2});
  LayerCache cache_;
};

TEST(LayerVariants, PromptsAndAnswersAreThoseOfTheFormula) {
  for (const Variant& variant : kVariants) {
    LayerVariants layer("exact+f32", variant);
    const std::vector<float> prompt = layer.step(0, kTokens - 5);
    for (const size_t t : {0, 1, 77, 194}) {
      const std::vector<float> got(
          prompt.begin() + static_cast<ptrdiff_t>(t * layer.shape_.q_size()),
          prompt.begin() + static_cast<ptrdiff_t>((t + 1) * layer.shape_.q_size()));
      const auto want = layer.expected(t, [&](int) { return first_rows(t + 1); });
      EXPECT_LT(test::relative_error(got, want), 1e-5) << t;
    }
    for (size_t t = kTokens - 5; t < kTokens; ++t) {
      const auto got = layer.step(t, 1);
      const auto want = layer.expected(t, [&](int) { return first_rows(t + 1); });
      EXPECT_LT(test::relative_error(got, want), 1e-5) << t;
    }
  }
}

// Rows with weights, rows in codes: of codes the error is theirs, and smaller than the variant's.
TEST(LayerVariants, EveryKindOfRowIsCapped) {
  const struct {
    const char* policy;
    double bound;
  } kCases[] = {{"knorm(budget=40,interval=8)+f32,window=16", 1e-5},
                {"uniform(budget=32)+f32,window=8", 1e-5},
                {"express(heavy=0,s=32)+f32,window=8", 1e-5},
                {"h2o(budget=40,interval=8)+f32,window=16", 1e-5},
                {"exact+int8,window=8", 2e-2},
                {"exact+int4,window=8", 0.2},
                {"exact+kivi(bits=4),window=8", 0.2},
                {"exact+turboquant(bits=4),window=8", 0.25},
                {"exact+kvquant(bits=4),window=8", 0.3}};
  for (const auto& c : kCases)
    for (const Variant& variant : kVariants) {
      LayerVariants layer(c.policy, variant);
      layer.step(0, 150);
      for (size_t t = 150; t < kTokens; ++t) layer.step(t, 1);
      const auto want = layer.expected(kTokens, [&](int g) { return layer.cache_.rows(g); });
      EXPECT_LT(test::relative_error(layer.attend(kTokens), want), c.bound) << c.policy;
    }
}

TEST(LayerVariants, SelectorsSeeTheMassBehindThem) {
  for (const Variant& variant : kVariants) {
    LayerVariants layer("tova(budget=400)+f32,sink=0,window=1", variant);
    layer.step(0, kTokens - 1);
    layer.step(kTokens - 1, 1);
    std::vector<double> mass(kTokens);  // of the last query, over all query heads
    for (int h = 0; h < layer.options_.query_heads; ++h) {
      const Softmax one =
          softmax_of(layer.options_, layer.rows_, kTokens - 1, h, first_rows(kTokens));
      for (size_t i = 0; i < kTokens; ++i) mass[i] += one.shares[i];
    }
    for (int g = 0; g < layer.shape_.kv_heads; ++g) {
      const std::vector<double> scores = layer.cache_.scores(g);
      for (size_t i = 0; i + 1 < kTokens; ++i)  // the last is the window's
        EXPECT_NEAR(scores[i], mass[i], 1e-5) << i;
    }
  }
}

TEST(LayerVariants, SavedLayersGoOnUnderTheirVariantAlone) {
  LayerVariants layer("exact+int4,window=16", kVariants[2]);
  layer.step(0, 100);
  const std::vector<std::byte> saved = layer.cache_.save();
  LayerCacheOptions other = layer.options_;
  other.soft_cap = 2;
  const auto restore = [&](const LayerCacheOptions& o) {
    return LayerCache::restore(layer.compute_, o, saved);
  };
  refused(ErrorCode::kInvalidArgument, "soft cap", [&] { restore(other); });
  other = layer.options_;
  other.sink_logits[1] += 1;
  refused(ErrorCode::kInvalidArgument, "sink logits", [&] { restore(other); });
  other = layer.options_;
  other.sink_logits.clear();
  refused(ErrorCode::kInvalidArgument, "depends on", [&] { restore(other); });
  const std::vector<float> expected = layer.step(100, 1);
  layer.cache_ = restore(layer.options_);
  EXPECT_EQ(layer.step(100, 1), expected);
}

TEST(LayerVariants, RefusesWhatCannotBe) {
  const auto runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = 1});
  const Shape shape;
  const auto with = [&](const auto& change) {
    LayerCacheOptions o = options_of(shape, "exact", {1.5, true});
    change(o);
    LayerCache{runtime, o};
  };
  with([](auto&) {});
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
  refused(kInvalid, "soft cap of -1", [&] { with([](auto& o) { o.soft_cap = -1; }); });
  refused(kInvalid, "soft cap of nan", [&] { with([](auto& o) { o.soft_cap = kNan; }); });
  refused(kInvalid, "soft cap of 1e+300", [&] { with([](auto& o) { o.soft_cap = 1e300; }); });
  refused(kInvalid, "soft cap of 1e-20", [&] { with([](auto& o) { o.soft_cap = 1e-20; }); });
  refused(kInvalid, "7 sink logits for 8",
          [&] { with([](auto& o) { o.sink_logits.pop_back(); }); });
  refused(kInvalid, "sink logit of nan", [&] { with([](auto& o) { o.sink_logits[3] = kNan; }); });
  refused(ErrorCode::kUnsupported, "sink logits",
          [&] { with([](auto& o) { o.error_probe.rows = 64; }); });
}

// The layer that the options name has them, the others of the shape have none.
TEST(LayerVariants, AnyLayerHasSinksOfItsOwn) {
  LayerVariants layer("exact+f32", kVariants[1]);
  LayerCacheOptions o = layer.options_;
  o.layer = 2, o.layers = 4;
  layer.cache_ = LayerCache(layer.compute_, o);
  const auto got = layer.step(0, 1);
  const auto want = layer.expected(0, [](int) { return first_rows(1); });
  EXPECT_LT(test::relative_error(got, want), 1e-6);
}

}  // namespace
}  // namespace pith
