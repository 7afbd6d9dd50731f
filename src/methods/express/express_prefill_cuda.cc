#include <algorithm>

#include "methods/express/express_prefill.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

template <class T>
DeviceArray<T> to_device(MemoryCounter& counter, const std::vector<T>& host, cudaStream_t stream) {
  DeviceArray<T> out(counter, MemoryKind::kScratch, std::max<size_t>(host.size(), 1), stream);
  if (!host.empty()) out.upload(host.data(), host.size(), stream);
  return out;
}

}  // namespace

ExpressPrefill::ExpressPrefill(MemoryCounter& counter, const ExpressRule& rule,
                               const ExpressSite& site, const ExpressPrefillShape& shape,
                               cudaStream_t stream)
    : rule_(rule), site_(site) {
  site.check(rule);
  plan_ = plan_express(rule, shape);
  pool_ = DeviceArray<int32_t>(counter, MemoryKind::kScratch,
                               static_cast<size_t>(site.heads) * plan_.pool, stream);
  partial_ = to_device(counter, plan_.partial, stream);
  chunks_ = to_device(counter, plan_.chunks, stream);
  segments_ = to_device(counter, plan_.segments, stream);
  size_t scratch = 0;
  for (const ExpressPhase& phase : plan_.phases)
    for (const HalvingStep& step : phase.halvings)
      scratch = std::max(scratch, halving_call(step).wide_scratch());
  scratch_ =
      DeviceArray<float>(counter, MemoryKind::kScratch, std::max<size_t>(scratch, 1), stream);
  int least = 0, most = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &most), "stream priorities");
  check(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, most), "stream");
  ready_.resize(plan_.phases.size() + 1);
  for (cudaEvent_t& e : ready_)
    check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "event");
}

ExpressPrefill::~ExpressPrefill() {
  for (cudaEvent_t e : ready_)
    if (e) cudaEventDestroy(e);
  if (side_) cudaStreamDestroy(side_);
}

HalvingCall ExpressPrefill::halving_call(const HalvingStep& step) const {
  HalvingCall call;
  call.dtype = site_.dtype;
  call.dim = site_.dim;
  call.rows = pool_.data() + step.from;
  call.kept = pool_.data() + step.to;
  call.rows_stride = call.kept_stride = plan_.pool;
  call.heads = site_.heads;
  call.groups = step.groups;
  call.size = step.size;
  call.first_position = site_.first_position;
  call.seed = site_.seed;
  call.layer = site_.layer;
  call.first_head = site_.first_head;
  call.tag = step.tag;
  call.scratch = scratch_.data();
  call.scratch_size = scratch_.size();
  return call;
}

void ExpressPrefill::build(const ExpressPhase& phase, const ExpressPrefillRows& rows) {
  const PickSource source{site_.seed, site_.layer, site_.first_head, site_.first_position};
  for (const PickJob& job : phase.picks)
    if (job.count > 0) pick_rows(job, source, pool_.data(), plan_.pool, site_.heads, side_);
  for (const HalvingStep& step : phase.halvings) {
    HalvingCall call = halving_call(step);
    call.k = rows.k.data;
    call.v = rows.v.data;
    call.head_stride = rows.k.head_stride;
    call.row_stride = rows.k.row_stride;
    halve_batch(device_rule(rule_.halving), call, side_);
  }
}

void ExpressPrefill::run(const ExpressPrefillRows& rows, cudaStream_t stream) {
  if (rows.k.row_stride != rows.v.row_stride || rows.k.head_stride != rows.v.head_stride)
    throw Error(ErrorCode::kInvalidArgument,
                "express prefill was given keys and values of different strides; it takes equal "
                "ones: store both in one layout");
  const PickSource source{site_.seed, site_.layer, site_.first_head, site_.first_position};
  check(cudaEventRecord(ready_.back(), stream), "event");
  check(cudaStreamWaitEvent(side_, ready_.back(), 0), "event wait");
  if (!plan_.partial.empty())
    pick_partial_rows(partial_.data(), static_cast<int>(plan_.partial.size()), source, pool_.data(),
                      plan_.pool, site_.heads, side_);
  for (size_t p = 0; p < plan_.phases.size(); ++p) {
    build(plan_.phases[p], rows);
    check(cudaEventRecord(ready_[p], side_), "event");
  }
  PrefillCall call;
  call.dtype = site_.dtype;
  call.query_heads = rows.query_heads;
  call.kv_heads = site_.heads;
  call.head_dim = site_.dim;
  call.scale = rows.scale;
  call.q = rows.q;
  call.k = rows.k;
  call.v = rows.v;
  call.out = rows.out;
  call.segments = segments_.data();
  call.pool = pool_.data();
  call.pool_stride = plan_.pool;
  call.most_queries = plan_.most_queries;
  call.most_rows = plan_.most_rows;
  call.most_segments = plan_.most_segments;
  for (size_t p = 0; p < plan_.phases.size(); ++p) {
    const ExpressPhase& phase = plan_.phases[p];
    check(cudaStreamWaitEvent(stream, ready_[p], 0), "event wait");
    if (phase.chunks == 0) continue;
    call.chunks = chunks_.data() + phase.first_chunk;
    call.chunk_count = phase.chunks;
    prefill_chunks(call, stream);
  }
}

void ExpressPrefill::store(ExpressDevice& device, const ExpressPrefillRows& rows,
                           cudaStream_t stream) const {
  StoreJob job;
  job.k = rows.k;
  job.v = rows.v;
  job.segments = segments_.data() + plan_.first_final;
  job.count = plan_.finals;
  job.pool = pool_.data();
  job.pool_stride = plan_.pool;
  job.first_position = site_.first_position;
  store_rows(job, site_, device.arrays(), stream);
  device.set_state(plan_.state);
}

}  // namespace pith::cuda
