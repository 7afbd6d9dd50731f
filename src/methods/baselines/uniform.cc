// uniform: a random sample of the body, the null hypothesis of every selector. Each kept row stands
// for n/kept rows through its log-weight (Horvitz & Thompson 1952), so that sums over the sample
// are unbiased; `weights=false` gives the plain sample that papers usually compare with.
//
// rate=r keeps each row when a uniform number of (seed, layer, head, row) is below r. budget=s
// keeps the s rows with the smallest 64-bit words of the same source: a uniform sample of fixed
// size whose members do not depend on chunking or threads. Cost per row: one Philox block; a
// replacement, which happens with probability s/n, costs O(s).

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "methods/baselines/baselines.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kPiece = 32;  // rows, of which the groups of every codec are divisors

/// Appends the rows whose flag is set, in runs.
void append_flagged(RowStore& store, const NewRows& rows, const std::vector<bool>& flags) {
  for (size_t i = 0; i < rows.count;) {
    size_t run = 1;
    while (i + run < rows.count && flags[i + run] == flags[i]) ++run;
    if (flags[i]) store.append(rows.slice(i, run));
    i += run;
  }
}

class UniformRate final : public Selector {
 public:
  UniformRate(const SelectorSite& site, const UniformOptions& options)
      : site_(site), options_(options), rate_(*options.rate), weights_(options.weights) {}

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) override {
    std::vector<bool> flags;
    for (size_t h = 0; h < bodies.size(); ++h) {
      const Philox random(site_.seed, site_.layer, bodies[h].head());
      flags.resize(rows[h].count);
      for (size_t i = 0; i < rows[h].count; ++i)
        flags[i] = random.uniform(static_cast<uint64_t>(rows[h].position(i))) < rate_;
      append_flagged(bodies[h].store(), rows[h], flags);
      if (weights_) bodies[h].store().set_span_log_weight(static_cast<float>(-std::log(rate_)));
    }
  }
  // Six standard deviations above the mean: what an estimate may promise.
  size_t rows_after(size_t n) const override {
    const double mean = rate_ * static_cast<double>(n);
    const double bound = mean + 6 * std::sqrt(mean * (1 - rate_)) + 1;
    return std::min(n, static_cast<size_t>(std::ceil(bound)));
  }
  std::string describe() const override { return write_options("uniform", options_); }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<UniformRate>(*this); }

 private:
  SelectorSite site_;
  UniformOptions options_;
  double rate_;
  bool weights_;
};

class UniformBudget final : public Selector {
 public:
  UniformBudget(const Context& context, const SelectorSite& site, const UniformOptions& options)
      : site_(site),
        options_(options),
        budget_(static_cast<size_t>(options.budget->value)),
        weights_(options.weights),
        largest_(context.memory, MemoryKind::kMetadata) {
    largest_.reserve(site.heads);
    largest_.resize(site.heads);
    for (uint64_t& w : largest_) w = 0;
  }

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) override {
    seen_ += rows.empty() ? 0 : rows[0].count;
    for (size_t h = 0; h < bodies.size(); ++h) {
      // In pieces that do not depend on how rows arrive: codecs that code rows in groups would
      // otherwise see others in a group.
      for (size_t t = 0; t < rows[h].count; t += kPiece)
        admit(bodies[h], rows[h].slice(t, std::min(kPiece, rows[h].count - t)), largest_[h]);
      if (weights_ && seen_ > budget_)
        bodies[h].store().set_span_log_weight(static_cast<float>(
            std::log(static_cast<double>(seen_) / static_cast<double>(budget_))));
    }
  }
  size_t rows_after(size_t n) const override { return std::min(n, budget_); }
  size_t state_bytes() const override { return largest_.size() * sizeof(uint64_t); }
  size_t allocated_state_bytes() const override { return largest_.capacity_bytes(); }
  std::string describe() const override { return write_options("uniform", options_); }
  std::unique_ptr<Selector> clone() const override {
    return std::make_unique<UniformBudget>(*this);
  }

 private:
  /// Keeps the budget's smallest words among the rows held and the new ones.
  void admit(HeadBody& body, const NewRows& in, uint64_t& largest) {
    RowStore& store = body.store();
    const Philox random(site_.seed, site_.layer, body.head());
    const size_t held = store.rows();
    std::vector<uint64_t> fresh(in.count);
    bool any = held < budget_;
    for (size_t i = 0; i < in.count; ++i) {
      fresh[i] = random.word64(static_cast<uint64_t>(in.position(i)));
      any |= fresh[i] < largest;
    }
    if (!any) return;
    std::vector<uint64_t> words(held);
    for (size_t r = 0; r < held; ++r)
      words[r] = random.word64(static_cast<uint64_t>(store.position(r)));
    std::vector<uint64_t> all = words;
    all.insert(all.end(), fresh.begin(), fresh.end());
    const size_t kept = std::min(budget_, all.size());
    std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(kept - 1), all.end());
    largest = all[kept - 1];

    std::vector<uint32_t> stay;
    for (size_t r = 0; r < held; ++r)
      if (words[r] <= largest) stay.push_back(static_cast<uint32_t>(r));
    store.keep(stay);
    std::vector<bool> flags(in.count);
    for (size_t i = 0; i < in.count; ++i) flags[i] = fresh[i] <= largest;
    append_flagged(store, in, flags);
  }

  SelectorSite site_;
  UniformOptions options_;  // budgets as rows
  size_t budget_;
  bool weights_;
  size_t seen_ = 0;          // rows that have left the window
  Array<uint64_t> largest_;  // [heads] largest word held
};

std::unique_ptr<Selector> make_uniform(const SelectorRequest& r) {
  auto options = r.options.as<UniformOptions>();
  options.heavy = options.heavy.at(r.budget);
  std::unique_ptr<Selector> inner;
  if (options.budget) {
    options.budget = Budget::rows(r.budget.rows(*options.budget, "uniform: budget"));
    inner = std::make_unique<UniformBudget>(r.context, r.site, options);
  } else {
    options.rate = options.drawn();
    inner = std::make_unique<UniformRate>(r.site, options);
  }
  return with_heavy(r, options.heavy, std::move(inner));
}

}  // namespace

Fields UniformOptions::fields() {
  return Fields{number("rate", rate, {1e-6, 1}, "share of the body's rows that stay").unset("0.25"),
                rows("budget", budget, "rows that stay instead"),
                flag("weights", weights, "log-weight ln(n/kept) on each kept row")} +
         heavy.fields();
}

void UniformOptions::check(const std::string& method) const {
  if (rate && budget)
    throw Error(ErrorCode::kInvalidArgument,
                method + ": rate and budget are both given; give one of them");
}

SelectorRow uniform_row() {
  SelectorRow row;
  row.info = {"uniform",
              true,
              "a random sample of the body, correctly weighted",
              "the seeds' common baseline",
              {},
              "budget"};
  row.takes<UniformOptions>();
  row.make = make_uniform;
  row.more_side_bytes = [](const MethodOptions& o) {
    return o.as<UniformOptions>().heavy.side_bytes();
  };
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 64u; };
  return row;
}

}  // namespace pith
