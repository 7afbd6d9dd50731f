// A layer's cache says what it cannot do, with nothing changed.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

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
using Layer = test::LayerUnderTest;

constexpr auto kInvalid = ErrorCode::kInvalidArgument;

TEST(LayerCache, RefusesWhatCannotBe) {
  Shape shape;
  shape.context = 20;
  const Rows rows(shape, 30, 3);
  const auto runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = 1});
  const auto with = [&](const auto& change) {
    LayerCacheOptions o = options_of(shape, "exact");
    change(o);
    LayerCache{runtime, o};
  };
  const auto invalid = kInvalid;
  refused(invalid, "multiple", [&] { with([](auto& o) { o.query_heads = 7; }); });
  refused(invalid, "multiple", [&] { with([](auto& o) { o.kv_heads = 0; }); });
  refused(invalid, "head_dim 24", [&] { with([](auto& o) { o.head_dim = 24; }); });
  refused(invalid, "layer 3 of 3", [&] { with([](auto& o) { o.layer = o.layers = 3; }); });
  refused(invalid, "context", [&] { with([](auto& o) { o.context = 0; }); });
  refused(ErrorCode::kUnsupported, "RoPE", [&] {
    with([](auto& o) {
      o.policy = Policy::parse("streaming_llm(window=8,rope=cache)");
      o.rope_theta = 0;
    });
  });
  refused(invalid, "scale of -1", [&] { with([](auto& o) { o.scale = -1; }); });
  refused(ErrorCode::kUnsupported, "probe",
          [&] { with([](auto& o) { o.error_probe.rows = 64, o.sliding_window = 16; }); });
  refused(invalid, "threads", [] { Runtime({.threads = -1}); });

  Layer layer(shape, "exact");
  refused(invalid, "nothing is stored", [&] { layer.attend(rows, 0, 1); });
  refused(invalid, "no tokens", [&] { layer.cache.append(layer.k(rows, 0), layer.v(rows, 0), 0); });
  refused(invalid, "k is null", [&] { layer.cache.append({}, layer.v(rows, 0), 1); });
  layer.step(rows, 0, 15, 5);
  refused(ErrorCode::kContextFull, "15 already", [&] { layer.step(rows, 15, 21, 6); });
  EXPECT_EQ(layer.cache.tokens(), 15u);
  layer.step(rows, 15, 20, 5);
}

TEST(LayerCache, ManyStepsThatCannotBeChangeNothing) {
  const Shape shape;
  Layer first(shape, "exact"), second(shape, "exact");  // of two Computes
  LayerCache other(first.runtime, options_of(shape, "exact"));
  const Rows rows(shape, 4, 1);
  std::vector<float> out(4 * shape.q_size());
  const RowsOut to = out_view(out.data(), first.heads, first.dim);
  const auto step = [&](LayerCache* cache, size_t tokens) {
    return LayerStep{cache, to, first.q(rows, 0), first.k(rows, 0), first.v(rows, 0), tokens};
  };
  const auto refused_step = [&](ErrorCode code, const char* words, std::vector<LayerStep> steps) {
    refused(code, words, [&] { first.runtime->step(steps); });
    EXPECT_EQ(first.cache.tokens(), 0u);
    EXPECT_EQ(other.tokens(), 0u);
  };
  const auto invalid = ErrorCode::kInvalidArgument;
  refused_step(invalid, "step 1 of 2: a layer's cache: it is null",
               {step(&first.cache, 2), step(nullptr, 2)});
  refused_step(invalid, "another Runtime", {step(&first.cache, 2), step(&second.cache, 2)});
  refused_step(invalid, "two steps",
               {step(&first.cache, 2), step(&other, 1), step(&first.cache, 2)});
  refused_step(invalid, "no tokens", {step(&first.cache, 2), step(&other, 0)});
  refused_step(ErrorCode::kContextFull, "step 1 of 2",
               {step(&first.cache, 2), step(&other, shape.context + 1)});
  first.runtime->step({});
  const std::vector<LayerStep> good{step(&first.cache, 2), step(&other, 2)};
  first.runtime->step(good);
  EXPECT_EQ(other.tokens(), 2u);
}

TEST(LayerCache, RefusesNumbersThatAreNotFinite) {
  const Shape shape;
  Layer layer(shape, "exact");
  const Rows good(shape, 40, 4);
  layer.step(good, 0, 10, 5);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (auto part : {&Rows::q, &Rows::k, &Rows::v}) {
      Rows rows = good;
      (rows.*part)[12 * (part == &Rows::q ? shape.q_size() : shape.kv_size()) + 3] = bad;
      refused(ErrorCode::kNonFinite, "not finite", [&] { layer.step(rows, 10, 15, 5); });
      EXPECT_EQ(layer.cache.tokens(), 10u);
    }
  }
  Layer other(shape, "exact");
  other.step(good, 0, 10, 5);
  EXPECT_EQ(layer.step(good, 10, 20, 5), other.step(good, 10, 20, 5)) << "nothing was changed";
}

