#include "pith/own_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "methods/test_own_layer.h"
#include "pith/error.h"
#include "pith/own_selector.h"

namespace pith {
namespace {

using test::kDim;
using test::kHeads;
using test::kTokens;
using test::layer_of;
using test::layer_options;
using test::random_rows;
using test::view;

/// The attention of the rows [from, to), fed `chunk` at a time.
std::vector<float> read(LayerCache& cache, size_t from, size_t to, size_t chunk) {
  const auto q = random_rows(1), k = random_rows(2), v = random_rows(3);
  std::vector<float> out((to - from) * kHeads * kDim);
  for (size_t t = from; t < to; t += chunk)
    cache.step({out.data() + (t - from) * kHeads * kDim, DType::kF32, kHeads * kDim, kDim},
               view(q, t), view(k, t), view(v, t), std::min(chunk, to - t));
  return out;
}

/// Rows as they are, in bytes: what attention reads is exact.
OwnCodec plain(const std::string& name) {
  OwnCodec codec{.name = name, .summary = "f32"};
  codec.row_bytes = [](size_t dim) { return dim * sizeof(float); };
  codec.encode = [](const RowsToCode& rows, const float* x, uint8_t* codes) {
    std::memcpy(codes, x, rows.rows * rows.head_dim * sizeof(float));
  };
  codec.decode = [](const RowsToCode& rows, const uint8_t* codes, float* x) {
    std::memcpy(x, codes, rows.rows * rows.head_dim * sizeof(float));
  };
  return codec;
}

TEST(OwnCodec, PlainBytesReadAsDenseRowsUnderEverySelector) {
  add_codec(plain("my_plain"));
  for (const std::string rule :
       {"exact", "knorm(budget=40)", "h2o(budget=40)", "uniform(budget=40)", "express(s=25%)"}) {
    LayerCache own = layer_of(rule + "+my_plain,sink=2,window=16,dtype=f32"),
               dense = layer_of(rule + "+f32,sink=2,window=16,dtype=f32");
    const auto a = read(own, 0, kTokens, 10), b = read(dense, 0, kTokens, 10);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << rule;
    EXPECT_EQ(own.rows(1).positions, dense.rows(1).positions) << rule;
    EXPECT_EQ(own.ledger().payload, dense.ledger().payload) << rule;
  }
}

TEST(OwnCodec, ChunksThreadsClonesAndStatesChangeNoBit) {
  add_codec(plain("my_state"));
  const std::string policy = "knorm(budget=40)+my_state,sink=2,window=16";
  LayerCache one = layer_of(policy), three = layer_of(policy, 3);
  read(one, 0, 150, 150), read(three, 0, 150, 150);
  LayerCache restored = LayerCache::restore(std::make_shared<Runtime>(RuntimeOptions{.threads = 1}),
                                            layer_options(policy), one.save());
  LayerCache copy = one.clone();
  const auto expected = read(one, 150, kTokens, 50);
  EXPECT_EQ(read(three, 150, kTokens, 50), expected);
  EXPECT_EQ(read(restored, 150, kTokens, 50), expected);
  EXPECT_EQ(read(copy, 150, kTokens, 50), expected);
}

TEST(OwnCodec, SeesItsPlaceOnBothSides) {
  OwnCodec zeros = plain("my_zeros");
  zeros.decode = [](const RowsToCode& rows, const uint8_t*, float* x) {
    EXPECT_LT(rows.head, kHeads);
    std::fill_n(x, rows.rows * rows.head_dim, rows.keys ? 1.0f : 2.0f);
  };
  add_codec(zeros);
  LayerCache cache = layer_of("exact+my_zeros,sink=0,window=0");
  read(cache, 0, 64, 64);
  std::vector<float> k(64 * kDim), v(64 * kDim);
  cache.read_rows(1, k.data(), v.data());
  EXPECT_EQ(k[5], 1.0f);
  EXPECT_EQ(v[5], 2.0f);
}

TEST(OwnCodec, Refusals) {
  for (const char* name : {"", "knorm", "int4", "My", "1st", "a-b", "half"})
    EXPECT_THROW(add_codec(plain(name)), Error) << name;
  add_codec(plain("my_twice"));
  add_codec(plain("my_twice"));  // a cell of a notebook that runs again
  OwnCodec wide = plain("my_twice");
  wide.row_bytes = [](size_t dim) { return 8 * dim; };
  EXPECT_THROW(add_codec(wide), Error);
  OwnCodec half = plain("my_half");
  half.decode = nullptr;
  EXPECT_THROW(add_codec(half), Error);
  OwnSelector selector{.name = "my_twice"};
  selector.score = [](const RowsToScore&, std::span<double>) {};
  EXPECT_THROW(add_selector(selector), Error);
  EXPECT_THROW(Policy::parse("exact+my_twice(bits=3)"), Error);
  OwnCodec nothing = plain("my_nothing");
  nothing.row_bytes = [](size_t) { return size_t{0}; };
  add_codec(nothing);
  EXPECT_THROW(layer_of("exact+my_nothing"), Error);
  OwnCodec nan = plain("my_nan");
  nan.decode = [](const RowsToCode& rows, const uint8_t*, float* x) {
    std::fill_n(x, rows.rows * rows.head_dim, std::numeric_limits<float>::quiet_NaN());
  };
  add_codec(nan);
  LayerCache cache = layer_of("exact+my_nan,sink=0,window=0");
  try {
    read(cache, 0, kTokens, 50);
    FAIL() << "NaN was read";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNonFinite);
    EXPECT_NE(std::string(e.what()).find("my_nan"), std::string::npos) << e.what();
  }
  bool found = false;
  for (const MethodInfo& info : methods()) found |= info.name == "my_twice" && !info.is_selector;
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace pith
