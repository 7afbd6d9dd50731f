#include "select/body_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "pith/error.h"
#include "select/key_directions.h"

namespace pith {
namespace {

constexpr size_t kHeavyStore = 1;

/// Steps that heads carry out alone, one after another.
bool is_each(Op op) {
  return op == Op::kMove || op == Op::kPick || op == Op::kHalve || op == Op::kTake;
}

/// The numbers of a heavy store's rows: the step's `rows` that leave, ascending, then those that
/// stay, ascending. Of equals the older rows go: the newer have had less time to earn their place.
std::vector<uint32_t> lightest_first(RowStore& store, const Step& step) {
  std::vector<uint32_t> order(step.held);
  std::iota(order.begin(), order.end(), 0u);
  // `worst` of the first `among` rows to their front.
  const auto part = [&](size_t worst, size_t among, auto score) {
    if (worst == among) return;
    const auto cut = order.begin() + static_cast<ptrdiff_t>(worst);
    std::nth_element(
        order.begin(), cut, order.begin() + static_cast<ptrdiff_t>(among),
        [&](uint32_t a, uint32_t b) { return score[a] != score[b] ? score[a] < score[b] : a < b; });
  };
  part(step.rows + step.least, order.size(), std::span<const float>(store.mass()));
  if (step.least > 0) {
    std::vector<double> scores(step.held);
    score_directions(scores, store);
    for (double& score : scores)
      if (std::isnan(score)) score = -std::numeric_limits<double>::infinity();
    part(step.rows, step.rows + step.least, std::span<const double>(scores));
  }
  const auto cut = order.begin() + static_cast<ptrdiff_t>(step.rows);
  std::sort(order.begin(), cut);
  std::sort(cut, order.end());
  return order;
}

/// Appends the rows named, in runs.
void append_named(RowStore& store, const NewRows& rows, std::span<const uint32_t> named) {
  for (size_t i = 0, run = 0; i < named.size(); i += run) {
    for (run = 1; i + run < named.size() && named[i + run] == named[i] + run;) ++run;
    store.append(rows.slice(named[i], run));
  }
}

}  // namespace

BodySteps::BodySteps(const Context& context, const SelectorParts& selector,
                     std::span<HeadBody> bodies)
    : context_(context), selector_(selector), bodies_(bodies) {}

void BodySteps::bring(std::vector<NewRows> rows) { leaving_ = {std::move(rows), 0}; }

void BodySteps::run(std::span<const Step> steps) {
  for (size_t i = 0, n = 0; i < steps.size(); i += n) {
    for (n = 0; i + n < steps.size() && is_each(steps[i + n].op);) ++n;
    if (n > 0) {
      run_each(steps.subspan(i, n));
      continue;
    }
    n = 1;
    switch (steps[i].op) {
      case Op::kSelect: select(steps[i]); break;
      case Op::kSplit: split(steps[i]); break;
      case Op::kForget: forget(steps[i]); break;
      case Op::kWeigh: weigh(steps[i]); break;
      default: throw Error(ErrorCode::kInternal, "a step of tokens was given to bodies");
    }
  }
}

void BodySteps::run_each(std::span<const Step> steps) {
  auto one = [&](size_t h, int) {
    size_t taken[] = {leaving_.taken, evicted_.taken};
    for (const Step& step : steps) {
      if (step.op == Op::kHalve) {
        run_one(step, h, {});
        continue;
      }
      size_t& at = taken[step.from == Zone::kEvicted];
      run_one(step, h, incoming(step.from).rows[h].slice(at, step.rows));
      at += step.rows;
    }
  };
  const bool light = std::ranges::all_of(steps, [](auto& s) { return s.op == Op::kMove; });
  if (light)
    for (size_t h = 0; h < bodies_.size(); ++h) one(h, 0);
  else
    context_.pool.parallel_for(bodies_.size(), one);
  for (const Step& step : steps)
    if (step.op != Op::kHalve) incoming(step.from).taken += step.rows;
}

void BodySteps::run_one(const Step& step, size_t h, const NewRows& rows) const {
  HeadBody& body = bodies_[h];
  switch (step.op) {
    case Op::kMove:
      if (step.to == Zone::kHeavy && body.stores() == 1) body.add_store(Role::kBoth);
      return body.store(step.to == Zone::kHeavy ? kHeavyStore : 0).append(rows);
    case Op::kPick: return selector_.halver->pick(body.store(), body.head(), rows, step);
    case Op::kHalve: selector_.halver->halve(body.store(), body.head(), step); return;
    default: return selector_.chooser->take(h, body, rows);
  }
}

// Rows that join are few and cheap to select: heads go in turn. A body is selected from on all
// threads.
void BodySteps::select(const Step& step) {
  Incoming& in = incoming(step.from);
  selector_.chooser->prepare(step, bodies_);
  auto one = [&](size_t h, int) {
    const NewRows fresh = step.rows > 0 ? in.rows[h].slice(in.taken, step.rows) : NewRows();
    const Chosen chosen = selector_.chooser->choose(step, h, bodies_[h], fresh);
    if (!chosen.all_held) bodies_[h].store().keep(chosen.held);
    append_named(bodies_[h].store(), fresh, chosen.fresh);
  };
  if (step.rows > 0)
    for (size_t h = 0; h < bodies_.size(); ++h) one(h, 0);
  else
    context_.pool.parallel_for(bodies_.size(), one);
  in.taken += step.rows;
  selector_.chooser->kept(step, bodies_);
}

void BodySteps::split(const Step& step) {
  evicted_rows_.assign(bodies_.size(), Evicted(context_.memory));
  evicted_ = {std::vector<NewRows>(bodies_.size()), 0};
  context_.pool.parallel_for(bodies_.size(), [&](size_t h, int) {
    evicted_.rows[h] = take_lightest(bodies_[h].store(kHeavyStore), step, evicted_rows_[h]);
  });
}

NewRows BodySteps::take_lightest(RowStore& store, const Step& step, Evicted& out) const {
  const std::vector<uint32_t> order = lightest_first(store, step);
  const std::span<const float> mass = store.mass();
  const size_t dim = store.keys().dim();
  out.k.resize(step.rows * dim);
  out.v.resize(step.rows * dim);
  for (size_t i = 0; i < step.rows; ++i) {
    store.read(out.k.data() + i * dim, out.v.data() + i * dim, order[i], 1);
    out.positions.push_back(store.position(order[i]));
    if (!mass.empty()) out.mass.push_back(mass[order[i]]);
  }
  store.keep({order.begin() + static_cast<ptrdiff_t>(step.rows), order.end()});
  return {out.k.data(),        out.v.data(),     dim,
          step.rows,           out.positions[0], out.mass.empty() ? nullptr : out.mass.data(),
          out.positions.data()};
}

void BodySteps::forget(const Step& step) {
  if (step.from != Zone::kBody) {
    incoming(step.from).taken += step.rows;
    return;
  }
  for (HeadBody& body : bodies_) {
    std::vector<uint32_t> kept(body.store().rows() - step.rows);
    std::iota(kept.begin(), kept.end(), step.rows);
    body.store().keep(kept);
  }
}

void BodySteps::weigh(const Step& step) {
  const float weight = selector_.chooser->log_weight(step);
  for (HeadBody& body : bodies_) body.store().set_span_log_weight(weight);
}

}  // namespace pith
