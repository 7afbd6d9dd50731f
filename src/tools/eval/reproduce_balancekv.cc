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
constexpr size_t kForms = 3;      // of balancekv, before the other selectors

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
  return {{"balancekv", balanced(""), true},
          {"balancekv, no heavy rows", balanced("heavy=0,"), true},
          {"balancekv, the paper's", balanced("paper=true,"), true},
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
  size_t better = 0, points = 0, best = 0, everywhere = 0, heads = 0;
  double gain = 0;
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
    if (i % count != 0) continue;
    gain += std::log(all.ratio) / most;
    for (size_t l = 0; l < p.layers.size(); ++l) {
      const ProbeSummary at = summarise(p, l, l);
      const bool less = *at.error.value < *at.uniform.value;
      ++heads, everywhere += less;
      if (std::ranges::find(layers, l) != layers.end()) ++points, better += less;
    }
    bool first = true;
    for (size_t o = i + kForms; o < i + count; ++o)
      first &= *all.error.value < *summarise(report.policies[o]).error.value;
    best += first;
  }
  t.claims = {{"smaller error than uniform sampling at every layer and rate",
               fmt::format("at {} of {} points; mean ratio {:.3f}", better, points, std::exp(gain)),
               better == points},
              {"... and in every layer of the model",
               fmt::format("at {} of {} points", everywhere, heads), everywhere == heads},
              {"(ours) smallest error of all selectors over all layers",
               fmt::format("at {} of {} rates", best, most), best == static_cast<size_t>(most)}};
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
           fmt::format("balancekv(paper=true,rate=0.25,b={}),sink=4,window=64", block), true},
          {"balancekv", balanced, true}};
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
  std::vector<double> averages;
  for (size_t p = 0; p < policies.size(); ++p) {
    const Ledger& l = scores[0][p].ledger;
    TableRow row{policies[p].name, policies[p].policy, {}};
    row.cells.push_back(
        {100 * static_cast<double>(l.rows_kept) / static_cast<double>(l.rows_seen)});
    double sum = 0;
    for (const auto& of_task : scores) {
      row.cells.push_back(of_task[p].score);
      sum += *of_task[p].score.value / static_cast<double>(tasks.size());
    }
    averages.push_back(sum);
    row.cells.insert(row.cells.end(),
                     {Cell{sum}, quality[p].divergence(), published(policies[p].name)});
    t.rows.push_back(std::move(row));
  }
  const size_t ours = policies.size() - 1, uniform = ours - 2;  // the paper's form between them
  const auto rest =
      std::max_element(averages.begin() + 1, averages.begin() + static_cast<long>(uniform) + 1);
  t.claims = {{"the best average of all methods",
               fmt::format("balancekv {:.1f}, best of the others ({}) {:.1f}", averages.back(),
                           policies[static_cast<size_t>(rest - averages.begin())].name, *rest),
               averages.back() > *rest},
              {"(ours) less divergence than uniform",
               fmt::format("{:.4f} and {:.4f}", *quality[ours].divergence().value,
                           *quality[uniform].divergence().value),
               *quality[ours].divergence().value < *quality[uniform].divergence().value}};
  bench.finish(t);
}

}  // namespace

void reproduce_balancekv(const ReproduceOptions& options) {
  const ReproduceBench bench(options);
  figure(bench);
  table(bench);
}

}  // namespace pith
