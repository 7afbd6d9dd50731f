#include "eval_ppl_report.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>

namespace pith::cli {
namespace {

template <class F>
Estimate over_seeds(const SeedRuns& seeds, F&& value) {
  std::vector<Estimate> all;
  for (const RunTotal* t : seeds) all.push_back(value(t->summary()));
  return pith::over_seeds(all);
}

Estimate above(const SeedRuns& seeds, const SeedRuns& best) {
  const auto seeded = [](const SeedRuns& list) {
    SeededPredictions out;
    for (const RunTotal* t : list) out.emplace_back(t->predictions);
    return out;
  };
  return divergence_above(seeded(seeds), seeded(best), best[0]->pieces);
}

std::vector<std::string> cells(const SeedRuns& seeds) {
  const auto estimate = [&](auto member, int digits) {
    const Estimate e = over_seeds(seeds, [&](const PredictionSummary& s) { return s.*member; });
    return fmt::format("{:.{}f} ±{:.{}f}", e.mean, digits, e.error, digits);
  };
  const auto tail = [&](size_t which) {
    return fmt::format("{:.3f}", over_seeds(seeds, [&](const PredictionSummary& s) {
                                   return Estimate{s.divergence_percentiles[which], 0};
                                 }).mean);
  };
  const Estimate top = over_seeds(seeds, [](const PredictionSummary& s) { return s.same_top; });
  const Ledger& l = seeds[0]->ledger;
  return {seeds[0]->run.name,
          std::to_string(seeds.size()),
          estimate(&PredictionSummary::perplexity, 3),
          estimate(&PredictionSummary::ln_ratio, 4),
          estimate(&PredictionSummary::divergence, 4),
          tail(5),
          tail(8),
          fmt::format("{:.1f}%", 100 * top.mean),
          rows_per_head(l),
          share_kept(l),
          human_bytes(static_cast<double>(l.cache_bytes())),
          fmt::format("{:.2f}", l.effective_bits())};
}

Json to_json(const Estimate& e) { return {{"mean", e.mean}, {"error", e.error}}; }

Json to_json(const PredictionSummary& s) {
  Json percentiles = Json::array();
  for (size_t i = 0; i < std::size(kPercentiles); ++i)
    percentiles.push_back({{"share", kPercentiles[i]},
                           {"kl", s.divergence_percentiles[i]},
                           {"delta_p", s.delta_p_percentiles[i]}});
  return {{"count", s.count},
          {"perplexity", to_json(s.perplexity)},
          {"exact_perplexity", to_json(s.base_perplexity)},
          {"ln_correlation", s.ln_correlation},
          {"ln_ratio", to_json(s.ln_ratio)},
          {"ratio", to_json(s.ratio)},
          {"difference", to_json(s.difference)},
          {"kl", to_json(s.divergence)},
          {"delta_p", to_json(s.delta_p)},
          {"rms_delta_p", to_json(s.rms_delta_p)},
          {"same_top", to_json(s.same_top)},
          {"percentiles", percentiles}};
}

Json json_of(const SeedRuns& seeds) {
  Json list = Json::array();
  for (const RunTotal* t : seeds) {
    list.push_back({{"kv_seed", t->run.seed},
                    {"seconds", t->seconds},
                    {"summary", to_json(t->summary())},
                    {"ledger", pith::cli::to_json(t->ledger)}});
    if (!t->errors.empty()) list.back()["attention_error"] = pith::cli::to_json(t->errors);
  }
  return {{"name", seeds[0]->run.name},
          {"policy", seeds[0]->run.policy.to_string()},
          {"resolved_policy", seeds[0]->resolved},
          {"seeds", list}};
}

std::string details(const RunTotal& t) {
  const PredictionSummary s = t.summary();
  std::string out = fmt::format("\n{}, kv-seed {}\n", t.run.name, t.run.seed);
  const auto line = [&](const char* name, const Estimate& e, double scale = 1) {
    out += fmt::format("  {:<30} {:12.6f} ± {:.6f}\n", name, scale * e.mean, scale * e.error);
  };
  line("Mean PPL(Q)", s.perplexity), line("Mean PPL(base)", s.base_perplexity);
  out +=
      fmt::format("  {:<30} {:11.2f}%\n", "Cor(ln(PPL(Q)), ln(PPL(base)))", 100 * s.ln_correlation);
  line("Mean ln(PPL(Q)/PPL(base))", s.ln_ratio), line("Mean PPL(Q)/PPL(base)", s.ratio);
  line("Mean PPL(Q)-PPL(base)", s.difference), line("Mean KLD", s.divergence);
  for (size_t i = std::size(kPercentiles); i-- > 0;)
    out += fmt::format("  {:>5.1f}%  KLD {:11.6f}   Δp {:8.3f}%\n", 100 * kPercentiles[i],
                       s.divergence_percentiles[i], 100 * s.delta_p_percentiles[i]);
  line("Mean Δp, %", s.delta_p, 100), line("RMS Δp, %", s.rms_delta_p, 100);
  line("Same top p, %", s.same_top, 100);
  return out;
}

constexpr const char* kLegend =
    "\nPPL: perplexity; ln ratio: ln(PPL / exact PPL); KL: nats per token, exact ||\n"
    "policy, with median and 99th percentile; ±: standard error over blocks of text\n"
    "and over seeds; rows (per KV head), KV, bits: the cache after the last piece\n"
    "(f16: 16 bits)\n";

/// The policy of least divergence, if there are several.
const SeedRuns* best_of(const std::vector<SeedRuns>& groups) {
  const auto kl = [](const SeedRuns& seeds) {
    return over_seeds(seeds, [](const PredictionSummary& s) { return s.divergence; }).mean;
  };
  const SeedRuns* best = nullptr;
  size_t policies = 0;
  for (const SeedRuns& seeds : groups) {
    if (seeds[0]->run.null_control) continue;
    ++policies;
    if (best == nullptr || kl(seeds) < kl(*best)) best = &seeds;
  }
  return policies > 1 ? best : nullptr;
}

/// KL above the best policy's; none for the best itself and for the null control.
std::optional<Estimate> above_best(const SeedRuns& seeds, const SeedRuns* best) {
  if (best == nullptr || &seeds == best || seeds[0]->run.null_control) return std::nullopt;
  return above(seeds, *best);
}

}  // namespace

std::string ppl_text(const std::vector<SeedRuns>& groups, bool with_details) {
  const SeedRuns* best = best_of(groups);
  Table table({"policy", "seeds", "PPL", "ln ratio", "KL", "50%", "99%", "same top", "rows", "kept",
               "KV", "bits"});
  Table paired({"paired on the same tokens", "KL above it"}, {0});
  std::string more;
  for (const SeedRuns& seeds : groups) {
    table.add(cells(seeds));
    if (const auto e = above_best(seeds, best))
      paired.add({seeds[0]->run.name, fmt::format("{:.4f} ±{:.4f}", e->mean, e->error)});
    if (!seeds[0]->errors.empty())
      more += fmt::format("{}: attention error {}\n", seeds[0]->run.name,
                          describe_errors(seeds[0]->errors));
    if (with_details)
      for (const RunTotal* t : seeds) more += details(*t);
  }
  std::string out = table.text() + kLegend;
  if (best != nullptr)
    out += fmt::format("\nThe least KL: {}\n\n{}", best->front()->run.name, paired.text());
  return out + more;
}

Json ppl_json(const std::vector<SeedRuns>& groups) {
  const SeedRuns* best = best_of(groups);
  Json list = Json::array();
  for (const SeedRuns& seeds : groups) {
    list.push_back(json_of(seeds));
    if (const auto e = above_best(seeds, best)) list.back()["kl_above_best"] = to_json(*e);
  }
  Json all{{"policies", list}};
  if (best != nullptr) all["best"] = best->front()->run.name;
  return all;
}

}  // namespace pith::cli
