// Sessions on the GPU.

#include "cache/cuda/device_cache.h"
#include "kernels/cuda/read_rate.h"
#include "model/cuda/device_forward.h"
#include "model/cuda/device_weights.h"
#include "session/cpu_backend.h"

namespace pith {
namespace {

/// What forks share: one stream and the memory counted on it.
struct CudaEngine {
  CudaEngine(const std::shared_ptr<const Model>& model, const SessionOptions& o)
      : weights(cuda::DeviceWeights::of(model)), memory(o.memory_limit) {
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  }
  ~CudaEngine() {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  CudaEngine(const CudaEngine&) = delete;
  CudaEngine& operator=(const CudaEngine&) = delete;

  std::shared_ptr<const cuda::DeviceWeights> weights;
  MemoryCounter memory;
  cudaStream_t stream = nullptr;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const std::shared_ptr<const Model>& model, const SessionOptions& o)
      : engine_(std::make_shared<CudaEngine>(model, o)),
        chunk_(o.chunk),
        products_(o.f32_arithmetic ? DType::kF32 : engine_->weights->dtype()),
        cache_(std::make_unique<cuda::DeviceCache>(
            engine_->memory, cache_shape(engine_->weights->config(), o), o.policy, o.seed,
            engine_->stream, engine_->weights->ropes(o.context))),
        forward_(engine_->weights, engine_->memory, engine_->stream, chunk_,
                 {cache_->dtype(), products_}) {}
  CudaBackend(const CudaBackend& o)
      : engine_(o.engine_),
        chunk_(o.chunk_),
        products_(o.products_),
        cache_(o.cache_->clone()),
        forward_(engine_->weights, engine_->memory, engine_->stream, chunk_,
                 {cache_->dtype(), products_}) {
    forward_.continue_from(o.forward_);
  }

  std::unique_ptr<Backend> clone() const override { return std::make_unique<CudaBackend>(*this); }
  void run(std::span<const int32_t> tokens, int64_t first_position) override {
    forward_.run(*cache_, tokens, first_position);
  }
  void end_prefill() override { cache_->end_prefill(); }
  std::span<const float> last_logits() override { return forward_.last_logits(); }
  void all_logits(const Session::LogitsSink& sink) override { forward_.all_logits(sink); }
  int32_t sample(Sampler& sampler, std::span<const int32_t> history) override {
    const auto vocabulary = static_cast<size_t>(engine_->weights->config().vocab);
    const Sampler::Ranking ranking = sampler.ranking(history, vocabulary);
    if (ranking.count == 0 || ranking.count > cuda::kMostRanked) {
      return sampler.sample(last_logits(), history);
    }
    std::vector<Sampler::Candidate> best;
    for (const cuda::RankedLogit& x : forward_.best_logits(
             {nullptr, ranking.count, ranking.penalty, ranking.penalised, ranking.never})) {
      best.push_back({x.logit, x.id});
    }
    return sampler.sample_ranked(best);
  }
  void protect(std::span<const TokenRange> ranges) override {
    cache_->protect(ranges);
    forward_.forget_token();
  }
  void start_error_probe(const SessionOptions& o) {
    cache_->start_error_probe(o.error_probe, o.seed, o.threads);
  }
  HeadRows rows(int layer, int head) const override { return cache_->rows(layer, head); }
  std::vector<AttentionError> attention_errors() const override {
    return cache_->attention_errors();
  }
  Ledger ledger() const override {
    Ledger ledger = cache_->ledger();
    ledger.scratch = engine_->memory.bytes(MemoryKind::kScratch);
    ledger.staging = engine_->memory.bytes(MemoryKind::kStaging);
    ledger.probe = engine_->memory.bytes(MemoryKind::kProbe);
    return ledger;
  }
  std::string describe_policy() const override { return cache_->describe(); }
  int threads() const override { return 1; }
  const char* isa() const override { return "cuda"; }

 private:
  std::shared_ptr<CudaEngine> engine_;
  size_t chunk_;
  DType products_;
  std::unique_ptr<cuda::DeviceCache> cache_;
  cuda::DeviceForward forward_;
};

}  // namespace

// As make_cpu_backend, which keeps it. NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<Backend> make_cuda_backend(std::shared_ptr<const Model> model,
                                           const SessionOptions& options) {
  auto backend = std::make_unique<CudaBackend>(model, options);
  backend->protect(options.protect);
  if (options.error_probe.rows > 0) backend->start_error_probe(options);
  return backend;
}

double cuda_read_rate() {
  cuda::device_info();
  return cuda::read_rate();
}

size_t cuda_bytes_in_use() {
  cuda::device_info();
  size_t free = 0, all = 0;
  cuda::check(cudaMemGetInfo(&free, &all), "memory in use");
  return all - free;
}

}  // namespace pith
