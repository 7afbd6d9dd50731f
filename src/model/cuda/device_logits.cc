// The forward pass's last step: logits, and what of them comes to the host.

#include <fmt/format.h>

#include <algorithm>

#include "core/finite.h"
#include "model/cuda/device_forward.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

void refuse_unless_finite(bool finite) {
  if (finite) return;
  throw Error(ErrorCode::kNonFinite,
              "the model's logits are NaN or infinite: its weights are damaged, or activations "
              "left the range of the weights' type");
}

}  // namespace

void DeviceForward::make_logits_after(std::span<float* const> states) {
  if (states.size() > max_tokens_)
    throw Error(ErrorCode::kInternal, fmt::format("logits after {} states; expected 1 to {}",
                                                  states.size(), max_tokens_));
  tokens_ = 0;
  uploaded_.wait();
  std::ranges::copy(states, states_.host());
  states_.upload(states.size(), stream_);
  uploaded_.set(stream_);
  gather_rows(hidden_.data(), states_.device(), states.size(), static_cast<size_t>(config_.hidden),
              stream_);
  make_logits(0, pass_rows(states.size()));
}

const float* DeviceForward::fetch_logits(size_t first, size_t count) {
  const auto vocabulary = static_cast<size_t>(config_.vocab);
  const size_t numbers = count * vocabulary;
  check(cudaMemcpyAsync(host_logits_.data(), logits_.data() + first * vocabulary,
                        numbers * sizeof(float), cudaMemcpyDeviceToHost, stream_),
        "logits");
  check(cudaStreamSynchronize(stream_), "the forward pass");
  refuse_unless_finite(!has_non_finite(host_logits_.data(), DType::kF32, numbers));
  return host_logits_.data();
}

std::span<const float> DeviceForward::logits(size_t i) {
  return {fetch_logits(i, 1), static_cast<size_t>(config_.vocab)};
}

LogitRanking& DeviceForward::ranking() {
  if (!ranking_)
    ranking_.emplace(memory_, static_cast<size_t>(config_.vocab), stream_, max_tokens_);
  return *ranking_;
}

void DeviceForward::find_largest(size_t rows) {
  largest_ = ranking().largest(logits_.data(), rows);
}

std::span<const RankedLogit> DeviceForward::largest_logit(size_t i) const {
  const LogitRanking::Largest& found = largest_[i];
  refuse_unless_finite(found.all_finite);
  return {&found.best, found.best.id < 0 ? 0u : 1u};
}

std::span<const RankedLogit> DeviceForward::best_logits(size_t i, RankingCall call) {
  call.logits = logits_.data() + i * static_cast<size_t>(config_.vocab);
  bool finite = false;
  const auto best = ranking().rank(call, finite);
  refuse_unless_finite(finite);
  return best;
}

void DeviceForward::all_logits(const Sink& sink) {
  for (size_t first = 0; first < tokens_; first += block_) {
    const size_t count = std::min(block_, tokens_ - first);
    make_logits(first, chunk_rows(count));
    sink(first, count, fetch_logits(0, count));
  }
}

}  // namespace pith::cuda
