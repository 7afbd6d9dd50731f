#include "cache/pass_room.h"

#include <algorithm>
#include <cmath>

#include "core/allocation.h"
#include "select/halving.h"

namespace pith {
namespace {

constexpr size_t kFloat = sizeof(float);

size_t times(size_t count, double bytes) {
  return static_cast<size_t>(std::ceil(static_cast<double>(count) * bytes));
}

/// Bytes of rows of a cohort after `tokens` tokens.
size_t held_after(const CohortPolicy& c, size_t tokens, const ProtectedRows& protect) {
  Ledger most;
  c.estimate(most, tokens, protect);
  return most.payload + most.metadata + most.slack;
}

/// The most rows of a head that leave its window together.
size_t leaving(const CohortPolicy& c, size_t tokens) {
  return std::min(tokens + c.schedule.block, std::max(kStagedRows, c.schedule.block));
}

/// Bytes that the heads of a cohort take while their rows change.
size_t under_way(const CohortPolicy& c, const PassTokens& pass, bool gathers, size_t workers,
                 size_t held) {
  const size_t dim = c.site.head_dim, heads = c.heads.size();
  // Rows are there for a moment before those that must go are chosen.
  const size_t rows = gathers ? pass.tokens + leaving(c, pass.tokens) : leaving(c, pass.at_once);
  const auto codes = [&](const SideChoice& side) {
    return side.sizes->most_bytes(rows, dim, true);
  };
  const double side = c.side_bytes + RowStore::kSides * kFloat;
  const double of_head =
      std::max(codes(c.keys) + codes(c.values), static_cast<double>(rows * c.exact_row_bytes())) +
      static_cast<double>(rows) * side;
  const size_t teams = std::min(workers, heads);
  size_t bytes = teams * std::min(kMapFrom, held / heads);  // copied as they grow
  if (gathers) bytes += held;                               // HeadGroup::end_prefill copies them
  if (!c.selector.needs.all()) {
    const size_t buffers = RowStore::buffers(*c.keys.sizes, *c.values.sizes);
    bytes += most_grown_bytes(times(heads, of_head), heads * c.selector.needs.stores * buffers);
    // Heavy rows that leave, as f32.
    if (c.selector.needs.mass || c.selector.needs.evicts > 0)
      bytes += heads * 2 * grown_bytes(rows * dim * kFloat);
    if (c.selector.needs.halves > 0) bytes += teams * halving_scratch(c.selector.needs.halves, dim);
  }
  size_t coding = 0;
  for (const Side s : {Side::kKeys, Side::kValues}) {
    RowsRequest request{.side = s, .dim = dim, .head = static_cast<uint32_t>(c.heads.back())};
    request.layer = c.site.layer;
    request.model = c.model;
    coding =
        std::max(coding, (s == Side::kKeys ? c.keys : c.values).sizes->coding_bytes(request, rows));
  }
  return bytes + teams * coding;
}

}  // namespace

LayerRoom::LayerRoom(const ResolvedPolicy& policy, const PassTokens& pass, size_t workers)
    : shape_(policy.shape()),
      pass_(pass),
      reads_whole_(policy.prompt() != PromptReading::kChunks && pass.as_prompt),
      gathers_(policy.prompt() == PromptReading::kOnce && pass.as_prompt),
      workers_(workers) {
  attend_.query_heads = static_cast<size_t>(shape_.query_heads);
  attend_.kv_heads = static_cast<size_t>(shape_.kv_heads);
  attend_.head_dim = static_cast<size_t>(shape_.head_dim);
  attend_.tokens = pass.at_once;
  attend_.before = reads_whole_ ? pass.tokens - std::min(pass.tokens, pass.at_once) : 0;
}

void LayerRoom::add(const CohortPolicy& c, const ProtectedRows& protect, const BodyWidths& widths) {
  const size_t after = pass_.before + pass_.tokens;
  const size_t held = std::max(held_after(c, pass_.before, protect), held_after(c, after, protect));
  held_ += held;
  passing_ = std::max(passing_, under_way(c, pass_, gathers_, workers_, held));
  const size_t dim = c.site.head_dim, way = leaving(c, reads_whole_ ? pass_.tokens : pass_.at_once);
  staged_ = std::max(staged_, 2 * grown_bytes(c.heads.size() * way * dim * kFloat) +
                                  grown_bytes(c.heads.size() * way * kFloat));
  const Occupancy o = occupancy(c.schedule, after);
  const size_t ranges = c.protected_rows(protect).ranges().size();
  attend_.rows =
      std::max(attend_.rows, std::min(after, after - o.body + c.selector.rule->most_rows(o.body) +
                                                 leaving(c, pass_.at_once)));
  // Sink, protected rows, the body's stores, those that are there and those to come, and a ring in
  // two pieces that protected rows cut.
  attend_.spans = std::max(attend_.spans, 4 + widths.stores + c.selector.needs.stores + 3 * ranges);
  attend_.width = std::max(attend_.width, widths.width);
  attend_.prepared = std::max(attend_.prepared, widths.prepared);
  attend_.turned |= widths.turned;
  attend_.mass |= c.selector.needs.mass;
  scales_ |= c.selector.rule->query_factor(static_cast<int64_t>(after)) != 1;
}

size_t LayerRoom::beside() const {
  const size_t queries = attend_.tokens * attend_.query_heads * attend_.head_dim * kFloat;
  const size_t mass = attend_.mass ? attend_.kv_heads * attend_.tokens * kFloat : 0;
  const size_t attends = attend_scratch(attend_, workers_) + (scales_ ? grown_bytes(queries) : 0);
  return grown_bytes(mass) + std::max(attends, staged_);
}

}  // namespace pith
