#include "plan/plan.h"

#include <algorithm>
#include <utility>

namespace pith {

Plan::Plan(std::shared_ptr<const Rule> rule, const ScheduleShape& shape, size_t most)
    : rule_(std::move(rule)), shape_(shape), most_(most) {}

std::span<const Step> Plan::append(size_t tokens, bool gathers) {
  steps_.clear();
  state_.gathers = gathers;
  for (size_t done = 0; done < tokens;) {
    const ProtectedRows::Run run =
        protected_.run_at(static_cast<int64_t>(state_.tokens), static_cast<int64_t>(tokens - done));
    const auto count = static_cast<size_t>(run.count);
    if (run.is_protected)
      bring(Zone::kProtected, count);
    else
      append_open(count);
    done += count;
  }
  return steps_;
}

std::span<const Step> Plan::end_prompt() {
  steps_.clear();
  rule_->end_prompt(state_, steps_);
  state_.gathers = false;
  return steps_;
}

void Plan::replay(uint64_t tokens, std::span<const uint64_t> prompt_ends,
                  const std::function<void(const Step&)>& seen,
                  std::span<const uint64_t> gathered) {
  const auto show = [&](std::span<const Step> steps) {
    if (seen) std::ranges::for_each(steps, seen);
  };
  constexpr uint64_t kPiece = 4096;  // bounds the steps made at once
  for (size_t i = 0; state_.tokens < tokens || i < prompt_ends.size();) {
    const uint64_t end = i < prompt_ends.size() ? prompt_ends[i] : tokens;
    const uint64_t begin = i < gathered.size() ? gathered[i] : end;
    while (state_.tokens < end) {
      const bool gathers = state_.tokens >= begin;
      show(append(std::min(kPiece, (gathers ? end : begin) - state_.tokens), gathers));
    }
    if (i++ < prompt_ends.size()) show(end_prompt());
  }
}

void Plan::append_open(size_t count) {
  for (size_t done = 0; done < count;) {
    const Move m = next_move(shape_, state_.open, count - done, most_);
    const bool leaves_first = m.to_body > 0 && m.to_body <= state_.at(Zone::kWindow);
    if (leaves_first) leave(m.to_body);
    if (m.to_sink > 0) bring(Zone::kSink, m.to_sink);
    if (m.to_ring > 0) bring(Zone::kWindow, m.to_ring);
    if (m.straight > 0) bring(Zone::kLeaving, m.straight);
    if (m.to_body > 0 && !leaves_first) leave(m.to_body);
    state_.open += m.taken();
    done += m.taken();
  }
}

void Plan::bring(Zone zone, size_t count) {
  const auto rows = static_cast<uint32_t>(count);
  steps_.push_back({.op = Op::kAppend, .to = zone, .rows = rows});
  state_.tokens += count;
  if (zone == Zone::kLeaving)
    rule_->feed(state_, zone, rows, steps_);
  else
    state_.at(zone) += rows;
}

void Plan::leave(size_t count) {
  const auto rows = static_cast<uint32_t>(count);
  steps_.push_back({.op = Op::kMove, .from = Zone::kWindow, .to = Zone::kLeaving, .rows = rows});
  state_.at(Zone::kWindow) -= rows;
  rule_->feed(state_, Zone::kLeaving, rows, steps_);
}

}  // namespace pith
