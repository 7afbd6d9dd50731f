#include "methods/express/express_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/cuda/device_archive.h"
#include "kernels/cuda/grouped_layout.h"
#include "pith/error.h"

namespace pith::cuda {

DeviceExpressRule device_rule(const ExpressRule& rule) {
  return {rule.shape.target, rule.shape.inflation, rule.weight_exponent, device_rule(rule.halving)};
}

void ExpressSite::check(const ExpressRule& rule) const {
  const bool known = (dim == 64 || dim == 128) && heads > 0 && heads <= 65535 &&
                     (dtype == DType::kF16 || dtype == DType::kBF16) &&
                     rule.halving.walk == Walk::kPairs && rule.shape.target >= 8 &&
                     rule.shape.target <= kMostHalvingRows &&
                     (rule.shape.target & (rule.shape.target - 1)) == 0;
  if (known) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("express on the GPU was asked for s={}, {} KV heads, head_dim {}, {}; it "
                          "takes powers of two from 8 to {}, head_dim 64 or 128, f16 or bf16",
                          rule.shape.target, heads, dim, to_string(dtype), kMostHalvingRows));
}

ExpressDevice::ExpressDevice(MemoryCounter& counter, const ExpressRule& rule,
                             const ExpressSite& site, cudaStream_t stream)
    : rule_(device_rule(rule)), site_(site) {
  site.check(rule);
  size_t capacity = rule.shape.target + rule.shape.target / 2;
  if (site.coded) capacity = (capacity + kBlockRows - 1) / kBlockRows * kBlockRows;
  const size_t heads = site.heads, bytes = site.coded ? 0 : heads * capacity * site.dim * 2;
  k_ = DeviceArray<char>(counter, MemoryKind::kPayload, bytes, stream);
  v_ = DeviceArray<char>(counter, MemoryKind::kPayload, bytes, stream);
  log_weights_ = DeviceArray<float>(counter, MemoryKind::kMetadata, heads * capacity, stream);
  positions_ = DeviceArray<int64_t>(counter, MemoryKind::kMetadata, heads * capacity, stream);
  states_ = DeviceArray<DeviceExpressState>(counter, MemoryKind::kMetadata, heads, stream);
  spans_ = DeviceArray<DeviceSpan>(counter, MemoryKind::kMetadata, heads, stream);
  arrays_ = {k_.data(),     v_.data(), log_weights_.data(),       positions_.data(), states_.data(),
             spans_.data(), nullptr,   static_cast<int>(capacity)};
  const std::vector<DeviceExpressState> states(heads);
  std::vector<DeviceSpan> spans(heads);
  const size_t row_bytes = static_cast<size_t>(site.dim) * 2;
  for (size_t h = 0; h < heads && !site.coded; ++h) {
    spans[h].keys = k_.data() + h * capacity * row_bytes;
    spans[h].values = v_.data() + h * capacity * row_bytes;
    spans[h].log_weights = log_weights_.data() + h * capacity;
    spans[h].row_stride = site.dim;
  }
  states_.upload(states.data(), heads, stream);
  spans_.upload(spans.data(), heads, stream);
}

void ExpressDevice::take(const NewDeviceRows& rows, cudaStream_t stream) {
  if (rows.count == 0) return;
  ExpressJobs jobs;
  jobs.job[0] = {arrays_, rows, site_.layer};
  jobs.count = 1;
  express_take(rule_, site_, jobs, stream);
}

void ExpressDevice::copy(const ExpressDevice& from, cudaStream_t stream) {
  const auto copy = [&](auto& to, const auto& source) {
    if (source.size() == 0) return;
    check(cudaMemcpyAsync(to.data(), source.data(), source.size() * sizeof(*source.data()),
                          cudaMemcpyDeviceToDevice, stream),
          "a copy of express's rows");
  };
  copy(k_, from.k_);
  copy(v_, from.v_);
  copy(log_weights_, from.log_weights_);
  copy(positions_, from.positions_);
  copy(states_, from.states_);
  // The spans' addresses are this stream's own.
  constexpr size_t kPitch = sizeof(DeviceSpan), kAt = offsetof(DeviceSpan, rows);
  check(
      cudaMemcpy2DAsync(reinterpret_cast<char*>(spans_.data()) + kAt, kPitch,
                        reinterpret_cast<const char*>(from.spans_.data()) + kAt, kPitch,
                        sizeof(DeviceSpan::rows), spans_.size(), cudaMemcpyDeviceToDevice, stream),
      "a copy of express's rows");
}

void ExpressDevice::archive(Archive& a, const ExpressState& state, size_t tokens,
                            cudaStream_t stream) {
  const size_t rows = state.rows(), dim = static_cast<size_t>(site_.dim), heads = states_.size();
  const auto capacity = static_cast<size_t>(arrays_.capacity);
  const auto each = [&](void* data, size_t bytes) {
    return DeviceRuns{data, rows * bytes, capacity * bytes, heads};
  };
  if (!site_.coded) {
    archive_finite(a, each(arrays_.k, 2 * dim), site_.dtype, stream);
    archive_finite(a, each(arrays_.v, 2 * dim), site_.dtype, stream);
  }
  archive_finite(a, each(arrays_.log_weights, sizeof(float)), DType::kF32, stream);
  archive_numbers(a, each(arrays_.positions, sizeof(int64_t)), int64_t{0},
                  static_cast<int64_t>(tokens) - 1, stream);
  if (!a.loads()) return;
  DeviceExpressState one{state.seen, state.tau, state.stratum, state.coreset};
  std::ranges::copy(state.levels, one.levels);
  const std::vector<DeviceExpressState> states(heads, one);
  states_.upload(states.data(), heads, stream);
  const std::vector<int32_t> counts(heads, static_cast<int32_t>(rows));
  check(cudaMemcpy2DAsync(reinterpret_cast<char*>(spans_.data()) + offsetof(DeviceSpan, rows),
                          sizeof(DeviceSpan), counts.data(), sizeof(int32_t), sizeof(int32_t),
                          heads, cudaMemcpyHostToDevice, stream),
        "state that is loaded");
  check(cudaStreamSynchronize(stream), "state that is loaded");
}

size_t ExpressDevice::allocated_bytes() const {
  return k_.size() + v_.size() + log_weights_.size() * sizeof(float) +
         positions_.size() * sizeof(int64_t) + states_.size() * sizeof(DeviceExpressState) +
         spans_.size() * sizeof(DeviceSpan);
}

}  // namespace pith::cuda
