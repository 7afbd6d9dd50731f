// Sessions on the GPU. An engine has the weights and the account of memory. A stream, the forward
// pass's buffers and a graph still belong to each session, as decode passes of many sessions are
// run one after the other: what one pass over all of them would share is not shared yet.

#include <algorithm>

#include "cache/cuda/device_cache.h"
#include "kernels/cuda/read_rate.h"
#include "model/cuda/device_forward.h"
#include "model/cuda/device_weights.h"
#include "session/state.h"

namespace pith {
namespace {

/// A session's stream, and the memory counted on it; its forks share them.
struct CudaStream {
  CudaStream(MemoryCounter& all, size_t limit) : memory(all, limit) {
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  }
  ~CudaStream() {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  MemoryCounter memory;
  cudaStream_t stream = nullptr;
};

/// What the sessions of an engine have in common.
struct CudaShared {
  std::shared_ptr<const cuda::DeviceWeights> weights;
  MemoryCounter memory;
  EngineOptions options;
  DType products;

  CudaShared(const std::shared_ptr<const Model>& model, const EngineOptions& o)
      : weights(cuda::DeviceWeights::of(model)),
        memory(o.memory_limit),
        options(o),
        products(o.f32_arithmetic ? DType::kF32 : weights->dtype()) {}
};

class CudaSession final : public SessionBackend {
 public:
  CudaSession(CudaShared& shared, const SessionOptions& o)
      : shared_(shared),
        stream_(std::make_shared<CudaStream>(shared.memory, o.cache_limit)),
        cache_(std::make_unique<cuda::DeviceCache>(
            stream_->memory, cache_shape(shared.weights->config(), o), o.policy, o.seed,
            stream_->stream, shared.weights->ropes(o.context))),
        forward_(shared.weights, stream_->memory, stream_->stream,
                 std::min(shared.options.chunk, o.context), {cache_->dtype(), shared.products}) {
    protect(o.protect);
    if (o.error_probe.rows > 0)
      cache_->start_error_probe(o.error_probe, o.seed, shared.options.threads);
  }
  CudaSession(const CudaSession& o)
      : shared_(o.shared_),
        stream_(o.stream_),
        cache_(o.cache_->clone()),
        forward_(shared_.weights, stream_->memory, stream_->stream, o.forward_.max_chunk(),
                 {cache_->dtype(), shared_.products}) {
    forward_.continue_from(o.forward_);
  }

  std::unique_ptr<SessionBackend> clone() const override {
    return std::make_unique<CudaSession>(*this);
  }
  void end_prompt() override { cache_->end_prefill(); }
  std::vector<SessionSection> sections() override {
    throw Error(ErrorCode::kUnsupported,
                "sessions on the GPU cannot be saved or restored yet; use --device cpu for a "
                "session that is to be kept");
  }
  std::vector<TokenRange> protected_tokens() const override { return {}; }
  void protect(std::span<const TokenRange> ranges) override {
    cache_->protect(ranges);
    forward_.forget_token();
  }
  HeadRows rows(int layer, int head) const override { return cache_->rows(layer, head); }
  std::vector<AttentionError> attention_errors() const override {
    return cache_->attention_errors();
  }
  /// Scratch, staging and the probe are those of all forks.
  Ledger ledger() const override {
    Ledger ledger = cache_->ledger();
    ledger.scratch = stream_->memory.bytes(MemoryKind::kScratch);
    ledger.staging = stream_->memory.bytes(MemoryKind::kStaging);
    ledger.probe = stream_->memory.bytes(MemoryKind::kProbe);
    return ledger;
  }
  std::string describe_policy() const override { return cache_->describe(); }

  void run(std::span<const int32_t> tokens, int64_t first_position) {
    forward_.run(*cache_, tokens, first_position);
  }
  cuda::DeviceForward& forward() { return forward_; }
  int32_t sample(Sampler& sampler, std::span<const int32_t> history) {
    const auto vocabulary = static_cast<size_t>(shared_.weights->config().vocab);
    const Sampler::Ranking ranking = sampler.ranking(history, vocabulary);
    if (ranking.count == 0 || ranking.count > cuda::kMostRanked) {
      return sampler.sample(forward_.last_logits(), history);
    }
    std::vector<Sampler::Candidate> best;
    for (const cuda::RankedLogit& x : forward_.best_logits(
             {nullptr, ranking.count, ranking.penalty, ranking.penalised, ranking.never})) {
      best.push_back({x.logit, x.id});
    }
    return sampler.sample_ranked(best);
  }

 private:
  CudaShared& shared_;
  std::shared_ptr<CudaStream> stream_;
  std::unique_ptr<cuda::DeviceCache> cache_;
  cuda::DeviceForward forward_;
};

class CudaEngine final : public EngineBackend {
 public:
  CudaEngine(const std::shared_ptr<const Model>& model, const EngineOptions& o)
      : shared_(model, o) {}

  std::unique_ptr<SessionBackend> make_session(const SessionOptions& o) override {
    return std::make_unique<CudaSession>(shared_, o);
  }
  void run_chunk(SessionBackend& session, std::span<const int32_t> tokens,
                 int64_t first_position) override {
    of(session).run(tokens, first_position);
  }
  void run_tokens(std::span<TokenWork> works) override {
    for (TokenWork& w : works) {
      try {
        of(*w.session).run({&w.token, 1}, w.position);
      } catch (...) {
        w.failure = std::current_exception();
      }
    }
  }
  void finish(std::span<LogitsWork> works) override {
    for (LogitsWork& w : works) {
      try {
        CudaSession& s = of(*w.session);
        if (w.logits) std::ranges::copy(s.forward().last_logits(), w.logits);
        if (w.sampler) w.next = s.sample(*w.sampler, w.history);
      } catch (...) {
        w.failure = std::current_exception();
      }
    }
  }
  std::span<const float> last_logits(SessionBackend& session) override {
    return of(session).forward().last_logits();
  }
  void all_logits(SessionBackend& session, const Session::LogitsSink& sink) override {
    of(session).forward().all_logits(sink);
  }
  Ledger ledger() const override { return {}; }
  const MemoryCounter& memory() const override { return shared_.memory; }
  int threads() const override { return 1; }
  const char* isa() const override { return "cuda"; }

 private:
  static CudaSession& of(SessionBackend& session) { return static_cast<CudaSession&>(session); }

  CudaShared shared_;
};

}  // namespace

// As make_cpu_engine, which keeps it. NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<EngineBackend> make_cuda_engine(std::shared_ptr<const Model> model,
                                                const EngineOptions& options) {
  return std::make_unique<CudaEngine>(model, options);
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
