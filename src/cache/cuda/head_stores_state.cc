// The state of rows that lie in one run: see head_stores.h.

#include "cache/cuda/head_stores.h"
#include "kernels/cuda/device_archive.h"
#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

void HeadStores::archive(Archive& a, const SeenStream& seen) {
  Step last;  // selection of heads that share
  if (a.loads()) {
    plan_.replay(seen.tokens, seen.prompt_ends, [&](const Step& step) {
      if (step.op == Op::kJudge && step.shared) last = step;
    });
  }
  a.need(tokens() == seen.tokens, "layers that saw different tokens");
  if (flows()) {
    sink_.archive(a, sink(), layer_.dtype);
  } else {
    run_.archive(a, static_cast<uint32_t>(seen.tokens), chooser_->weights());
    if (chooser_->any_time()) late_.archive(a, plan_.state().body());
  }
  if (coded_) coded_->archive(a, seen.tokens);
  share_tables();
  if (body_) body_->archive(a, seen.tokens);
  if (ragged_) {
    a.need(!a.loads() || run_.judged == last.keep, "another number of selected rows");
    ragged_->archive(a, seen.tokens, last.least);
  }
  rows_.archive(a, flows() ? archive_window(a) : archive_counts(a), layer_.dtype);
  if (!flows()) {
    if (a.loads() && !layer_.straight) make_sides(coded_rows() + rows_.capacity());
    sides_.archive(a, beside_rows(), static_cast<int32_t>(tokens()) - 1);
    queries_.archive(a);
  }
  protected_.archive(a, plan_.state().at(Zone::kProtected));
}

// A selection that waits for others leaves up to 31 rows more than the plan has.
size_t HeadStores::archive_counts(Archive& a) {
  const PlanState& state = plan_.state();
  const size_t late = chooser_->any_time() && !layer_.selector.heavy ? kBlockRows - 1 : 0;
  const size_t body = body_ ? 0 : state.body();
  a.need(run_.heavy == state.at(Zone::kHeavy) && run_.evicted == 0 && run_.body >= body &&
             run_.body <= body + late,
         "another number of rows than the policy keeps");
  a.need(!ragged_ || shared() == run_.judged, "another number of shared rows than were selected");
  a.need(packs() ? packed() <= rows_between()
                 : settled() <= run_.body && settled() <= chooser_->settled(state),
         "more codes than rows");
  a.need(settled() == 0 || (!run_.weighted.empty() && run_.weighted.front().rows >= settled()),
         "codes of more than one weight");
  size_t known = a.loads() ? 0 : this->known();
  a.number(known, layer_.straight ? 0 : rows_between() - settled(), "more positions than rows");
  sides_.name(settled() + known);
  const size_t dense = sink() + rows_between() - coded_rows() + state.at(Zone::kWindow);
  a.need(a.loads() || rows_.rows() == dense, "another number of rows than the policy keeps");
  return dense;
}

size_t HeadStores::archive_window(Archive& a) {
  size_t count = rows_.rows();
  a.number(count, open() - sink(), "more rows in the window than came");
  a.need(count >= plan_.state().at(Zone::kWindow),
         "another number of rows in the window than the policy keeps");
  return count;
}

}  // namespace pith::cuda
