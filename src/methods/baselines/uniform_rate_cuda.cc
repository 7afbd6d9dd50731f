// Which rows of a layer a sample by rate takes, on both sides.

#include "methods/baselines/uniform_rate_cuda.h"

#include <algorithm>
#include <numeric>

#include "attend/cuda/device_rows.h"
#include "compress/draws.h"
#include "kernels/cuda/device_archive.h"
#include "kernels/cuda/fetched.h"

namespace pith::cuda {
namespace {

constexpr size_t kPiece = 64;  // rows

size_t grown(size_t needed, size_t capacity) {
  return (std::max(needed, capacity + capacity / 8) + kPiece - 1) / kPiece * kPiece;
}

}  // namespace

RateDrawn::RateDrawn(const RateRule& rule, const BodySite& site)
    : rule_(rule),
      site_(site),
      positions_(*site.memory, MemoryKind::kMetadata),
      on_device_(*site.memory, MemoryKind::kMetadata),
      counts_(std::make_unique<ToldNumbers>(site.heads)),
      next_(site.position) {
  on_device_.allocate(site.heads * sizeof(int32_t), site.stream);
  check(cudaMemsetAsync(on_device_.data(), 0, on_device_.size(), site.stream), "a sample");
}

RateDrawn::RateDrawn(const RateDrawn& o) : RateDrawn(o.rule_, BodySite(o.site_)) {
  copy_buffer(on_device_, o.on_device_, site_.stream);
  if (o.capacity_ > 0) grow_positions(o.capacity_, o);
  counts_->set(o.counts());
  protected_ = o.protected_;
  next_ = o.next_;
}

size_t RateDrawn::most() const { return *std::ranges::max_element(counts()); }
size_t RateDrawn::total() const {
  return std::accumulate(counts().begin(), counts().end(), size_t{0});
}

void RateDrawn::protect(std::span<const TokenRange> ranges) {
  protected_ = {};
  protected_.add(ranges, 0, 0);
}

void RateDrawn::announce(size_t rows) {
  std::vector<size_t> after = counts();
  std::vector<Philox> random;
  if (rule_.evicted) {
    for (size_t& most : after) most += rows;
    rows = 0;
  }
  for (size_t g = 0; g < site_.heads; ++g) {
    random.emplace_back(rule_.seed, rule_.layer, rule_.first_head + static_cast<uint32_t>(g));
  }
  for (size_t i = 0; i < rows; ++i) {
    const int64_t position = protected_.position_of(next_++);
    for (size_t g = 0; g < site_.heads; ++g)
      after[g] += stays_by_rate(random[g], position, rule_.rate);
  }
  // Rows held move before the new ones come: their number is still the old.
  const size_t needed = *std::ranges::max_element(after);
  if (needed > capacity_) grow_positions(grown(needed, capacity_), *this);
  counts_->set(std::move(after));
}

void RateDrawn::grow_positions(size_t capacity, const RateDrawn& from) {
  constexpr size_t kBytes = sizeof(int32_t);
  DeviceBuffer fresh(*site_.memory, MemoryKind::kMetadata);
  fresh.allocate(site_.heads * capacity * kBytes, site_.stream);
  if (from.most() > 0) {
    check(cudaMemcpy2DAsync(fresh.data(), capacity * kBytes, from.positions_.data(),
                            from.capacity_ * kBytes, from.most() * kBytes, site_.heads,
                            cudaMemcpyDeviceToDevice, site_.stream),
          "the growth of the cache");
  }
  positions_ = std::move(fresh);
  capacity_ = capacity;
}

RateJob RateDrawn::job(const BodyMove& move, RateSample to) const {
  const size_t at = static_cast<size_t>(move.from.row) * site_.dim * 2;
  to.positions = static_cast<int32_t*>(positions_.data());
  to.positions_stride = static_cast<int>(capacity_);
  to.counts = static_cast<int32_t*>(on_device_.data());
  RateJob job{to, static_cast<const std::byte*>(move.from.k) + at,
              static_cast<const std::byte*>(move.from.v) + at, move.from.head_stride,
              static_cast<int>(move.rows)};
  job.positions_stride = static_cast<int32_t>(move.positions_stride);
  job.positions = move.positions;
  job.position = move.position;
  job.layer = rule_.layer;
  job.first_head = rule_.first_head;
  return job;
}

void RateDrawn::add_rows(HeadRows& out, size_t head) const {
  const auto* first = static_cast<const int32_t*>(positions_.data()) + head * capacity_;
  const auto positions = fetched(first, counts()[head], site_.stream);
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  out.log_weights.insert(out.log_weights.end(), positions.size(), rule_.log_weight);
}

void RateDrawn::add_to(Ledger& ledger) const {
  const size_t used = total() * sizeof(int32_t);
  ledger.metadata += used + on_device_.size();
  ledger.slack += positions_.size() - used;
  ledger.rows_kept += total();
}

void RateDrawn::archive(Archive& a, size_t tokens) {
  std::vector<size_t> each = counts();  // the device's, if only it knows
  a.number(next_, site_.position + static_cast<int64_t>(tokens), "more rows than tokens");
  a.need(next_ >= site_.position, "a sample that begins in the sink");
  for (size_t& count : each) a.number(count, tokens, "more rows than tokens");
  a.check_left(*std::ranges::max_element(each), sizeof(int32_t));
  if (a.loads()) {
    counts_->set(each);
    if (most() > 0) {
      capacity_ = grown(most(), 0);
      positions_.allocate(site_.heads * capacity_ * sizeof(int32_t), site_.stream);
    }
    put(static_cast<int32_t*>(on_device_.data()), {each.begin(), each.end()}, site_.stream);
  }
  for (size_t g = 0; g < site_.heads; ++g) {
    auto* positions = static_cast<int32_t*>(positions_.data()) + g * capacity_;
    archive_numbers(a, {positions, each[g] * sizeof(int32_t)}, 0, static_cast<int32_t>(tokens) - 1,
                    site_.stream);
  }
}

}  // namespace pith::cuda
