// Express as the body of a layer on the GPU. The device keeps the stream; the host knows from the
// number of rows alone how many stand where.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "attend/cuda/device_codec.h"
#include "attend/cuda/device_selector.h"
#include "methods/express/express_cuda.h"

namespace pith::cuda {
namespace {

class ExpressBody final : public DeviceBody {
 public:
  ExpressBody(const ExpressRule& rule, const ExpressSite& place, const BodySite& site)
      : rule_(rule), place_(place), site_(site), device_(*site.memory, rule, place, site.stream) {}
  ExpressBody(const ExpressBody& o) : ExpressBody(o.rule_, o.place_, o.site_) {
    device_.copy(o.device_, site_.stream);
    state_ = o.state_;
  }

  std::unique_ptr<DeviceBody> clone() const override {
    return std::make_unique<ExpressBody>(*this);
  }
  std::string kind() const override {
    const HalvingRule& h = rule_.halving;
    return fmt::format("express {} {} {} {} {} {} {} {}", rule_.shape.target, rule_.shape.inflation,
                       h.balance, h.centre, h.temperature, h.value_constant, rule_.weight_exponent,
                       place_.first_position);
  }
  size_t rows() const override { return state_.rows(); }
  void announce(size_t rows) override { advance(state_, rule_.shape, rows); }
  void take(std::span<const BodyMove> moves) const override;
  /// A halving is one block: many layers fill the card.
  size_t layers_together() const override {
    const auto heads = static_cast<size_t>(place_.heads);
    const auto all = static_cast<size_t>(device_info().multiprocessors);
    return std::clamp<size_t>(all / heads, 1, kMostExpressJobs);
  }

  DeviceSpan span(size_t head, size_t /*which*/) const override {
    const ExpressArrays& a = device_.arrays();
    const size_t at = head * static_cast<size_t>(a.capacity);
    DeviceSpan span;
    span.keys = static_cast<const std::byte*>(a.k) + at * site_.dim * 2;
    span.values = static_cast<const std::byte*>(a.v) + at * site_.dim * 2;
    span.log_weights = a.log_weights + at;
    span.rows = static_cast<int32_t>(rows());
    span.row_stride = static_cast<int32_t>(site_.dim);
    return span;
  }
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    decode_dense(call, scratch, site_.stream);
  }
  void attend_chunk(CausalCall& call, const std::function<RowTarget()>&) const override {
    const ExpressArrays& a = device_.arrays();
    call.span = {a.k,
                 a.v,
                 static_cast<size_t>(a.capacity) * site_.dim,
                 static_cast<int64_t>(rows()),
                 -1,
                 0,
                 a.log_weights,
                 static_cast<size_t>(a.capacity)};
    cuda::attend_chunk(call, site_.stream);
    call.first = false;
  }

  bool keeps_positions() const override { return true; }
  void add_rows(pith::HeadRows& out, size_t head, int64_t first_position) const override;
  void add_to(Ledger& ledger) const override {
    const size_t rows = site_.heads * this->rows();
    const size_t payload = rows * site_.dim * 4;
    const size_t metadata = rows * (sizeof(float) + sizeof(int64_t)) +
                            site_.heads * (sizeof(DeviceExpressState) + sizeof(DeviceSpan));
    ledger.payload += payload;
    ledger.metadata += metadata;
    ledger.slack += device_.allocated_bytes() - payload - metadata;
    ledger.rows_kept += rows;
  }

 private:
  ExpressRule rule_;
  ExpressSite place_;
  BodySite site_;
  ExpressDevice device_;
  ExpressState state_;
};

void ExpressBody::take(std::span<const BodyMove> moves) const {
  ExpressJobs jobs;
  for (size_t i = 0; i < moves.size(); ++i) {
    const auto& body = static_cast<const ExpressBody&>(*moves[i].body);
    const RowTarget& from = moves[i].from;
    const size_t at = static_cast<size_t>(from.row) * site_.dim * 2;
    jobs.job[jobs.count++] = {
        body.device_.arrays(),
        {static_cast<const std::byte*>(from.k) + at, static_cast<const std::byte*>(from.v) + at,
         from.head_stride, site_.dim, static_cast<int>(moves[i].rows),
         static_cast<int32_t>(moves[i].positions_stride), moves[i].positions, moves[i].position},
        body.place_.layer};
    if (jobs.count < kMostExpressJobs && i + 1 < moves.size()) continue;
    express_take(device_rule(rule_), place_, jobs, site_.stream);
    jobs.count = 0;
  }
}

void ExpressBody::add_rows(pith::HeadRows& out, size_t head, int64_t) const {
  const ExpressArrays& a = device_.arrays();
  const size_t first = out.positions.size(), count = rows();
  const size_t at = head * static_cast<size_t>(a.capacity);
  out.positions.resize(first + count);
  out.log_weights.resize(first + count);
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, site_.stream), "rows held");
  };
  copy(out.positions.data() + first, a.positions + at, count * sizeof(int64_t));
  copy(out.log_weights.data() + first, a.log_weights + at, count * sizeof(float));
  check(cudaStreamSynchronize(site_.stream), "rows held");
}

class ExpressMaker final : public BodyMaker {
 public:
  ExpressMaker(const ExpressRule& rule, const SelectorSite& site) : rule_(rule), site_(site) {
    if (rule.shape.target > kMostHalvingRows) {
      refuse_on_gpu(fmt::format("express(s={})", rule.shape.target),
                    fmt::format("s is at most {} there", kMostHalvingRows));
    }
    place(DType::kF16).check(rule);
  }
  std::unique_ptr<DeviceBody> make(const BodySite& site) const override {
    return std::make_unique<ExpressBody>(rule_, place(site.dtype), site);
  }

 private:
  ExpressSite place(DType dtype) const {
    ExpressSite place;
    place.dtype = dtype;
    place.dim = static_cast<int>(site_.head_dim);
    place.heads = static_cast<int>(site_.heads);
    place.first_position = site_.sink;
    place.seed = site_.seed;
    place.layer = site_.layer;
    return place;
  }

  ExpressRule rule_;
  SelectorSite site_;
};

}  // namespace

SelectorOnGpu make_express_on_gpu(const SelectorPlace& place) {
  return {std::make_shared<ExpressMaker>(express_rule(place), place.site), nullptr,
          heavy_sizes(place.parameters, place.budget)};
}

}  // namespace pith::cuda
