#include "methods/express/express_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/device_archive.h"
#include "kernels/cuda/grouped_layout.h"
#include "pith/error.h"

namespace pith::cuda {

DeviceExpressRule device_rule(const ExpressRule& rule) {
  return {rule.shape, rule.weight_exponent, device_rule(rule.halving)};
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
  arrays_ = {k_.data(),         v_.data(), log_weights_.data(),
             positions_.data(), nullptr,   static_cast<int>(capacity)};
}

ExpressJob ExpressDevice::job(const NewDeviceRows& rows) {
  const ExpressJob job{arrays_, rows, site_.layer, state_};
  advance(state_, rule_.shape, static_cast<uint64_t>(rows.count));
  return job;
}

void ExpressDevice::take(const NewDeviceRows& rows, cudaStream_t stream) {
  if (rows.count == 0) return;
  ExpressJobs jobs;
  jobs.job[0] = job(rows);
  jobs.count = 1;
  express_take(rule_, site_, jobs, stream);
}

DeviceSpan ExpressDevice::span(size_t head) const {
  const size_t at = head * static_cast<size_t>(arrays_.capacity);
  const auto dim = static_cast<size_t>(site_.dim);
  DeviceSpan span;
  span.keys = static_cast<const std::byte*>(arrays_.k) + at * dim * 2;
  span.values = static_cast<const std::byte*>(arrays_.v) + at * dim * 2;
  span.log_weights = arrays_.log_weights + at;
  span.rows = static_cast<int32_t>(state_.rows());
  span.row_stride = site_.dim;
  span.settled_rows = span.rows;
  return span;
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
  state_ = from.state_;
}

void ExpressDevice::archive(Archive& a, size_t tokens, cudaStream_t stream) {
  // How many rows stand where follows from how many came.
  uint64_t seen = state_.seen;
  a.number(seen, uint64_t{tokens}, "more rows than tokens");
  if (a.loads()) advance(state_, rule_.shape, seen);
  const size_t rows = state_.rows(), dim = static_cast<size_t>(site_.dim);
  const auto heads = static_cast<size_t>(site_.heads);
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
}

size_t ExpressDevice::allocated_bytes() const {
  return k_.size() + v_.size() + log_weights_.size() * sizeof(float) +
         positions_.size() * sizeof(int64_t);
}

}  // namespace pith::cuda
