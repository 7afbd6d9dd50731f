// Perplexity and divergence on the GPU beside the CPU's, which has transformers as oracle.

#include "tools/eval/perplexity.h"

#include <deque>

#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

PredictionSummary measure(Perplexity& perplexity, const std::string& policy) {
  std::vector<Prediction> all;
  const std::vector<PerplexityRun> runs{{Policy::parse(policy), 3}};
  for (size_t piece = 0; piece < perplexity.pieces(); ++piece) {
    const auto results = perplexity.run(piece, runs, [](size_t) { return true; });
    all.insert(all.end(), results[0].predictions.begin(), results[0].predictions.end());
  }
  return summarise(all);
}

TEST(CudaEval, PerplexityIsTheCpus) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({}).load();
  const auto ids = random_ids(420, model->config().vocab, 5);
  for (const auto mode :
       {PerplexityMode::kChunks, PerplexityMode::kDecode, PerplexityMode::kContinue}) {
    SCOPED_TRACE(static_cast<int>(mode));
    if (left_out()) continue;
    std::deque<Perplexity> devices;
    for (const Device device : {Device::kCpu, Device::kCuda}) {
      PerplexityOptions o;
      o.mode = mode;
      o.window = 140;
      o.session = options_for(device, "exact", 64);
      o.session.threads = 1;
      devices.emplace_back(model, ids, o);
    }
    EXPECT_EQ(measure(devices[1], "exact").divergence.mean, 0) << "the null control";
    for (const char* policy : {"exact", "exact+int4", "streaming_llm(window=40)"}) {
      SCOPED_TRACE(policy);
      const PredictionSummary cpu = measure(devices[0], policy), gpu = measure(devices[1], policy);
      EXPECT_EQ(cpu.count, gpu.count);
      EXPECT_NEAR(gpu.perplexity.mean / cpu.perplexity.mean, 1, 1e-2);
      EXPECT_NEAR(gpu.divergence.mean, cpu.divergence.mean, 0.1 * cpu.divergence.mean + 1e-4);
    }
  }
}

// A prompt's activations are not rounded to the weights' type, weights are widened.
TEST(CudaEval, F32ArithmeticIsNearerToTheCpu) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({}).load();
  const auto ids = random_ids(90, model->config().vocab, 21);
  const auto logits = [&](Device device, bool f32) {
    StandaloneOptions o = options_for(device, "exact");
    o.f32_arithmetic = f32;
    Session session(model, o);
    return all_logits(session, ids, ids.size());
  };
  const auto want = logits(Device::kCpu, true);
  const std::vector<double> wanted(want.begin(), want.end());
  const double f32 = relative_error(logits(Device::kCuda, true), wanted);
  EXPECT_LT(f32, 2e-3);  // rows of the cache are f16
  EXPECT_LT(2 * f32, relative_error(logits(Device::kCuda, false), wanted));
}

}  // namespace
}  // namespace pith::cuda
