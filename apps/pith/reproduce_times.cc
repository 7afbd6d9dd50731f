#include "reproduce_times.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench_select.h"
#include "tools/eval/reproduce_papers.h"

namespace pith::cli {
namespace {

constexpr double kMicro = 1e6;

const SelectPoint& find(const std::vector<SelectPoint>& points, const std::string& policy,
                        size_t tokens) {
  return *std::find_if(points.begin(), points.end(), [&](const SelectPoint& p) {
    return p.policy.text == policy && p.tokens == tokens;
  });
}

void add_claims(ReproducedTable& t, const std::vector<SelectPoint>& points,
                const std::string& express, size_t shortest, size_t longest) {
  const SelectPoint& end = find(points, express, longest);
  const double overhead = end.update.value / end.attend.value;
  constexpr double kTheirs = papers::kExpressUpdateMs / papers::kExpressAttendMs;
  t.claims.push_back(
      {fmt::format("keeping the coreset costs {:.1f}% of attending over it ({:.0f} of {:.0f} ms)",
                   100 * kTheirs, papers::kExpressUpdateMs, papers::kExpressAttendMs),
       fmt::format("{:.1f}% at {} tokens", 100 * overhead, longest), overhead <= kTheirs,
       Form::kNoGuarantee, express});
  const SelectPoint& start = find(points, express, shortest);
  // Of these lengths the nearest to 2048, where the accuracy was measured.
  const double share = start.step.value / find(points, "exact", shortest).step.value;
  t.claims.push_back(
      {fmt::format("exact's accuracy in {:.0f}% of its attention time", papers::kExpressTimeShare),
       fmt::format("a decode step takes {:.1f}% of exact's at {} tokens (accuracy: at 2048, above)",
                   100 * share, shortest),
       100 * share <= papers::kExpressTimeShare, Form::kNoGuarantee, express});
  // A coreset swings between s/2 and 1.5 s rows, so compare the time a row.
  const auto per_row = [](const SelectPoint& p) {
    return p.attend.value / static_cast<double>(p.ledger.rows_kept);
  };
  const auto rows = [](const SelectPoint& p) { return static_cast<double>(p.ledger.rows_kept); };
  t.claims.push_back({"a token's time does not grow with the length, but for logarithms",
                      fmt::format("{:.1f} us at {}, {:.1f} us at {} tokens; a row {:.2f} times",  //
                                  kMicro * start.step.value, shortest, kMicro * end.step.value,
                                  longest, per_row(end) / per_row(start)),
                      rows(end) < 4 * rows(start) && end.step.value < 2 * start.step.value,
                      Form::kNoGuarantee, express});
}

}  // namespace

ReproducedTable express_times(const ModelOptions& engine, const ReproduceOptions& options) {
  const ModelConfig& c = options.model->config();
  const SelectShape shape{c.kv_heads, c.query_heads / c.kv_heads, c.head_dim};
  const std::vector<size_t> lengths =
      options.quick ? std::vector<size_t>{1024, 2048} : std::vector<size_t>{4096, 16384, 65536};
  const std::string express = options.quick ? "express(heavy=0,s=256)" : "express(heavy=0,s=1024)";
  const std::vector<SelectPolicy> policies{{"exact"},
                                           {"express(heavy=0,s=256)"},
                                           {"express(heavy=0,s=1024)"},
                                           {"snapkv(budget=1024)"},
                                           {"streaming_llm(window=1020)"}};
  ThreadPool pool(engine.threads);
  MemoryCounter memory(static_cast<size_t>(engine.memory_limit_mib * 1048576));
  const Context context{pool, memory, kernels_for(engine.isa)};
  const SelectBench bench(context, shape, policies);
  bench.check_answer();

  ReproducedTable t;
  t.id = "times", t.title = "Time of a token against the length";
  t.source = "Express, section 4, long-form decoding (RTX A6000; DeepSeek-R1-Distill-Llama-8B)";
  t.protocol = fmt::format(
      "random rows, {} KV heads, {} queries each, {} channels, one layer, one token at a time, {} "
      "threads; microseconds per token, medians: update (appending and compressing), attend "
      "(queries "
      "over what is held), step (both)",
      shape.kv_heads, shape.group, shape.head_dim, pool.size());
  t.columns = {{"rows", 0}, {"update", 2},       {"attend", 2},
               {"step", 2}, {"of attend, %", 1}, {"of exact's step, %", 1}};
  std::vector<SelectPoint> points;
  for (const size_t tokens : lengths) {
    const auto stage = fmt::format("times at {}", tokens);
    const auto measured = bench.measure(
        tokens, options.quick ? 1 : 3,
        [&](size_t done, size_t total) { return options.progress(stage, done, total); });
    points.insert(points.end(), measured.begin(), measured.end());
  }
  for (const SelectPoint& p : points) {
    const double exact = find(points, "exact", p.tokens).step.value;
    t.rows.push_back({fmt::format("{} tokens: {}", p.tokens, p.policy.text),
                      "",
                      {{static_cast<double>(p.ledger.rows_kept) / shape.kv_heads},
                       {kMicro * p.update.value},
                       {kMicro * p.attend.value},
                       {kMicro * p.step.value},
                       {100 * p.update.value / p.attend.value},
                       {100 * p.step.value / exact}}});
  }
  add_claims(t, points, express, lengths.front(), lengths.back());
  return t;
}

}  // namespace pith::cli
