// uniform(rate=...) as the body of a layer on the GPU. Whether a row stays is a function of its
// position alone: the host draws as the device does, and so knows each head's number of rows.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "append/protected_rows.h"
#include "core/philox.h"
#include "methods/baselines/uniform_cuda.h"

namespace pith::cuda {
namespace {

struct RateRule {
  double rate = 1;
  float log_weight = 0;
  uint64_t seed = 0;
  uint32_t layer = 0, first_head = 0;
};

class RateBody final : public DeviceBody {
 public:
  RateBody(const RateRule& rule, const BodySite& site)
      : rule_(rule),
        site_(site),
        k_(*site.memory, MemoryKind::kPayload),
        v_(*site.memory, MemoryKind::kPayload),
        positions_(*site.memory, MemoryKind::kMetadata),
        on_device_(*site.memory, MemoryKind::kMetadata),
        counts_(site.heads, 0),
        next_(site.position) {
    on_device_.allocate(site.heads * sizeof(int32_t), site.stream);
    check(cudaMemsetAsync(on_device_.data(), 0, on_device_.size(), site.stream), "a sample");
  }
  RateBody(const RateBody& o) : RateBody(o.rule_, o.site_) {
    check(cudaMemcpyAsync(on_device_.data(), o.on_device_.data(), on_device_.size(),
                          cudaMemcpyDeviceToDevice, site_.stream),
          "a copy of the cache");
    if (o.capacity_ > 0) move_to(o.capacity_, o);
    counts_ = o.counts_;
    protected_ = o.protected_;
    next_ = o.next_;
  }

  std::unique_ptr<DeviceBody> clone() const override { return std::make_unique<RateBody>(*this); }
  std::string kind() const override { return fmt::format("uniform by rate {}", rule_.rate); }
  size_t rows() const override { return *std::ranges::max_element(counts_); }
  void announce(size_t rows) override;
  void protect(std::span<const TokenRange> ranges) override {
    protected_ = {};
    protected_.add(ranges, 0, 0);
  }
  void take(std::span<const BodyMove> moves) const override;

  DeviceSpan span(size_t head, size_t /*which*/) const override {
    const size_t at = head * capacity_ * site_.dim * 2;
    DeviceSpan span;
    span.rows = static_cast<int32_t>(counts_[head]);
    span.row_stride = static_cast<int32_t>(site_.dim);
    span.log_weight = rule_.log_weight;
    if (capacity_ == 0) return span;
    span.keys = static_cast<const std::byte*>(k_.data()) + at;
    span.values = static_cast<const std::byte*>(v_.data()) + at;
    return span;
  }
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    decode_dense(call, scratch, site_.stream);
  }
  void attend_chunk(CausalCall& call, const std::function<RowTarget()>&) const override {
    const float given = call.span.log_weight;
    call.span = {k_.data(),
                 v_.data(),
                 capacity_ * site_.dim,
                 static_cast<int64_t>(rows()),
                 -1,
                 given + rule_.log_weight};
    call.span.head_rows = sample().counts;
    cuda::attend_chunk(call, site_.stream);
    call.first = false;
  }

  bool keeps_positions() const override { return true; }
  void add_rows(pith::HeadRows& out, size_t head, int64_t first_position) const override;
  void add_to(Ledger& ledger) const override;

 private:
  RateSample sample() const {
    return {k_.data(), v_.data(), static_cast<int32_t*>(positions_.data()),
            static_cast<int32_t*>(on_device_.data()), static_cast<int>(capacity_)};
  }
  void move_to(size_t capacity, const RateBody& from);

