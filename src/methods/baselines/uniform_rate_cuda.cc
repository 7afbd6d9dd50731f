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
      positions_(*site.memory, MemoryKind::kMetadata, {site.heads, sizeof(int32_t)}, site.stream),
      on_device_(*site.memory, MemoryKind::kMetadata, {1, sizeof(int32_t), true}, site.stream),
      counts_(site.heads),
      next_(site.position) {
  on_device_.renew(site.heads);
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
  const size_t room = positions_.capacity();
  if (needed > room) positions_.renew(grown(needed, room), {0, most()});
  counts_.set(std::move(after));
}

RateJob RateDrawn::job(const BodyMove& move, RateSample to) const {
  const size_t at = static_cast<size_t>(move.from.row) * site_.dim * 2;
  to.positions = positions_.at<int32_t>();
  to.positions_stride = static_cast<int>(positions_.capacity());
  to.counts = on_device_.at<int32_t>();
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
  const auto positions = fetched(positions_.at<int32_t>(head), counts()[head], site_.stream);
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  out.log_weights.insert(out.log_weights.end(), positions.size(), rule_.log_weight);
}

void RateDrawn::add_to(Ledger& ledger) const {
  const size_t used = total() * sizeof(int32_t);
  ledger.metadata += used + on_device_.allocated_bytes();
  ledger.slack += positions_.allocated_bytes() - used;
  ledger.rows_kept += total();
}

void RateDrawn::archive(Archive& a, size_t tokens) {
  std::vector<size_t> each = counts();  // the device's, if only it knows
  a.number(next_, site_.position + static_cast<int64_t>(tokens), "more rows than tokens");
  a.need(next_ >= site_.position, "a sample that begins in the sink");
  for (size_t& count : each) a.number(count, tokens, "more rows than tokens");
  a.check_left(*std::ranges::max_element(each), sizeof(int32_t));
  if (a.loads()) {
    counts_.set(each);
    if (most() > 0) positions_.renew(grown(most(), 0));
    put(on_device_.at<int32_t>(), {each.begin(), each.end()}, site_.stream);
  }
  for (size_t g = 0; g < site_.heads; ++g) {
    archive_numbers(a, {positions_.at(g), each[g] * sizeof(int32_t)}, 0,
                    static_cast<int32_t>(tokens) - 1, site_.stream);
  }
}

}  // namespace pith::cuda
