#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "methods/express/prefill_plan.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// Where the lists of one phase lie.
struct PhaseLists {
  uint64_t tau = 1, stratum = 1;
  int levels = 0;       // J
  int bucket = 0;       // B_0
  int coreset = 0;      // x survivors of the last phase, then 3 x rows of level J
  std::vector<int> at;  // [J + 1] of each level
  int64_t first = 0;    // stream rows before the phase
};

class Planner {
 public:
  Planner(const ExpressRule& rule, const ExpressPrefillShape& shape)
      : rule_(rule), shape_(shape), target_(static_cast<int>(rule.shape.target)) {}

  ExpressPlan run() {
    const int body = std::max(0, shape_.tokens - shape_.sink - shape_.window);
    plan_exact(body);
    for (int64_t first = target_; first < body; first *= 4) plan_phase(first, body);
    plan_chunks();
    plan_final(body);
    return std::move(plan_);
  }

 private:
  int reserve(int64_t rows) {
    const int at = plan_.pool;
    plan_.pool += static_cast<int>(rows);
    return at;
  }

  /// The sink and the rows of weight 1.
  void plan_exact(int body) {
    const int sink = std::min(shape_.sink, shape_.tokens);
    ExpressPhase phase;
    sink_at_ = reserve(sink);
    phase.picks.push_back({sink_at_, 0, 1, 1, sink});
    PhaseLists lists;
    const int rows = std::min(body, target_);
    lists.coreset = reserve(rows);
    phase.picks.push_back({lists.coreset, shape_.sink, 1, 1, rows});
    plan_.phases.push_back(std::move(phase));
    lists_.push_back(lists);
  }

  /// Rows from `first` (all that a full coreset stands for) on: three blocks at most.
  void plan_phase(int64_t first, int64_t body) {
    ExpressPhase phase;
    PhaseLists lists;
    const int quarter = target_ / 4;
    const PhaseLists& before = lists_.back();
    lists.tau = 4 * before.tau;
    const uint64_t ratio = rule_.shape.ratio(lists.tau);
    lists.stratum = lists.tau / ratio;
    lists.levels = static_cast<int>(log2_of(ratio));
    lists.bucket = target_ / static_cast<int>(ratio);
    lists.first = first;
    const int64_t rows = std::min<int64_t>(body - first, 3 * first) / lists.stratum;
    const int half = reserve(target_ / 2);
    lists.coreset = reserve(target_);
    int64_t level_rows = rows;
    for (int l = 0; l < lists.levels; ++l, level_rows /= 2) lists.at.push_back(reserve(level_rows));
    lists.at.push_back(lists.coreset + quarter);
    const auto stratum = static_cast<int32_t>(lists.stratum);
    phase.picks.push_back({lists.at[0], static_cast<int32_t>(shape_.sink + first), stratum, stratum,
                           static_cast<int32_t>(rows)});
    level_rows = rows;
    for (int l = 0; l < lists.levels; ++l) {
      const int size = lists.bucket << l, groups = static_cast<int>(level_rows / size);
      if (groups == 0) break;
      phase.halvings.push_back(
          {lists.at[l], lists.at[l + 1], size, groups, log2_of(lists.stratum << l)});
      level_rows = int64_t{groups} * size / 2;
    }
    phase.halvings.push_back({before.coreset, half, target_, 1, log2_of(before.tau)});
    phase.halvings.push_back({half, lists.coreset, target_ / 2, 1, log2_of(2 * before.tau)});
    plan_.phases.push_back(std::move(phase));
    lists_.push_back(std::move(lists));
  }

  size_t phase_of(int64_t body) const {
    size_t p = 0;
    while (p + 1 < lists_.size() && body > lists_[p + 1].first) ++p;
    return p;
  }
  void add_segment(int at, int64_t count, uint64_t weight) {
    if (count == 0) return;
    const auto log_weight = static_cast<float>(std::log(static_cast<double>(weight)));
    plan_.segments.push_back({at, static_cast<int>(count), rule_.weight_exponent * log_weight});
  }

