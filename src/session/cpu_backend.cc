#include "session/cpu_backend.h"

#include "model/forward.h"
#include "model/weights.h"
#include "pith/error.h"

namespace pith {
namespace {

MatmulPrecision precision(const SessionOptions& o) {
  return o.f32_arithmetic ? MatmulPrecision::kF32 : MatmulPrecision::kFast;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::shared_ptr<const Model> model, const SessionOptions& o)
      : model_(std::move(model)),
        precision_(precision(o)),
        engine_(std::make_shared<CpuEngine>(o)),
        cache_(std::make_unique<KvCache>(engine_->context, cache_shape(model_->config(), o),
                                         o.policy, o.seed, model_->weights().ropes(o.context))),
        forward_(engine_->context, *model_, o.chunk, precision_) {
    cache_->protect(o.protect);
    if (o.error_probe.rows > 0) cache_->start_error_probe(o.error_probe, o.seed);
  }
  CpuBackend(const CpuBackend& o)
      : model_(o.model_),
        precision_(o.precision_),
        engine_(o.engine_),
        cache_(o.cache_->clone()),
        forward_(engine_->context, *model_, o.forward_.max_chunk(), precision_) {
    forward_.continue_from(o.forward_);
  }

  std::unique_ptr<Backend> clone() const override { return std::make_unique<CpuBackend>(*this); }
  void run(std::span<const int32_t> tokens, int64_t first_position) override {
    forward_.run(*cache_, tokens, first_position);
  }
  void end_prefill() override { cache_->end_prefill(); }
  std::span<const float> last_logits() override { return forward_.last_logits(); }
  void all_logits(const Session::LogitsSink& sink) override { forward_.all_logits(sink); }
  void protect(std::span<const TokenRange> ranges) override { cache_->protect(ranges); }
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
  int threads() const override { return engine_->pool.size(); }
  const char* isa() const override { return engine_->context.kernels.isa; }

 private:
  std::shared_ptr<const Model> model_;
  MatmulPrecision precision_;
  std::shared_ptr<CpuEngine> engine_;
  std::unique_ptr<KvCache> cache_;
  Forward forward_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<const Model> model,
                                          const SessionOptions& options) {
  return std::make_unique<CpuBackend>(std::move(model), options);
}

}  // namespace pith