  RateRule rule_;
  BodySite site_;
  DeviceBuffer k_, v_;          // [G, capacity, D]
  DeviceBuffer positions_;      // [G, capacity]
  DeviceBuffer on_device_;      // [G] counts as the kernels keep them
  std::vector<size_t> counts_;  // [G], with what was announced
  ProtectedRows protected_;     // behind the sink
  int64_t next_ = 0;            // of the next row, numbered without the protected ones
  size_t capacity_ = 0;         // of a head
};

void RateBody::announce(size_t rows) {
  std::vector<size_t> after = counts_;
  std::vector<Philox> random;
  for (size_t g = 0; g < site_.heads; ++g) {
    random.emplace_back(rule_.seed, rule_.layer, rule_.first_head + static_cast<uint32_t>(g));
  }
  for (size_t i = 0; i < rows; ++i) {
    const auto position = static_cast<uint64_t>(protected_.position_of(next_++));
    for (size_t g = 0; g < site_.heads; ++g) {
      after[g] += random[g].uniform(position) < rule_.rate;
    }
  }
  // Rows held move before the new ones come: their number is still the old.
  constexpr size_t kPiece = 64;
  const size_t needed = *std::ranges::max_element(after);
  if (needed > capacity_) {
    const size_t grown = std::max(needed, capacity_ + capacity_ / 8);
    move_to((grown + kPiece - 1) / kPiece * kPiece, *this);
  }
  counts_ = std::move(after);
}

void RateBody::move_to(size_t capacity, const RateBody& from) {
  const size_t held = from.rows();
  const auto move = [&](DeviceBuffer& to, const DeviceBuffer& old, MemoryKind kind, size_t bytes) {
    DeviceBuffer fresh(*site_.memory, kind);
    fresh.allocate(site_.heads * capacity * bytes, site_.stream);
    if (held > 0) {
      check(cudaMemcpy2DAsync(fresh.data(), capacity * bytes, old.data(), from.capacity_ * bytes,
                              held * bytes, site_.heads, cudaMemcpyDeviceToDevice, site_.stream),
            "the growth of the cache");
    }
    to = std::move(fresh);
  };
  move(k_, from.k_, MemoryKind::kPayload, site_.dim * 2);
  move(v_, from.v_, MemoryKind::kPayload, site_.dim * 2);
  move(positions_, from.positions_, MemoryKind::kMetadata, sizeof(int32_t));
  capacity_ = capacity;
}

void RateBody::take(std::span<const BodyMove> moves) const {
  const RateDraw draw{rule_.rate, rule_.seed, static_cast<int>(site_.heads),
                      static_cast<int>(site_.dim)};
  RateJobs jobs;
  for (size_t i = 0; i < moves.size(); ++i) {
    const BodyMove& move = moves[i];
    const auto& body = static_cast<const RateBody&>(*move.body);
    const size_t at = static_cast<size_t>(move.from.row) * site_.dim * 2;
    RateJob& job = jobs.job[jobs.count++];
    job = {body.sample(), static_cast<const std::byte*>(move.from.k) + at,
           static_cast<const std::byte*>(move.from.v) + at, move.from.head_stride,
           static_cast<int>(move.rows)};
    job.positions_stride = static_cast<int32_t>(move.positions_stride);
    job.positions = move.positions;
    job.position = move.position;
    job.layer = body.rule_.layer;
    job.first_head = body.rule_.first_head;
    if (jobs.count < kMostRateJobs && i + 1 < moves.size()) continue;
    take_by_rate(draw, jobs, site_.stream);
    jobs.count = 0;
  }
}

void RateBody::add_rows(pith::HeadRows& out, size_t head, int64_t) const {
  std::vector<int32_t> positions(counts_[head]);
  if (positions.empty()) return;
  check(cudaMemcpyAsync(positions.data(), sample().positions + head * capacity_,
                        positions.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, site_.stream),
        "rows held");
  check(cudaStreamSynchronize(site_.stream), "rows held");
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  out.log_weights.insert(out.log_weights.end(), positions.size(), rule_.log_weight);
}

void RateBody::add_to(Ledger& ledger) const {
  size_t rows = 0;
  for (const size_t count : counts_) rows += count;
  const size_t payload = rows * site_.dim * 4;
  ledger.payload += payload;
  ledger.metadata += rows * sizeof(int32_t) + on_device_.size();
  ledger.slack += k_.size() + v_.size() - payload + positions_.size() - rows * sizeof(int32_t);
  ledger.rows_kept += rows;
}

class RateMaker final : public BodyMaker {
 public:
  explicit RateMaker(const RateRule& rule) : rule_(rule) {}
  std::unique_ptr<DeviceBody> make(const BodySite& site) const override {
    return std::make_unique<RateBody>(rule_, site);
  }

 private:
  RateRule rule_;
};

}  // namespace

std::shared_ptr<const BodyMaker> make_rate_body(const SelectorPlace& p) {
  const double rate = p.parameters.number("rate", 1e-6, 1);
  const bool weights = p.parameters.flag("weights");
  return std::make_shared<RateMaker>(RateRule{rate,
                                              weights ? static_cast<float>(-std::log(rate)) : 0,
                                              p.site.seed, p.site.layer, p.site.first_head});
}

}  // namespace pith::cuda
