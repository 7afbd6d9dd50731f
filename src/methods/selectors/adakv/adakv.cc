// adakv: the KV heads of a layer share their budgets (Feng et al., "Ada-KV: Optimizing KV Cache
// Eviction by Adaptive Budget Allocation", 2024, Algorithm 1). Rows have the scores of another
// selector; the best of all heads together stay, heads x budget rows, but each head keeps at least
// the `safeguard` share of its budget. Heads whose attention is spread keep more rows, those that
// look at few keep fewer; bodies then have different lengths, and their memory with them.
//
// As in kvpress, sink and window count for the share: a head's own best rows are `safeguard` of
// budget + sink + window (1 at least, unless it is 0), less those. Cost: the score's, and one
// selection over the rows of all heads.

#include <algorithm>
#include <string>

#include "methods/methods.h"
#include "methods/selectors/scores/scores.h"
#include "policy/registry.h"

namespace pith {
SelectorRow adakv_scores(AdaKvOptions::By by) {
  switch (by) {
    case AdaKvOptions::By::kH2o: return h2o_row();
    case AdaKvOptions::By::kKeyDiff: return keydiff_row();
    case AdaKvOptions::By::kKNorm: return knorm_row();
    case AdaKvOptions::By::kExpectedAttention: return expected_attention_row();
    case AdaKvOptions::By::kSnapKv: break;
  }
  return snapkv_row();
}

namespace {

ResolvedSelector resolve_adakv(const SelectorPlace& r) {
  auto options = r.options.as<AdaKvOptions>();
  const ScoreBudget own = score_budget(options, r.budget);
  options.budget = Budget::rows(own.budget);
  std::map<std::string, std::string> sizes_of_theirs{{"budget", std::to_string(own.budget)}};
  if (options.interval) {
    options.interval = own.interval;
    sizes_of_theirs["interval"] = std::to_string(own.interval);
  }
  const SelectorRow scores = adakv_scores(options.by);
  const MethodOptions theirs = scores.read({scores.info.name, std::move(sizes_of_theirs)});
  ResolvedSelector selector = scores.resolve({theirs, r.budget, r.site});
  BestSizes sizes = best_sizes(own, r.site);
  sizes.sharing = r.site.heads;
  const auto rows = static_cast<double>(sizes.budget + sizes.exact);
  auto safe = static_cast<size_t>(rows * options.safeguard);
  if (options.safeguard > 0) safe = std::max<size_t>(safe, 1);
  sizes.least = safe - std::min(safe, sizes.exact);
  // Every selector that scores rows has this rule.
  const auto& rule = dynamic_cast<const KeepBest&>(*selector.rule);
  selector.rule = std::make_shared<KeepBest>(sizes, rule.wish());
  selector.text = write_options("adakv", options);
  selector.needs.shared = true;
  return selector;
}

}  // namespace

Fields AdaKvOptions::fields() {
  return ScoreOptions::fields() +
         Fields{choice<By>("by", by,
                           {{"snapkv", By::kSnapKv},
                            {"h2o", By::kH2o},
                            {"keydiff", By::kKeyDiff},
                            {"knorm", By::kKNorm},
                            {"expected_attention", By::kExpectedAttention}},
                           "whose scores"),
                number("safeguard", safeguard, {0, 1},
                       "share of the rows of an equal budget that each head keeps at least")};
}

SelectorRow adakv_row() {
  SelectorRow row =
      score_row("adakv", "another selector's scores, budgets shared by a layer's heads",
                "Feng et al. 2024 (arXiv 2407.11550), as in kvpress");
  row.takes<AdaKvOptions>();
  row.more_side_bytes = [](const MethodOptions& o) {
    return adakv_scores(o.as<AdaKvOptions>().by).side_bytes - double{sizeof(uint32_t)};
  };
  row.state = [](const MethodOptions& o, const SelectorSite& site) {
    const SelectorRow scores = adakv_scores(o.as<AdaKvOptions>().by);
    return scores.state ? scores.state(scores.read({scores.info.name, {}}), site) : StateSize();
  };
  row.resolve = resolve_adakv;
  row.on_gpu = true;
  return row;
}

}  // namespace pith
