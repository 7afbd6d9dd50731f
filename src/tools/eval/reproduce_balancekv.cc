// BalanceKV: the single-layer figure (attention error against uniform sampling over the
// compression rate, layers 1, 2 and 5) and the table of LongBench scores at a rate of 0.25, on the
// tasks that we can make.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/eval/reproduce_bench.h"
#include "tools/eval/reproduce_papers.h"
#include "tools/eval/reproductions.h"

namespace pith {
namespace {

constexpr size_t kQueries = 256;  // of the probe, whose own rows stay exact
constexpr size_t kForms = 4;      // of balancekv, before the other selectors

// The layers of the paper's figure, counted from 0.
std::vector<size_t> figure_layers(size_t layers) {
  std::vector<size_t> all;
  for (const size_t l : {size_t{0}, size_t{1}, size_t{4}})
    if (l < layers) all.push_back(l);
  return all;
}

// BalanceKV at 2^-T, with blocks of `block` rows, and others with as many rows as it then holds.
std::vector<NamedPolicy> selectors_at(int rounds, size_t before, size_t sink, size_t block) {
  const double rate = std::pow(0.5, rounds);
  const std::string exact = fmt::format(",sink={},window=0", sink);
  const auto balanced = [&](const char* form) {
    return fmt::format("balancekv({}rate={},b={}){}", form, rate, block, exact);
  };
  const size_t rows = static_cast<size_t>(mean_rows(balanced(""), before, 1)) - sink;
  return {{"balancekv", balanced(""), true, Form::kHeavy},
          {"balancekv, no heavy rows", balanced("heavy=0,"), true, Form::kNoGuarantee},
          {"balancekv, guaranteed", balanced("heavy=0,mode=stream,"), true, Form::kGuarantee},
          {"balancekv, the paper's", balanced("paper=true,"), true, Form::kPaper},
          {"uniform", fmt::format("uniform(budget={}){}", rows, exact), true},
          {"uniform without weights",
           fmt::format("uniform(budget={},weights=false){}", rows, exact), true},
          {"snapkv", fmt::format("snapkv(budget={},queries=64){}", rows, exact)},
          {"keydiff", fmt::format("keydiff(budget={}){}", rows, exact)},
          {"local", fmt::format("local(window={})", rows + sink)}};
}

void figure(const ReproduceBench& bench) {
  const size_t tokens = bench.quick() ? 640 : 4096, sink = bench.quick() ? 32 : 256;
  const int most = bench.quick() ? 2 : 4;
  std::vector<NamedPolicy> policies;
  for (int rounds = 1; rounds <= most; ++rounds)
    for (NamedPolicy& p : selectors_at(rounds, tokens - kQueries, sink, bench.quick() ? 32 : 256))
      policies.push_back(std::move(p));
  const size_t count = policies.size() / static_cast<size_t>(most);
  const ProbeReport report =
      bench.probe("attention error", tokens, bench.options().seeds, policies);
  const auto layers = figure_layers(report.policies[0].layers.size());

  ReproducedTable t;
  t.id = "error", t.title = "Attention error of one layer against the rate of compression";
  t.source = "BalanceKV, single-layer figure (Llama-3.1-8B and Mistral-7B, TriviaQA; an image)";
  t.protocol = fmt::format(
      "{} tokens; the first {} rows and the last {} stay exact, the middle is compressed to 2^-T; "
      "|policy - exact| / |exact| over the last {} queries, mean over KV heads; 'of uniform' is "
      "the "
      "geometric mean over heads and all layers of the error over a weighted uniform sample's of "
      "as "
      "many rows, 'won' the heads where it is smaller",
      tokens, sink, kQueries, kQueries);
  t.columns = {{"rows", 0}};
  for (const size_t l : layers) t.columns.push_back({fmt::format("layer {}", l + 1), 4});
  t.columns.insert(t.columns.end(), {{"all layers", 4}, {"of uniform", 3}, {"won, %", 0}});
  // Of each form of balancekv: points of the figure, and layers and rates of all.
  struct Wins {
    size_t better = 0, points = 0, best = 0, everywhere = 0, layers = 0, rates = 0;
    double gain = 0;
  };
  std::vector<Wins> wins(kForms);
  for (size_t i = 0; i < policies.size(); ++i) {
    const ProbePolicy& p = report.policies[i];
    const ProbeSummary all = summarise(p);
    TableRow row{fmt::format("T={}: {}", 1 + i / count, policies[i].name), policies[i].policy, {}};
    row.cells.push_back({all.rows});
    for (const size_t l : layers) row.cells.push_back(summarise(p, l, l).error);
    row.cells.push_back(all.error);
    row.cells.push_back(all.ratio > 0 ? Cell{all.ratio} : Cell{});
    row.cells.push_back(all.ratio > 0 ? Cell{all.won} : Cell{});
    t.rows.push_back(std::move(row));
    if (i % count >= kForms) continue;
    Wins& w = wins[i % count];
    if (all.ratio > 0) w.gain += std::log(all.ratio), ++w.rates;
    for (size_t l = 0; l < p.layers.size(); ++l) {
      const ProbeSummary at = summarise(p, l, l);
      if (!at.uniform.value) continue;  // as many rows as there are: nothing was drawn
      const bool less = *at.error.value < *at.uniform.value;
      ++w.layers, w.everywhere += less;
      if (std::ranges::find(layers, l) != layers.end()) ++w.points, w.better += less;
    }
    bool first = true;
    for (size_t o = i - i % count + kForms; o < i - i % count + count; ++o)
      first &= *all.error.value < *summarise(report.policies[o]).error.value;
    w.best += first;
  }
  for (size_t form = 0; form < kForms; ++form) {
    const Wins& w = wins[form];
    const NamedPolicy& of = policies[policies.size() - count + form];
    t.claims.push_back(
        of.claim("smaller error than uniform sampling at every layer and rate",
                 fmt::format("at {} of {} points; mean ratio {:.3f}", w.better, w.points,
                             std::exp(w.gain / static_cast<double>(std::max<size_t>(w.rates, 1)))),
                 w.points > 0 && w.better == w.points));
    t.claims.push_back(of.claim("... and in every layer of the model",
                                fmt::format("at {} of {} points", w.everywhere, w.layers),
                                w.layers > 0 && w.everywhere == w.layers));
    t.claims.push_back(of.claim("(ours) smallest error of all selectors over all layers",
                                fmt::format("at {} of {} rates", w.best, most),
                                w.best == static_cast<size_t>(most)));
  }
  bench.finish(t);
}

Cell published(const std::string& method) {
  for (const auto& p : papers::kBalanceScores)
    if (p.method == method) return {p.average};
  return {};
}

// BalanceKV at a rate of 0.25, others with as many rows as it holds after the prompt.
std::vector<NamedPolicy> quarter(size_t tokens, size_t block) {
  const std::string balanced = fmt::format("balancekv(rate=0.25,b={}),sink=4,window=64", block);
  const auto rows = static_cast<size_t>(mean_rows(balanced, tokens, 1));
  const auto scored = [&](const char* name) {  // 4 of the sink, 64 of the window
    return fmt::format("{}(budget={})", name, rows - 68);
  };
  return {{"exact", "exact"},
          {"pyramidkv", scored("pyramidkv")},
          {"snapkv", scored("snapkv")},
          {"streaming_llm", fmt::format("streaming_llm(window={})", rows - 4)},
          {"uniform", scored("uniform"), true},
          {"balancekv, the paper's",
           fmt::format("balancekv(paper=true,rate=0.25,b={}),sink=4,window=64", block), true,
           Form::kPaper},
          {"balancekv", balanced, true, Form::kHeavy}};
}

void table(const ReproduceBench& bench) {
  const size_t tokens = bench.quick() ? 512 : 2048;
  std::vector<uint64_t> samples(bench.quick() ? 1 : 4);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = i;
  const std::vector<NamedPolicy> policies = quarter(tokens, bench.quick() ? 32 : 256);
  const std::vector<std::string> tasks =
      bench.quick() ? std::vector<std::string>{"facts"}
                    : std::vector<std::string>{"facts", "multi_turn", "docqa",
                                               "kv",    "passkey",    "niah_single_1"};
  std::vector<std::vector<PolicyScore>> scores;
  for (const std::string& task : tasks)
    scores.push_back(bench.scores(task, {task, tokens, samples}, policies));
  PerplexityOptions protocol;
  protocol.mode = PerplexityMode::kContinue, protocol.window = tokens;
  protocol.score = bench.quick() ? 16 : 128, protocol.pieces = bench.quick() ? 1 : 2;
  const auto quality = bench.quality("divergence", protocol, policies);

  ReproducedTable t;
  t.id = "tasks", t.title = "Tasks at a quarter of the rows";
  t.source = "BalanceKV, table of LongBench-E scores at a rate of 0.25 (Llama-3.1-8B-Instruct)";
  t.protocol = fmt::format(
      "our tasks of {} tokens, {} samples each, the cache compressed before the question, every "
      "method "
      "with the rows that balancekv holds then; answers found, %; KL: nats per token from exact "
      "over "
      "{} tokens of the text after a prompt",
      tokens, samples.size(), protocol.score * protocol.pieces);
  t.columns = {{"kept, %", 1}};
  for (const std::string& task : tasks) t.columns.push_back({task, 1});
  t.columns.insert(t.columns.end(), {{"average", 1}, {"KL", 4}, {"paper average", 2, true}});
  // A task that exact fails says nothing of a cache: it is shown and stays out of the average.
  std::vector<size_t> solved;
  for (size_t i = 0; i < tasks.size(); ++i)
    if (*scores[i][0].score.value >= kSolved) solved.push_back(i);
  std::vector<double> averages;
  for (size_t p = 0; p < policies.size(); ++p) {
    const Ledger& l = scores[0][p].ledger;
    TableRow row{policies[p].name, policies[p].policy, {}};
    row.cells.push_back(
        {100 * static_cast<double>(l.rows_kept) / static_cast<double>(l.rows_seen)});
    double sum = 0;
    for (const auto& of_task : scores) row.cells.push_back(of_task[p].score);
    for (const size_t i : solved)
      sum += *scores[i][p].score.value / static_cast<double>(solved.size());
    averages.push_back(sum);
    row.cells.insert(row.cells.end(), {solved.empty() ? Cell{} : Cell{sum}, quality[p].divergence(),
                                       published(policies[p].name)});
    t.rows.push_back(std::move(row));
  }
  const size_t uniform = policies.size() - 3;  // before the forms of balancekv
  const auto rest =
      std::max_element(averages.begin() + 1, averages.begin() + static_cast<long>(uniform) + 1);
  for (size_t ours = uniform + 1; ours < policies.size(); ++ours) {
    const auto best = [&]() -> std::optional<bool> {
      if (solved.empty()) return std::nullopt;
      return averages[ours] > *rest;
    };
    t.claims.push_back(policies[ours].claim(
        "the best average of all methods",
        fmt::format("balancekv {:.1f}, best of the others ({}) {:.1f}; {} of {} tasks, exact finds "
                    "less than {}% in the others",
                    averages[ours], policies[static_cast<size_t>(rest - averages.begin())].name,
                    *rest, solved.size(), tasks.size(), kSolved),
        best()));
    t.claims.push_back(policies[ours].claim(
        "(ours) less divergence than uniform",
        fmt::format("{:.4f} and {:.4f}", *quality[ours].divergence().value,
                    *quality[uniform].divergence().value),
        *quality[ours].divergence().value < *quality[uniform].divergence().value));
  }
  bench.finish(t);
}

}  // namespace

void reproduce_balancekv(const ReproduceOptions& options) {
  const ReproduceBench bench(options);
  bench.table("error", [&] { figure(bench); });
  bench.table("tasks", [&] { table(bench); });
}

}  // namespace pith
