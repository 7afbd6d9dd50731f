#include "model/cuda/device_logits.h"

#include <algorithm>

#include "core/finite.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

void refuse_unless_finite(bool finite) {
  if (finite) return;
  throw Error(ErrorCode::kNonFinite,
              "the model's logits are NaN or infinite: "
              "its weights are damaged, or activations "
              "left the range of the weights' type");
}

}  // namespace

DeviceLogits::DeviceLogits(const ModelConfig& config, const ProductPlan& plan,
                           DeviceProducts& products, MemoryCounter& memory, cudaStream_t stream)
    : config_(config),
      plan_(plan),
      products_(products),
      memory_(memory),
      stream_(stream),
      host_(plan.block() * static_cast<size_t>(config.vocab)) {}

const float* DeviceLogits::fetch(size_t first, size_t count) {
  const auto vocabulary = static_cast<size_t>(config_.vocab);
  const size_t numbers = count * vocabulary;
  check(cudaMemcpyAsync(host_.data(), products_.logits() + first * vocabulary,
                        numbers * sizeof(float), cudaMemcpyDeviceToHost, stream_),
        "logits");
  check(cudaStreamSynchronize(stream_), "the forward pass");
  refuse_unless_finite(!has_non_finite(host_.data(), DType::kF32, numbers));
  return host_.data();
}

std::span<const float> DeviceLogits::row(size_t i) {
  return {fetch(i, 1), static_cast<size_t>(config_.vocab)};
}

LogitRanking& DeviceLogits::ranking() {
  if (!ranking_)
    ranking_.emplace(memory_, static_cast<size_t>(config_.vocab), stream_, plan_.max_tokens());
  return *ranking_;
}

void DeviceLogits::find_largest(size_t rows) {
  largest_ = ranking().largest(products_.logits(), rows);
}

std::span<const RankedLogit> DeviceLogits::largest(size_t i) const {
  const LogitRanking::Largest& found = largest_[i];
  refuse_unless_finite(found.all_finite);
  return {&found.best, found.best.id < 0 ? 0u : 1u};
}

std::span<const RankedLogit> DeviceLogits::best(size_t i, RankingCall call) {
  call.logits = products_.logits() + i * static_cast<size_t>(config_.vocab);
  bool finite = false;
  const auto best = ranking().rank(call, finite);
  refuse_unless_finite(finite);
  return best;
}

void DeviceLogits::of_chunk(const Sink& sink) {
  for (size_t first = 0; first < tokens_; first += plan_.block()) {
    const size_t count = std::min(plan_.block(), tokens_ - first);
    products_.make_logits(first, plan_.chunk_rows(count));
    sink(first, count, fetch(0, count));
  }
}

}  // namespace pith::cuda
