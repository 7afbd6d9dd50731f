// Soft caps and sink logits on the GPU against the CPU's, in every codec, by one rule and several:
// scores are large enough that without the cap another row wins, and sinks take half of the sums.

#include <gtest/gtest.h>

#include <cmath>

#include "layer_pair.h"

namespace pith::cuda {
namespace {

constexpr double kCap = 1.5, kScale = 0.5;

LayerCase varied(LayerCase c, bool capped, bool sinks) {
  c.scale = kScale;
  if (capped) c.soft_cap = kCap;
  for (int h = 0; sinks && h < c.query_heads; ++h)
    c.sink_logits.push_back(3 + 0.75f * static_cast<float>(h % 5));
  return c;
}

/// The worst error of answers where both devices held the same rows.
double error_of(const LayerCase& c) {
  LayerPair pair(c, {});
  for (const size_t tokens : {90, 33}) pair.step(tokens);
  pair.attend(3);
  pair.append(5);
  pair.end_prompt();
  for (int t = 0; t < 12; ++t) pair.step(1);
  pair.attend(1);
  pair.gpu() = pair.gpu().clone();
  pair.step(40);
  LayerCache saved = LayerCache::restore(pair.runtime(), pair.options(), pair.gpu().save());
  pair.follow(saved);
  pair.gpu() = std::move(saved);
  for (int t = 0; t < 6; ++t) pair.step(1);
  pair.attend(70);
  EXPECT_GE(pair.compared(), c.compared);
  return pair.worst();
}

// Bounds are the codec's error: without a cap that of the largest row of the sums, which codes
// move.
const LayerCase kExact[] = {
    {"exact", 2e-3},
    {"exact", 2e-3, 0, 0.9, 6, 1, 128},
    {"exact", 2e-3, 0, 0.9, 2, 2, 256},
    {"exact,dtype=bf16", 1e-2, 0, 0.9, 18, 2, 128},
    {"exact,sink=3,window=9", 2e-3, 37},
    {"exact;heads=0:exact,dtype=f16,window=30", 2e-3},
};
const LayerCase kCoded[] = {
    {"exact+int8,window=8", 2e-2},
    {"exact+int4,window=8", 0.1, 0, 0.9, 8, 2, 128},
    {"exact+kivi(bits=4),window=8", 0.1},
    {"exact+kivi(bits=2),window=8", 0.3},
    {"exact+turboquant(bits=4),window=8", 0.1, 0, 0.9, 4, 2, 128},
    {"exact+kvquant(bits=4),window=8", 0.2},
    {"exact+int8(hadamard=true),window=8", 2e-2},
    {"exact+kvquant(bits=3),window=8", 0.3, 0, 0.9, 8, 2, 128},
    {"exact+gear(bits=4),window=8", 0.2},
    {"exact+qjl,window=8", 0.3},
    {"exact+ladder,window=8", 0.3},
    {"exact+kvtc(bits=7.5,calibrate=96),window=8", 0.1, 0, 0.9, 4, 2, 128},
    {"exact+csr(rope=post,s=16,solver=omp,online=96),window=8", 0.4},
    {"exact+csr(rope=post,online=64),window=8", 0.5},
    {"exact+csr(online=64),window=8", 0.5},
    {"knorm(budget=70,interval=24)+int8;heads=0:exact", 2e-2, 0, 0.1},
    {"uniform(budget=60)+int8,window=20", 2e-2, 0, 0.02},
    {"express(heavy=0,s=32)+int8,window=20", 2e-2, 0, 0.02},
};
// Their rows follow from attention mass: rows are the same while that is.
const LayerCase kMass[] = {
    {"tova(budget=60,interval=25),window=9", 2e-3, 0, 0.5},
    {"h2o(budget=60,interval=50,decay=0.5),sink=2,window=30", 2e-3, 0, 0.5, 2, 1, 256},
    {"snapkv(budget=60,interval=20,queries=7,kernel=3),sink=4,window=16", 2e-3, 0, 0.5},
    {"tova(budget=60,interval=25)+int8,window=9", 2e-2, 0, 0.1},
    {"h2o(budget=60,interval=50)+turboquant(bits=4),window=30", 0.2, 0, 0.1},
    {"h2o(budget=60,interval=50)+qjl,window=30", 0.3, 0, 0.1},
    {"h2o(budget=60,interval=50)+csr(rope=post,online=32),window=30", 0.6, 0, 0.1},
    {"h2o(budget=60,interval=50),window=30;heads=0:tova(budget=60,interval=25),window=9", 2e-3, 0,
     0.5},
};

void agree(std::span<const LayerCase> cases) {
  PITH_NEEDS_GPU();
  for (const LayerCase& c : cases) {
    for (const auto& [capped, sinks] : {std::pair{true, false}, {false, true}, {true, true}}) {
      SCOPED_TRACE(std::string(c.policy) + (capped ? ", capped" : "") + (sinks ? ", sinks" : ""));
      if (left_out()) continue;
      const LayerCase own = varied(c, capped, sinks);
      EXPECT_LT(error_of(own), capped ? c.bound : 6 * c.bound);
    }
  }
}

TEST(CudaLayerVariants, AgreeWithTheCpu) { agree(kExact); }
TEST(CudaLayerVariants, AgreeOverCodes) { agree(kCoded); }
TEST(CudaLayerVariants, SelectorsSeeTheMassBehindThem) { agree(kMass); }

/// The GPU's answers to prompts and a token, [T, H, D].
std::vector<float> answers(const LayerCase& c) {
  LayerPair pair(c, {});
  std::vector<float> all;
  for (const size_t tokens : {90, 60, 1, 1}) {
    const auto more = pair.step_gpu(pair.gpu(), tokens, static_cast<uint32_t>(tokens));
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// Whatever codes do to scores, a sink takes its share of the softmax and nothing else: answers are
// a factor of those without, 1 / (1 + e^sink / sum), and of a sink one larger e^sink is e times it.
void expect_shares(const LayerCase& c) {
  LayerCase plain = varied(c, true, true), more = plain;
  const LayerCase with = plain;
  plain.sink_logits.clear();
  for (float& logit : more.sink_logits) logit += 1;
  const auto dim = static_cast<size_t>(c.dim);
  const std::vector<float> x = answers(plain), a = answers(with), b = answers(more);
  const auto share = [&](const std::vector<float>& of, size_t at) {
    double product = 0, square = 0, apart = 0;
    for (size_t i = at; i < at + dim; ++i)
      product += double{of[i]} * x[i], square += double{x[i]} * x[i];
    const double factor = product / square;
    for (size_t i = at; i < at + dim; ++i) apart += std::pow(of[i] - factor * x[i], 2);
    EXPECT_LT(apart, 1e-4 * factor * factor * square);
    return 1 / factor - 1;
  };
  for (size_t at = 0; at < x.size(); at += dim) {
    ASSERT_GT(share(a, at), 1e-2);
    ASSERT_NEAR(share(b, at) / share(a, at), std::exp(1.0), 0.15) << at / dim;
  }
}

TEST(CudaLayerVariants, SinksTakeTheirShareOfEverySum) {
  PITH_NEEDS_GPU();
  for (const auto cases :
       {std::span<const LayerCase>(kExact), std::span<const LayerCase>(kCoded)}) {
    for (const LayerCase& c : cases) {
      SCOPED_TRACE(c.policy);
      if (!left_out()) expect_shares(c);
    }
  }
}

// A cap that both devices left out would pass above.
TEST(CudaLayerVariants, CapsChangeWhatIsAnswered) {
  PITH_NEEDS_GPU();
  for (const LayerCase& c : kCoded) {
    SCOPED_TRACE(c.policy);
    if (left_out()) continue;
    const std::vector<float> plain = answers(varied(c, false, false)),
                             capped = answers(varied(c, true, false));
    const double change = relative_error(capped, std::vector<double>(plain.begin(), plain.end()));
    EXPECT_GT(change, 0.6);
  }
}

TEST(CudaLayerVariants, TheErrorProbeIsRefused) {
  PITH_NEEDS_GPU();
  const auto compute =
      std::make_shared<Runtime>(RuntimeOptions{.device = Device::kCuda, .threads = 1});
  LayerCacheOptions o = layer_options(varied({"exact"}, true, false));
  o.error_probe.rows = 64;
  refused(ErrorCode::kUnsupported, "soft-capped", [&] { LayerCache{compute, o}; });
}

}  // namespace
}  // namespace pith::cuda
