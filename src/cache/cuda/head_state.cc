#include "cache/cuda/head_state.h"

#include <algorithm>

#include "cache/cuda/dense_parts.h"
#include "cache/cuda/run_codes.h"
#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {
namespace {

/// Checked: where rows that the plan keeps lie. How many of them are in the run, dense.
/// A selection that waits for others leaves up to 31 rows more than the plan has.
size_t archive_run(Archive& a, HeadStores& s) {
  const PlanState& state = s.plan.state();
  const size_t late = s.chooser->any_time() && !s.layer.selector.heavy ? kBlockRows - 1 : 0;
  const size_t body = s.body ? 0 : state.body();
  a.need(s.run.heavy == state.at(Zone::kHeavy) && s.run.evicted == 0 && s.run.body >= body &&
             s.run.body <= body + late,
         "another number of rows than the policy keeps");
  a.need(!s.ragged || s.shared() == s.run.selected,
         "another number of shared rows than were selected");
  a.need(s.zones().packs() ? s.packed() <= s.between()
                           : s.settled() <= s.run.body && s.settled() <= s.chooser->settled(state),
         "more codes than rows");
  a.need(
      s.settled() == 0 || (!s.run.weighted.empty() && s.run.weighted.front().rows >= s.settled()),
      "codes of more than one weight");
  size_t known = a.loads() ? 0 : s.known();
  a.number(known, s.layer.straight ? 0 : s.between() - s.settled(), "more positions than rows");
  s.sides.name(s.settled() + known);
  const size_t dense = s.in_sink() + s.between() - s.coded() + state.at(Zone::kWindow);
  a.need(a.loads() || s.rows.rows() == dense, "another number of rows than the policy keeps");
  return dense;
}

size_t archive_window(Archive& a, const HeadStores& s) {
  size_t count = s.rows.rows();
  a.number(count, s.open() - s.in_sink(), "more rows in the window than came");
  a.need(count >= s.plan.state().at(Zone::kWindow),
         "another number of rows in the window than the policy keeps");
  return count;
}

/// Whether a body counts its rows through, in the order of the stream.
bool counts_rows(const HeadStores& s) {
  return s.zones().flows() && s.body && !s.body->keeps_positions();
}

void add_weights(HeadRows& out, const HeadStores& s) {
  auto at = out.log_weights.begin();
  const auto set = [&](size_t rows, float log_weight, bool apart) {
    const std::vector<float> one(apart ? 0 : rows, log_weight);
    at = std::ranges::copy(apart ? s.sides.log_weights(rows) : one, at).out;
  };
  const DenseParts parts = parts_of(s, {}, s.rows.begin());
  for (const DensePart& part : parts.all()) {
    if (s.codes && &part == &parts.part[parts.behind])
      set(s.coded(), s.coded_log_weight(), s.weighs_codes());
    set(part.rows, part.log_weight, part.apart);
  }
}

}  // namespace

void archive(Archive& a, HeadStores& s, const SeenStream& seen) {
  Step last;  // selection of heads that share
  if (a.loads()) {
    s.plan.replay(seen.tokens, seen.prompt_ends, [&](const Step& step) {
      if (step.op == Op::kSelect && step.shared) last = step;
    });
  }
  a.need(s.tokens() == seen.tokens, "layers that saw different tokens");
  const bool flows = s.zones().flows();
  if (flows) {
    s.sink.archive(a, s.in_sink(), s.layer.dtype);
  } else {
    s.run.archive(a, static_cast<uint32_t>(seen.tokens), s.chooser->weights());
    if (s.chooser->any_time()) s.late.archive(a, s.plan.state().body());
  }
  if (s.codes) s.codes->archive(a, seen.tokens);
  RunCodes(s).share_tables();
  if (s.body) s.body->archive(a, seen.tokens);
  if (s.ragged) {
    a.need(!a.loads() || s.run.selected == last.keep, "another number of selected rows");
    s.ragged->archive(a, seen.tokens, last.least);
  }
  s.rows.archive(a, flows ? archive_window(a, s) : archive_run(a, s), s.layer.dtype);
  if (!flows) {
    if (a.loads() && !s.layer.straight) s.make_sides(s.coded() + s.rows.capacity());
    s.sides.archive(a, s.beside_rows(), static_cast<int32_t>(s.tokens()) - 1);
    s.queries.archive(a);
  }
  s.protected_rows.archive(a, s.plan.state().at(Zone::kProtected));
}

void add_rows(HeadRows& out, const HeadStores& s, size_t head) {
  const auto add = [&](size_t first, size_t count) {
    for (size_t i = first; i < first + count; ++i) out.positions.push_back(static_cast<int64_t>(i));
    out.log_weights.resize(out.positions.size(), 0.0f);
  };
  add(0, s.in_sink());
  if (counts_rows(s)) s.body->add_rows(out, head, static_cast<int64_t>(s.in_sink()));
  const std::vector<int32_t> positions = s.sides.positions_of(head);
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  const size_t left = s.unsettled() - s.known();
  add(s.open() - left, left);
  if (!s.zones().flows()) add_weights(out, s);
  s.protected_rows.finish(out,
                          s.in_sink() + s.sides.named());  // ordinals until they are selected from
  if (s.body && !counts_rows(s)) s.body->add_rows(out, head, 0);
  if (s.ragged) s.ragged->add_rows(out, head);
}

void add_codes(std::vector<HeadCodes>& codes, const HeadStores& s, size_t head) {
  if (s.coded() > 0) s.codes->add_codes(codes, head, s.in_sink());
  const size_t run = s.sink.rows() + s.coded() + s.rows.rows() + s.protected_rows.rows();
  if (s.body) s.body->add_codes(codes, head, counts_rows(s) ? s.in_sink() : run);
  if (s.ragged) s.ragged->add_codes(codes, head, run);
}

void add_dense(std::vector<DeviceSpan>& dense, const HeadStores& s, size_t head) {
  const auto add = [&](const DeviceSpan& span) {
    if (span.coded == 0 && span.rows > 0) dense.push_back(span);
  };
  const auto add_body = [&] {
    for (size_t n = 0; n < s.body->spans(); ++n) add(s.body->span(head, n));
  };
  if (s.zones().flows()) add(dense_span(s.sink.begin(), head, s.sink.rows(), s.site.dim));
  if (s.body && counts_rows(s)) add_body();
  add(dense_span(s.rows.begin(), head, s.rows.rows(), s.site.dim));
  add(s.protected_rows.span(head, s.protected_rows.rows()));
  if (s.body && !counts_rows(s)) add_body();
  if (s.ragged) add(s.ragged->span(head));
}

void add_to(Ledger& ledger, const HeadStores& s) {
  RowSides::Held held = s.beside_rows();
  if (s.weighs_codes()) held.weighed = s.packed();
  s.sink.add_to(ledger);
  s.rows.add_to(ledger);
  s.queries.add_to(ledger);
  s.sides.add_to(ledger, held);
  s.protected_rows.add_to(ledger);
  if (s.ragged) s.ragged->add_to(ledger);
  if (s.codes) s.codes->add_to(ledger);
  if (s.body) s.body->add_to(ledger);
}

}  // namespace pith::cuda
