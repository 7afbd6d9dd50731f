// Perplexity and divergence on the GPU beside the CPU's, which has transformers as oracle.

#include "eval/perplexity.h"

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

// The GPU multiplies in the weights' type: nobody is told that it did otherwise. Needs no GPU.
TEST(CudaEval, F32ArithmeticIsRefused) {
  const auto model = RandomModelFolder({}).load();
  SessionOptions o = options_for(Device::kCuda, "exact");
  o.f32_arithmetic = true;
  testing_files::expect_error(ErrorCode::kUnsupported, {"f32 arithmetic", "--device cpu"},
                              [&] { Session(model, o); });
}

}  // namespace
}  // namespace pith::cuda
