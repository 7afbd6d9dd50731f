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

#include "methods/methods.h"
#include "methods/selectors/uniform/uniform.h"
#include "pith/error.h"
#include "plan/simple_rules.h"
#include "select/draws.h"

namespace pith {
namespace {

class DrawByRate final : public Chooser {
 public:
  DrawByRate(const SelectorSite& site, double rate) : site_(site), rate_(rate) {}

  Chosen choose(const Step& /*step*/, size_t /*h*/, HeadBody& body, const NewRows& fresh) override {
    const Philox random(site_.seed, site_.layer, body.head());
    Chosen chosen;
    chosen.all_held = true;
    for (uint32_t i = 0; i < fresh.count; ++i)
      if (stays_by_rate(random, fresh.position(i), rate_)) chosen.fresh.push_back(i);
    return chosen;
  }
  float log_weight(const Step& /*step*/) const override {
    return static_cast<float>(-std::log(rate_));
  }
  std::unique_ptr<Chooser> clone() const override { return std::make_unique<DrawByRate>(*this); }

 private:
  SelectorSite site_;
  double rate_;
};

class LeastWords final : public Chooser {
 public:
  LeastWords(const Context& context, const SelectorSite& site)
      : site_(site), largest_(context.memory, MemoryKind::kMetadata) {
    largest_.reserve(site.heads);
    largest_.resize(site.heads);
    for (uint64_t& w : largest_) w = 0;
  }

  /// The smallest words among the rows held and the new ones.
  Chosen choose(const Step& step, size_t h, HeadBody& body, const NewRows& in) override {
    const RowStore& store = body.store();
    const Philox random(site_.seed, site_.layer, body.head());
    uint64_t& largest = largest_[h];
    std::vector<uint64_t> fresh(in.count);
    bool any = step.held < step.keep;
    for (size_t i = 0; i < in.count; ++i) {
      fresh[i] = random.word64(static_cast<uint64_t>(in.position(i)));
      any |= fresh[i] < largest;
    }
    Chosen chosen;
    chosen.all_held = !any;
    if (!any) return chosen;
    std::vector<uint64_t> words(step.held);
    for (size_t r = 0; r < words.size(); ++r)
      words[r] = random.word64(static_cast<uint64_t>(store.position(r)));
    std::vector<uint64_t> all = words;
    all.insert(all.end(), fresh.begin(), fresh.end());
    std::nth_element(all.begin(), all.begin() + (step.keep - 1), all.end());
    largest = all[step.keep - 1];
    for (uint32_t r = 0; r < words.size(); ++r)
      if (words[r] <= largest) chosen.held.push_back(r);
    for (uint32_t i = 0; i < fresh.size(); ++i)
      if (fresh[i] <= largest) chosen.fresh.push_back(i);
    return chosen;
  }
  /// The largest word of the rows held, which are the ones with the smallest.
  void archive(Archive& a, const ChooserPlace& place) override {
    for (size_t h = 0; a.loads() && h < largest_.size(); ++h) {
      const HeadBody& body = place.bodies[h];
      const Philox random(site_.seed, site_.layer, body.head());
      for (size_t r = 0; r < body.store().rows(); ++r)
        largest_[h] =
            std::max(largest_[h], random.word64(static_cast<uint64_t>(body.store().position(r))));
    }
  }
  size_t state_bytes() const override { return largest_.size() * sizeof(uint64_t); }
  size_t allocated_state_bytes() const override { return largest_.capacity_bytes(); }
  std::unique_ptr<Chooser> clone() const override { return std::make_unique<LeastWords>(*this); }

 private:
  SelectorSite site_;
  Array<uint64_t> largest_;  // [heads] largest word held
};

ResolvedSelector resolve_uniform(const SelectorPlace& r) {
  auto options = r.options.as<UniformOptions>();
  if (options.budget)
    options.budget = Budget::rows(options.rows(r.budget));
  else
    options.rate = options.drawn();
  options.heavy = options.heavy.at(r.budget);
  ResolvedSelector sample;
  sample.text = write_options("uniform", options);
  sample.needs.weighs = options.weights;
  if (options.budget) {
    sample.rule =
        std::make_shared<KeepSample>(static_cast<size_t>(options.budget->value), options.weights);
    sample.chooser = [site = r.site](const Context& context) {
      return std::make_unique<LeastWords>(context, site);
    };
  } else {
    sample.rule = std::make_shared<KeepShare>(*options.rate, options.weights);
    sample.needs.body = Needs::Body::kDrawn;
    // A heavy store passes on other rows in each head, of which as many as are drawn stay.
    sample.chooser = [site = r.site, rate = *options.rate](const Context&) {
      return std::make_unique<DrawByRate>(site, rate);
    };
  }
  return with_heavy(std::move(sample), options.heavy.sizes(r.budget));
}

}  // namespace

Fields UniformOptions::fields() {
  return Fields{number("rate", rate, {1e-6, 1}, "share of the body's rows that stay").unset("0.25"),
                pith::rows("budget", budget, "rows that stay instead"),
                flag("weights", weights, "log-weight ln(n/kept) on each kept row")} +
         heavy.fields("none");
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
  row.state = [](const MethodOptions&, const SelectorSite&) -> StateSize {
    return {sizeof(uint64_t), 1};  // the largest word held
  };
  row.on_gpu = true;
  row.resolve = resolve_uniform;
  row.more_side_bytes = [](const MethodOptions& o) {
    return o.as<UniformOptions>().heavy.side_bytes();
  };
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 64u; };
  return row;
}

}  // namespace pith
