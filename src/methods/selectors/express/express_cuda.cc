#include "methods/selectors/express/express_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/grouped_layout.h"
#include "pith/error.h"

namespace pith::cuda {

DeviceExpressRule device_rule(const ExpressRule& rule) {
  return {rule.shape, rule.weight_exponent, device_rule(rule.halving)};
}

void ExpressSite::check(const ExpressRule& rule) const {
  const bool known = (dim == 64 || dim == 128 || dim == 256) && heads > 0 && heads <= 65535 &&
                     (dtype == DType::kF16 || dtype == DType::kBF16) &&
                     rule.halving.walk == Walk::kPairs && rule.shape.target >= 8 &&
                     rule.shape.target <= static_cast<uint64_t>(most_halving_rows(dim)) &&
                     (rule.shape.target & (rule.shape.target - 1)) == 0;
  if (known) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("express on the GPU was asked for s={}, {} KV heads, head_dim {}, {}; it "
                          "takes powers of two from 8 to {}, head_dim 64, 128 or 256, f16 or bf16",
                          rule.shape.target, heads, dim, to_string(dtype), most_halving_rows(dim)));
}

ExpressDevice::ExpressDevice(MemoryCounter& counter, const ExpressRule& rule,
                             const ExpressSite& site, cudaStream_t stream)
    : rule_(device_rule(rule)),
      site_(site),
      rows_(counter, {static_cast<size_t>(site.heads), static_cast<size_t>(site.dim)}, stream),
      log_weights_(counter, MemoryKind::kMetadata, {static_cast<size_t>(site.heads), sizeof(float)},
                   stream),
      positions_(counter, MemoryKind::kMetadata, {static_cast<size_t>(site.heads), sizeof(int64_t)},
                 stream) {
  site.check(rule);
  size_t capacity = rule.shape.target + rule.shape.target / 2;
  if (site.coded) capacity = (capacity + kBlockRows - 1) / kBlockRows * kBlockRows;
  log_weights_.renew(capacity);
  positions_.renew(capacity);
  if (site.coded) return;
  rows_.make_room(capacity);
  rows_.add(capacity);  // how many of them are held the state says
}

ExpressArrays ExpressDevice::arrays() const {
  return {rows_.keys(),
          rows_.values(),
          log_weights_.at<float>(),
          positions_.at<int64_t>(),
          nullptr,
          static_cast<int>(positions_.capacity())};
}

ExpressJob ExpressDevice::job(const NewDeviceRows& rows) {
  const ExpressJob job{arrays(), rows, rule_, site_, state_};
  advance(state_, rule_.shape, static_cast<uint64_t>(rows.count));
  return job;
}

void ExpressDevice::take(const NewDeviceRows& rows, cudaStream_t stream) {
  if (rows.count == 0) return;
  ExpressJobs jobs;
  jobs.job[0] = job(rows);
  jobs.count = 1;
  express_take(jobs, stream);
}

DeviceSpan ExpressDevice::span(size_t head) const {
  DeviceSpan span;
  if (!site_.coded)
    span = dense_span(rows_.begin(), head, state_.rows(), static_cast<size_t>(site_.dim));
  span.log_weights = log_weights_.at<float>(head);
  span.ready_rows = span.rows;
  return span;
}

void ExpressDevice::archive(Archive& a, size_t tokens, cudaStream_t stream) {
  // How many rows stand where follows from how many came.
  uint64_t seen = state_.seen;
  a.number(seen, uint64_t{tokens}, "more rows than tokens");
  if (a.loads()) advance(state_, rule_.shape, seen);
  const size_t rows = state_.rows();
  if (!site_.coded)
    archive_rows(a, rows_.begin(), std::vector<size_t>(static_cast<size_t>(site_.heads), rows),
                 {static_cast<size_t>(site_.dim), site_.dtype, stream});
  archive_finite(a, log_weights_.runs(rows), DType::kF32, stream);
  archive_numbers(a, positions_.runs(rows), int64_t{0}, static_cast<int64_t>(tokens) - 1, stream);
}

size_t ExpressDevice::allocated_bytes() const {
  return rows_.allocated_bytes() + log_weights_.allocated_bytes() + positions_.allocated_bytes();
}

}  // namespace pith::cuda