TEST(LayerCache, RefusesViewsThatAreNone) {
  const Shape shape;
  Layer layer(shape, "exact");
  const Rows rows(shape, 8, 4);
  std::vector<float> out(8 * shape.q_size());
  const auto step = [&](RowsOut to, RowsView q) {
    layer.cache.step(to, q, layer.k(rows, 0), layer.v(rows, 0), 8);
  };
  const RowsOut good = test::out_view(out.data(), layer.heads, layer.dim);
  RowsView odd = layer.q(rows, 0);
  odd.dtype = static_cast<DType>(77);
  refused(kInvalid, "dtype 77", [&] { step(good, odd); });
  for (const auto& [token, head] : std::vector<std::pair<ptrdiff_t, ptrdiff_t>>{
           {0, 64},
           {64, 64},
           {64, 0},
           {static_cast<ptrdiff_t>(layer.heads) * 64 - 1, 64},
           {512, 63}}) {
    RowsOut bad = good;
    bad.token_stride = token, bad.head_stride = head;
    refused(kInvalid, "overlap", [&] { step(bad, layer.q(rows, 0)); });
  }
  EXPECT_EQ(layer.cache.tokens(), 0u);
  RowsOut by_head = good;  // [heads, T, D]
  by_head.token_stride = 64, by_head.head_stride = 8 * 64;
  step(by_head, layer.q(rows, 0));
}

TEST(LayerCache, RefusesObjectsThatAreNoneAndSizesThatNoModelHas) {
  const Shape shape;
  refused(kInvalid, "no Runtime", [&] { LayerCache(nullptr, options_of(shape, "exact")); });
  Layer layer(shape, "exact");
  const LayerCache moved = std::move(layer.cache);
  // NOLINTNEXTLINE(bugprone-use-after-move): that is what is tried.
  refused(kInvalid, "moved from", [&] { layer.cache.tokens(); });
  LayerCacheOptions o = options_of(shape, "exact");
  o.query_heads = o.kv_heads = 1 << 30;
  refused(kInvalid, "and 4096", [&] { LayerCache(layer.runtime, o); });
  o = options_of(shape, "exact");
  o.layers = std::numeric_limits<int>::max();
  refused(kInvalid, "at most", [&] { LayerCache(layer.runtime, o); });
}

TEST(LayerCache, StatisticsOfQueriesNeedTheirRope) {
  const Shape shape;
  const auto runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = 1});
  for (const char* policy :
       {"expected_attention(budget=40)", "adakv(budget=40,by=expected_attention)",
        "exact;heads=1:expected_attention(budget=40)"}) {
    LayerCacheOptions o = options_of(shape, policy);
    LayerCache(runtime, o).tokens();
    o.rope_theta = 0;
    refused(ErrorCode::kUnsupported, "RoPE", [&] { LayerCache(runtime, o); });
    o.policy = Policy::parse("exact;layers=0:exact");
    LayerCache(runtime, o).tokens();
  }
  LayerCacheOptions o = options_of(shape, "expected_attention(budget=40,rope=false)");
  o.rope_theta = 0;
  LayerCache(runtime, o).tokens();
}

TEST(LayerCache, FrequenciesOfARopeAreThatRope) {
  const Shape shape;
  const Rows rows(shape, 150, 6);
  const char* policy = "exact+kvquant(bits=4,calibrate=32),window=8";
  Layer by_theta(shape, policy), given(shape, policy), other(shape, policy);
  LayerCacheOptions o = options_of(shape, policy);
  o.rope_theta = 0;
  for (int i = 0; i < 32; ++i) o.rope_frequencies.push_back(std::pow(10000.0, -2.0 * i / 64));
  given.cache = LayerCache(given.runtime, o);
  o.rope_frequencies.back() = 0.5;
  other.cache = LayerCache(other.runtime, o);
  const auto expected = by_theta.step(rows, 0, 150, 50);
  EXPECT_LT(test::relative_error(given.step(rows, 0, 150, 50),
                                 std::vector<double>(expected.begin(), expected.end())),
            1e-6);
  EXPECT_NE(other.step(rows, 0, 150, 50), expected);
  o.rope_frequencies.pop_back();
  refused(kInvalid, "rope_frequencies", [&] { LayerCache(given.runtime, o); });
  o.rope_frequencies.assign(32, std::nan(""));
  refused(kInvalid, "finite", [&] { LayerCache(given.runtime, o); });
  o.rope_theta = 10000;
  refused(kInvalid, "give one", [&] { LayerCache(given.runtime, o); });
}

TEST(LayerCache, AForkedProcessIsTold) {
  const Shape shape;
  Layer layer(shape, "exact");
  const Rows rows(shape, 8, 4);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      layer.step(rows, 0, 4, 4);
    } catch (const Error& e) {
      ::_exit(e.code() == ErrorCode::kUnsupported ? 7 : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  layer.step(rows, 0, 4, 4);
}

}  // namespace
}  // namespace pith
