// Thinformer Express: attention error against s (section 3's rates), accuracy of long decoding
// against the cache (Figure 3, left). Times are in pith's command, beside pith bench select.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/eval/reproduce_bench.h"
#include "tools/eval/reproduce_papers.h"
#include "tools/eval/reproductions.h"

namespace pith {
namespace {

// The slope of ln y over ln x by least squares.
double slope(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double mean_x = 0, mean_y = 0, xy = 0, xx = 0;
  for (size_t i = 0; i < x.size(); ++i) mean_x += std::log(x[i]) / n, mean_y += std::log(y[i]) / n;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (std::log(x[i]) - mean_x) * (std::log(y[i]) - mean_y);
    xx += (std::log(x[i]) - mean_x) * (std::log(x[i]) - mean_x);
  }
  return xy / xx;
}

void error_table(const ReproduceBench& bench) {
  const size_t tokens = bench.quick() ? 640 : 4096;
  std::vector<size_t> sizes{64, 128, 256, 512, 1024, 2048};
  if (bench.quick()) sizes = {32, 128};
  // The guarantee goes with the paper's threshold, which `balance` multiplies.
  struct Constants {
    Form form;
    const char* parameters;
  };
  constexpr Constants kForms[] = {{Form::kPaper, "paper=true"},
                                  {Form::kGuarantee, "heavy=0,balance=1"},
                                  {Form::kNoGuarantee, "heavy=0"}};
  std::vector<NamedPolicy> policies;
  for (const Constants& of : kForms)
    for (const size_t s : sizes)
      policies.push_back({fmt::format("s={}, {}", s, form_name(of.form)),
                          fmt::format("express({},s={}),sink=4,window=64", of.parameters, s), true,
                          of.form});
  const ProbeReport report =
      bench.probe("error against s", tokens, bench.options().seeds, policies);

  ReproducedTable t;
  t.id = "error", t.title = "Attention error against the size s of the coreset";
  t.source =
      "Express, section 3: error falls as log^1.5(n) / s, uniform's as 1 / sqrt(s); no numbers";
  t.protocol = fmt::format(
      "{} tokens, sink 4, window 64; |policy - exact| / |exact| over the last 256 queries, mean "
      "over "
      "KV heads and layers; uniform: a weighted sample of as many rows in every head",
      tokens);
  t.columns = {{"rows", 0}, {"error", 4}, {"uniform", 4}, {"of uniform", 3}, {"won, %", 0}};
  for (size_t first = 0; first < policies.size(); first += sizes.size()) {
    std::vector<double> rows, errors, uniforms;
    size_t less = 0;
    double ratio = 0;
    for (size_t i = first; i < first + sizes.size(); ++i) {
      const ProbeSummary s = summarise(report.policies[i]);
      t.rows.push_back({policies[i].name,
                        policies[i].policy,
                        {{s.rows}, s.error, s.uniform, {s.ratio}, {s.won}}});
      rows.push_back(s.rows - 68), errors.push_back(*s.error.value);
      uniforms.push_back(*s.uniform.value);
      less += *s.error.value < *s.uniform.value;
      ratio += std::log(s.ratio) / static_cast<double>(sizes.size());
    }
    const double ours = slope(rows, errors), theirs = slope(rows, uniforms);
    const NamedPolicy& largest = policies[first + sizes.size() - 1];
    t.claims.push_back(largest.claim(
        "error falls faster with the coreset's rows than uniform's",
        fmt::format("as rows^{:.2f}, uniform's as rows^{:.2f}", ours, theirs), ours < theirs));
    t.claims.push_back(largest.claim(
        "smaller error than uniform's at every s",
        fmt::format("at {} of {}; mean ratio {:.3f}", less, sizes.size(), std::exp(ratio)),
        less == sizes.size()));
  }
  bench.finish(t);
}

// Policies of about `rows` rows; those that select in turns hold up to 64 rows more.
std::vector<NamedPolicy> others(size_t rows) {
  const auto scored = [&](const char* name) {
    return NamedPolicy{name, fmt::format("{}(budget={},interval=64),sink=4,window=64", name,
                                         rows > 132 ? rows - 100 : 32)};
  };
  return {scored("snapkv"),
          scored("expected_attention"),
          scored("keydiff"),
          scored("knorm"),
          {"streaming_llm", fmt::format("streaming_llm(window={})", rows - 4)}};
}

double kept(const Ledger& l) {
  return 100 * static_cast<double>(l.rows_kept) / static_cast<double>(l.rows_seen);
}

void decoding_table(const ReproduceBench& bench) {
  PerplexityOptions protocol;
  protocol.mode = PerplexityMode::kDecode, protocol.window = bench.quick() ? 192 : 2048;
  std::vector<size_t> sizes{128, 256, 512, 1024};
  if (bench.quick()) sizes = {32};
  std::vector<NamedPolicy> policies;
  for (const size_t s : sizes) {
    policies.push_back({fmt::format("express s={}", s),
                        fmt::format("express(heavy=0,s={}),sink=4,window=64", s), true,
                        Form::kNoGuarantee});
    const double rows = mean_rows(policies.back().policy, protocol.window, protocol.window / 4);
    for (NamedPolicy& p : others(static_cast<size_t>(rows))) policies.push_back(std::move(p));
  }
  const auto quality = bench.quality("long decoding", protocol, policies);

  ReproducedTable t;
  t.id = "decoding", t.title = "Long decoding: accuracy against the cache";
  t.source = fmt::format(
      "Express, Figure 3, left (DeepSeek-R1-Distill-Llama-8B, MATH-500; an image): exact's "
      "accuracy "
      "at {:.0f}% of the cache, the best of six methods at nearly every size",
      papers::kExpressCacheShare);
  t.protocol = fmt::format(
      "{} tokens of the text, one at a time; accuracy is how often the likeliest token is exact's; "
      "kept: rows at the end",
      protocol.window);
  t.columns = {{"kept, %", 1}, {"accuracy, %", 2}, {"KL", 4}, {"perplexity", 3}};
  const size_t count = policies.size() / sizes.size();
  size_t best = 0;
  for (size_t i = 0; i < policies.size(); ++i) {
    t.rows.push_back({policies[i].name,
                      policies[i].policy,
                      {{kept(quality[i].ledger)},
                       quality[i].same_top(),
                       quality[i].divergence(),
                       quality[i].perplexity()}});
    if (i % count != 0) continue;
    bool first = true;
    for (size_t o = i + 1; o < i + count; ++o)
      first &= *quality[i].same_top().value > *quality[o].same_top().value;
    best += first;
  }
  const size_t largest = policies.size() - count;
  const NamedPolicy& ours = policies[largest];
  t.claims = {
      ours.claim("the best accuracy at nearly every cache size",
                 fmt::format("at {} of {} sizes", best, sizes.size()),
                 4 * best >= 3 * sizes.size()),
      ours.claim(
          fmt::format("exact's accuracy at {:.0f}% of the cache", papers::kExpressCacheShare),
          fmt::format("perplexity {:.4f} of exact's at {:.1f}%",
                      std::exp(*quality[largest].ln_ratio().value), kept(quality[largest].ledger)),
          *quality[largest].ln_ratio().value < std::log(1.01))};
  bench.finish(t);
}

// Of each share of the rows: express as it is by default, which never holds more, then the others
// with as many rows as it has on average.
std::vector<NamedPolicy> at_share(double share, const PerplexityOptions& protocol) {
  const auto rows = static_cast<size_t>(share / 100 * static_cast<double>(protocol.window));
  const std::string express = fmt::format("express(s={}),sink=4,window=64", rows - 68);
  const auto held = static_cast<size_t>(mean_rows(express, protocol.window, protocol.score));
  std::vector<NamedPolicy> policies{
      {"express", express, true, Form::kHeavy},
      {"express, no heavy rows",
       fmt::format("express(heavy=0,s={}),sink=4,window=64", (rows - 68) * 2 / 3), true,
       Form::kNoGuarantee},
      {"uniform", fmt::format("uniform(budget={}),sink=4,window=64", held - 68), true}};
  for (NamedPolicy& p : others(held)) policies.push_back(std::move(p));
  return policies;
}

void selector_table(const ReproduceBench& bench) {
  PerplexityOptions protocol;
  protocol.mode = PerplexityMode::kContinue, protocol.window = bench.quick() ? 320 : 8000;
  protocol.score = bench.quick() ? 16 : 256, protocol.pieces = bench.quick() ? 1 : 2;
  const std::vector<double> shares =
      bench.quick() ? std::vector<double>{50} : std::vector<double>{12.5, 25, 50};
  std::vector<NamedPolicy> policies;
  for (const double share : shares)
    for (NamedPolicy& p : at_share(share, protocol)) policies.push_back(std::move(p));
  const auto quality = bench.quality("selectors at equal rows", protocol, policies);

  ReproducedTable t;
  t.id = "selectors", t.title = "Selectors at equal rows";
  t.source =
      "Express, section 4.2: the best of six cache compressions at nearly every size (an image; "
      "other models and tasks)";
  t.protocol = fmt::format(
      "{} pieces of {} tokens, the last {} read and scored one at a time after a compressed "
      "prompt; "
      "the others hold as many rows as express does",
      protocol.pieces, protocol.window, protocol.score);
  t.columns = {{"kept, %", 1}, {"KL", 4}, {"same top, %", 2}};
  const size_t count = policies.size() / shares.size();
  for (size_t i = 0; i < policies.size(); ++i)
    t.rows.push_back({fmt::format("{:g}%: {}", shares[i / count], policies[i].name),
                      policies[i].policy,
                      {{kept(quality[i].ledger)}, quality[i].divergence(), quality[i].same_top()}});
  for (size_t s = 0; s < shares.size(); ++s) {
    const auto at = [&](size_t i) { return quality[s * count + i].divergence(); };
    size_t next = 2;  // of the others, which begin with uniform
    for (size_t o = next; o < count; ++o)
      if (*at(o).value < *at(next).value) next = o;
    const auto figure = [&](size_t i) {
      return fmt::format("{:.4f} at {:.1f}% of the rows", *at(i).value,
                         kept(quality[s * count + i].ledger));
    };
    for (const size_t form : {0, 1}) {
      const Estimate above = quality[s * count + form].above(quality[s * count + next]);
      t.claims.push_back(policies[s * count + form].claim(
          fmt::format("{:g}% of the rows: the least divergence, by more than two errors",
                      shares[s]),
          fmt::format("express {}, {} {}: {:+.4f} ±{:.4f}", figure(form),
                      policies[s * count + next].name, figure(next), above.mean, above.error),
          above.mean + 2 * above.error < 0));
    }
  }
  bench.finish(t);
}

void task_table(const ReproduceBench& bench) {
  const size_t tokens = bench.quick() ? 512 : 2048;
  std::vector<uint64_t> samples(bench.quick() ? 1 : 4);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = i;
  std::vector<NamedPolicy> policies{{"exact", "exact"}};
  for (const size_t s :
       bench.quick() ? std::vector<size_t>{128} : std::vector<size_t>{256, 512, 1024})
    policies.push_back({fmt::format("express s={}", s),
                        fmt::format("express(heavy=0,s={}),sink=4,window=64", s), true});
  policies.push_back({"express s=512, heavy",
                      "express(s=512,heavy=256,heavy_keys=0,heavy_interval=512),sink=4,window=64",
                      true});
  const auto facts = bench.scores("facts", {"facts", tokens, samples}, policies);
  // The smallest of these documents has some more tokens.
  const auto documents =
      bench.scores("documents", {"docqa", std::max<size_t>(tokens, 960), samples}, policies);

  ReproducedTable t;
  t.id = "tasks", t.title = "Answers found in a compressed prompt";
  t.source = "Express, Figure 2 and 3 (accuracy on other tasks; images)";
  t.protocol = fmt::format(
      "our tasks of {} tokens, {} samples each, the cache compressed before the question: a fact "
      "is "
      "one row of many, which a coreset cannot promise to keep",
      tokens, samples.size());
  t.columns = {{"kept, %", 1}, {"facts, %", 1}, {"documents, %", 1}};
  for (size_t p = 0; p < policies.size(); ++p)
    t.rows.push_back({policies[p].name,
                      policies[p].policy,
                      {{kept(facts[p].ledger)}, facts[p].score, documents[p].score}});
  bench.finish(t);
}

}  // namespace

void reproduce_express(const ReproduceOptions& options) {
  const ReproduceBench bench(options);
  bench.table("error", [&] { error_table(bench); });
  bench.table("selectors", [&] { selector_table(bench); });
  bench.table("decoding", [&] { decoding_table(bench); });
  bench.table("tasks", [&] { task_table(bench); });
}

}  // namespace pith
