// Rows of a layer's cache on the GPU, read back.

#include <gtest/gtest.h>

#include <cmath>

#include "layer_pair.h"

namespace pith::cuda {
namespace {

/// `error`: of the rows read, relative to those that came.
struct RowsCase {
  const char* policy;
  double error = 0;
  int64_t slides = 0;
  int dim = 64;
  bool protects = true;
};

// Wherever rows lie: dense, in codes of rows or groups, waiting for tables, old and young, shared
// by heads, in coresets, protected; in one layer of many ranges.
const RowsCase kCases[] = {
    {"exact"},
    {"exact", 0, 37, 64, false},
    {"exact,dtype=bf16,sink=3,window=9", 0, 0, 128},
    {"exact+int8", 1e-2},
    {"exact+int8", 1e-2, 0, 256},
    {"exact+int8,window=16", 1e-2, 90, 64, false},
    {"exact+int4(hadamard=true),window=40", 0.15},
    {"exact+kivi(bits=4)", 0.2},
    {"exact+kivi(bits=2)", 0.7},
    {"exact+turboquant(bits=4)", 0.2},
    {"exact+k:int8+v:turboquant(bits=3)", 0.2},
    {"exact+kvquant(bits=4,calibrate=32)", 0.3, 0, 64, false},
    {"exact+kvtc(bits=6,calibrate=64)", 0.2, 0, 64, false},
    {"exact+int8(center=32,pre_rope=true),window=16", 2e-2, 0, 64, false},
    {"exact+ladder(rows=64,old=int4),window=20", 0.15},
    {"exact+gear", 0.3},
    {"exact+csr(s=16,online=64),window=20", 0.9, 0, 64, false},
    {"streaming_llm(window=37,rope=cache),sink=7", 0, 0, 64, false},
    {"knorm(budget=40,interval=24)"},
    {"knorm(budget=40,interval=24)+int8", 1e-2},
    {"snapkv(budget=70,interval=32)+int4,sink=4,window=16", 0.15},
    {"snapkv(budget=70,interval=32)+kivi(bits=4),sink=4,window=16", 0.25},
    {"h2o(budget=70,interval=50)+int8,sink=2,window=30", 1e-2},
    {"adakv(budget=40,interval=20),sink=4,window=16"},
    {"adakv(budget=64,interval=20)+int8,sink=4,window=16", 1e-2},
    {"buzz(T=50,weights=true),window=20"},
    {"uniform(rate=0.3)"},
    {"uniform(rate=0.5)+int8,window=20", 1e-2},
    {"uniform(budget=40)"},
    {"balancekv(b=32),window=20"},
    {"balancekv(b=32)+int8,window=20", 1e-2},
    {"express(heavy=0,s=32),window=20"},
    {"express(heavy=0,s=64)+int8,window=20", 1e-2},
    {"express(heavy=32,s=64)+int4,window=20", 0.15},
    {"knorm(budget=40,interval=24);heads=0:exact", 0, 0, 64, false},
};

void step_both(LayerPair& pair, LayerPair& all) {
  const auto each = [&](const auto& f) { f(pair), f(all); };
  for (const size_t tokens : {70, 33, 90}) each([&](LayerPair& p) { p.step(tokens); });
  each([](LayerPair& p) { p.end_prompt(); });
  for (int t = 0; t < 45; ++t) each([](LayerPair& p) { p.step(1); });
  each([](LayerPair& p) { p.append(75); });
  each([](LayerPair& p) { p.step(1); });
}

std::vector<float> read(LayerCache& cache, int head, size_t dim, std::vector<float>& v) {
  const size_t rows = cache.rows(head).positions.size();
  std::vector<float> k(rows * dim, NAN);
  v.assign(rows * dim, NAN);
  cache.read_rows(head, k.data(), v.data());
  return k;
}

/// Every row that is held is the row that came at its position, up to the codec's error.
void reads_rows_as_they_came(const RowsCase& c) {
  SCOPED_TRACE(c.policy);
  const LayerCase of_policy{.policy = c.policy, .slides = c.slides, .dim = c.dim};
  LayerPair pair(of_policy, kLayouts[0]), all({.policy = "exact", .dim = c.dim}, kLayouts[0]);
  if (c.protects) pair.protect({{60, 63}, {110, 111}});
  step_both(pair, all);
  const size_t dim = static_cast<size_t>(c.dim);
  for (int g = 0; g < 2; ++g) {
    const HeadRows held = pair.gpu().rows(g);
    std::vector<float> v, came_v;
    const std::vector<float> k = read(pair.gpu(), g, dim, v);
    const std::vector<float> came_k = read(all.cpu(), g, dim, came_v);
    double wrong = 0, size = 0;
    for (size_t i = 0; i < held.positions.size(); ++i) {
      const size_t from = static_cast<size_t>(held.positions[i]) * dim;
      for (size_t d = 0; d < dim; ++d) {
        wrong += std::pow(k[i * dim + d] - came_k[from + d], 2);
        wrong += std::pow(v[i * dim + d] - came_v[from + d], 2);
        size += std::pow(came_k[from + d], 2) + std::pow(came_v[from + d], 2);
      }
    }
    EXPECT_GT(held.positions.size(), 30u);
    EXPECT_LE(std::sqrt(wrong / size), c.error) << "head " << g;
    EXPECT_EQ(wrong == 0, c.error == 0) << "head " << g << ": no code was read";
  }
}

TEST(CudaLayerRows, AreReadAsTheyCame) {
  PITH_NEEDS_GPU();
  for (const RowsCase& c : kCases) {
    if (!left_out()) reads_rows_as_they_came(c);
  }
}

TEST(CudaLayerRows, AreReadOfACopyAndARestoredCache) {
  PITH_NEEDS_GPU();
  LayerPair pair({"express(heavy=32,s=64)+int4,window=20"}, kLayouts[0]);
  pair.step(200);
  pair.end_prompt();
  LayerCache copy = pair.gpu().clone();
  LayerCache other = LayerCache::restore(pair.runtime(), pair.options(), pair.gpu().save());
  std::vector<float> v, v_of;
  const std::vector<float> k = read(pair.gpu(), 1, 64, v);
  pair.step(40);  // the others stay as they were
  EXPECT_EQ(read(copy, 1, 64, v_of), k);
  EXPECT_EQ(v_of, v);
  EXPECT_EQ(read(other, 1, 64, v_of), k);
  EXPECT_EQ(v_of, v);
  refused(ErrorCode::kInvalidArgument, "KV head 2",
          [&] { pair.gpu().read_rows(2, v.data(), v.data()); });
}

}  // namespace
}  // namespace pith::cuda