  /// The coreset after `body` rows, in the order of a store; what stands where goes to `state`.
  void add_snapshot(int64_t body, ExpressState& state) {
    const PhaseLists& lists = lists_[phase_of(body)];
    state = {};
    state.seen = body;
    state.tau = lists.tau;
    if (lists.tau == 1) {
      state.coreset = static_cast<uint32_t>(body);
      add_segment(lists.coreset, body, 1);
      return;
    }
    const int64_t inside = body - lists.first, stratum = static_cast<int64_t>(lists.stratum);
    std::vector<int64_t> arrived(lists.levels + 1);
    arrived[0] = inside / stratum;
    for (int l = 0; l < lists.levels; ++l) {
      const int64_t size = int64_t{lists.bucket} << l;
      arrived[l + 1] = arrived[l] / size * size / 2;
      state.levels[l] = static_cast<uint32_t>(arrived[l] % size);
    }
    const int64_t quarter = target_ / 4, done = arrived[lists.levels];
    state.coreset = static_cast<uint32_t>(quarter + done / quarter * quarter);
    state.levels[lists.levels] = static_cast<uint32_t>(done % quarter);
    add_segment(lists.coreset, quarter + done, lists.tau);
    for (int l = lists.levels - 1; l >= 0; --l) {
      const int64_t waiting = state.levels[l];
      add_segment(lists.at[l] + static_cast<int>(arrived[l] - waiting), waiting,
                  lists.stratum << l);
    }
    state.stratum = inside % stratum;
    if (state.stratum == 0) return;
    const int at = reserve(1);
    plan_.partial.push_back({at, static_cast<int32_t>(shape_.sink + body - state.stratum), 1,
                             static_cast<int32_t>(state.stratum), 1});
    add_segment(at, 1, state.stratum);
  }

  void plan_chunks() {
    const auto add = [&](int first, int last, int body) {
      PrefillChunk chunk;
      chunk.first_query = first;
      chunk.queries = last - first;
      chunk.first_segment = static_cast<int>(plan_.segments.size());
      size_t phase = 0;
      if (body > 0) {
        ExpressState state;
        add_segment(sink_at_, shape_.sink, 1);
        add_snapshot(body, state);
        phase = phase_of(body);
        chunk.exact_from = shape_.sink + body;
      }
      chunk.segments = static_cast<int>(plan_.segments.size()) - chunk.first_segment;
      int rows = last - chunk.exact_from;
      for (int s = chunk.first_segment; s < chunk.first_segment + chunk.segments; ++s)
        rows += plan_.segments[s].count;
      plan_.most_rows = std::max(plan_.most_rows, rows);
      plan_.most_queries = std::max(plan_.most_queries, chunk.queries);
      plan_.most_segments = std::max(plan_.most_segments, chunk.segments);
      ExpressPhase& of = plan_.phases[phase];
      if (of.chunks++ == 0) of.first_chunk = static_cast<int>(plan_.chunks.size());
      plan_.chunks.push_back(chunk);
    };
    const int sink = std::min(shape_.sink, shape_.tokens);
    for (int first = 0; first < sink; first += shape_.chunk)
      add(first, std::min(sink, first + shape_.chunk), 0);
    for (int first = sink; first < shape_.tokens; first += shape_.chunk)
      add(first, std::min(shape_.tokens, first + shape_.chunk),
          std::max(0, first - sink - shape_.window));
  }

  void plan_final(int body) {
    plan_.first_final = static_cast<int>(plan_.segments.size());
    if (body > 0) add_snapshot(body, plan_.state);
    plan_.finals = static_cast<int>(plan_.segments.size()) - plan_.first_final;
  }

  const ExpressRule& rule_;
  const ExpressPrefillShape& shape_;
  int target_, sink_at_ = 0;
  std::vector<PhaseLists> lists_;
  ExpressPlan plan_;
};

}  // namespace

void ExpressPrefillShape::check() const {
  if (tokens > 0 && sink >= 0 && window >= 0 && chunk > 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("express prefill was asked for {} tokens in chunks of {} with a sink of "
                          "{} and a window of {}; it takes at least one token a chunk",
                          tokens, chunk, sink, window));
}

ExpressPlan plan_express(const ExpressRule& rule, const ExpressPrefillShape& shape) {
  shape.check();
  return Planner(rule, shape).run();
}

}  // namespace pith::cuda
