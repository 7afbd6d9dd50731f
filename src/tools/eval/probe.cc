#include "tools/eval/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/loaders/weights.h"
#include "pith/error.h"
#include "tools/eval/jobs.h"

namespace pith {
namespace {

// Where a policy has no body (local, streaming_llm), a sample gets what uniform has by default.
constexpr size_t kUniformSink = 4, kUniformWindow = 64;

void check(const ProbeOptions& o) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "probe: " + what);
  };
  if (o.queries == 0) refuse("no queries; 1 or more are needed (256 is usual)");
  if (o.seeds == 0) refuse("no seeds; 1 or more are needed (3 is usual)");
  if (o.chunk == 0) refuse("a chunk of 0 rows; 1 or more are needed");
}

Policy exact_policy() { return Policy::parse("exact+f32"); }

}  // namespace

void fill_prompt(KvCache& cache, const CacheShape& shape, const LayerStep& step,
                 const PromptFill& prompt) {
  const auto width = static_cast<size_t>(shape.query_heads * shape.head_dim);
  const auto kv = static_cast<size_t>(shape.kv_heads * shape.head_dim);
  // Pieces of nearly one size: a short last one would leave too few queries to selectors that
  // select rows by the last.
  const size_t pieces = (prompt.rows + prompt.chunk - 1) / prompt.chunk;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t first = prompt.rows * i / pieces, last = prompt.rows * (i + 1) / pieces;
    cache.step(step.layer, nullptr, step.q + first * width, step.k + first * kv,
               step.v + first * kv, last - first);
  }
  cache.end_prefill();
}

Probe::Probe(const Context& context, const CacheShape& shape, const LayerRopes& ropes,
             ProbeOptions options)
    : context_(context), shape_(shape), ropes_(ropes), options_(std::move(options)) {
  check(options_);
  for (const Policy& policy : options_.policies) {
    const KvCache cache(context_, shape_, policy, options_.seed, ropes_);
    ProbePolicy& row = report_.policies.emplace_back();
    row.policy = policy.to_string();
    row.resolved = cache.describe();
    row.layers.resize(static_cast<size_t>(shape_.layers));
  }
}

KvCache Probe::filled(const Context& context, const LayerStep& step, const Policy& policy,
                      uint64_t seed) const {
  KvCache cache(context, shape_, policy, seed, ropes_);
  fill_prompt(cache, shape_, step, {step.tokens - options_.queries, options_.chunk});
  return cache;
}

std::vector<float> Probe::answers(KvCache& cache, const LayerStep& step) const {
  const auto width = static_cast<size_t>(shape_.query_heads * shape_.head_dim);
  const auto kv = static_cast<size_t>(shape_.kv_heads * shape_.head_dim);
  const size_t before = step.tokens - options_.queries;
  std::vector<float> out(options_.queries * width);
  cache.step(step.layer, out.data(), step.q + before * width, step.k + before * kv,
             step.v + before * kv, options_.queries);
  return out;
}

std::vector<double> Probe::errors(KvCache cache, const LayerStep& step) const {
  const std::vector<float> got = answers(cache, step);
  const auto heads = static_cast<size_t>(shape_.kv_heads);
  const size_t group = static_cast<size_t>(shape_.query_heads * shape_.head_dim) / heads;
  std::vector<double> error(heads), norm(heads);
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t g = i / group % heads;
    const double difference = double{got[i]} - exact_[i];
    error[g] += difference * difference;
    norm[g] += double{exact_[i]} * exact_[i];
  }
  for (size_t g = 0; g < heads; ++g)
    if (error[g] > 0) error[g] = std::sqrt(error[g] / norm[g]);
  return error;
}

std::optional<Policy> Probe::sample_beside(const Policy& policy, int layer,
                                           const KvCache& cache) const {
  Policy sample;
  bool lossy = false;
  for (int g = 0; g < shape_.kv_heads; ++g) {
    Occupancy held = cache.held(layer, g);
    const size_t rows = held.sink + held.body + held.window;
    lossy |= rows < cache.tokens(layer);
    if (held.body == 0) {
      if (rows <= kUniformSink + kUniformWindow) return std::nullopt;
      held = {kUniformSink, rows - kUniformSink - kUniformWindow, kUniformWindow};
    }
    PolicyRule rule = policy.rule_for(layer, shape_.layers, g, shape_.kv_heads);
    rule.layers.clear();
    rule.heads.clear();
    if (g > 0) rule.heads.push_back({g, g});
    rule.selector = {"uniform", {{"budget", std::to_string(held.body)}}};
    rule.sink = static_cast<uint32_t>(held.sink);
    rule.window = static_cast<uint32_t>(held.window);
    sample.rules.push_back(std::move(rule));
  }
  if (!lossy) return std::nullopt;
  return sample;
}

Probe::Run Probe::run(const Context& context, const LayerStep& step, size_t policy,
                      uint64_t seed) const {
  KvCache cache = filled(context, step, options_.policies[policy], seed);
  Run run;
  run.trial.ledger = cache.ledger(step.layer);
  for (int g = 0; g < shape_.kv_heads; ++g) {
    const Occupancy held = cache.held(step.layer, g);
    run.trial.rows.push_back(held.sink + held.body + held.window);
  }
  run.sample = sample_beside(options_.policies[policy], step.layer, cache);
  run.trial.errors = errors(std::move(cache), step);
  if (run.sample) run.trial.uniform = errors(filled(context, step, *run.sample, seed), step);
  return run;
}

void Probe::measure_all(Jobs& jobs, const LayerStep& step) {
  const size_t policies = options_.policies.size(), seeds = options_.seeds;
  std::vector<Run> runs(policies * seeds);  // [P, seeds]
  const size_t first_seeds = std::min<size_t>(seeds, 2), last_seeds = seeds - first_seeds;
  double null_error = 0;
  jobs.run(policies * first_seeds + 1, [&](const Context& context, size_t i) {
    if (i == 0) {
      for (double e : errors(filled(context, step, exact_policy(), options_.seed), step))
        null_error = std::max(null_error, e);
      return;
    }
    const size_t p = (i - 1) / first_seeds, s = (i - 1) % first_seeds;
    runs[p * seeds + s] = run(context, step, p, options_.seed + s);
  });
  jobs.run(policies * last_seeds, [&](const Context& context, size_t i) {
    const size_t p = i / last_seeds, s = first_seeds + i % last_seeds;
    const Run *known = &runs[p * seeds], *second = known + 1;
    if (known->trial.errors != second->trial.errors) {
      runs[p * seeds + s] = run(context, step, p, options_.seed + s);
      return;
    }
    runs[p * seeds + s].trial = known->trial;
    if (known->sample)
      runs[p * seeds + s].trial.uniform =
          errors(filled(context, step, *known->sample, options_.seed + s), step);
  });
  report_.null_error = std::max(report_.null_error, null_error);
  for (size_t p = 0; p < policies; ++p) {
    auto& trials = report_.policies[p].layers[static_cast<size_t>(step.layer)];
    for (size_t s = 0; s < seeds; ++s) {
      trials.push_back(std::move(runs[p * seeds + s].trial));
      report_.policies[p].random |= trials[s].errors != trials[0].errors;
    }
  }
}

bool Probe::measure(const LayerStep& step, const Progress& progress) {
  if (step.tokens <= options_.queries)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("probe: a text of {} tokens leaves no rows before its last {} queries; "
                            "give a longer text or fewer queries",
                            step.tokens, options_.queries));
  KvCache cache = filled(context_, step, exact_policy(), 0);
  exact_ = answers(cache, step);
  const size_t count = options_.policies.size() * options_.seeds + 1;  // and the null control
  Jobs jobs(context_, progress, static_cast<size_t>(step.layer) * count,
            static_cast<size_t>(shape_.layers) * count);
  try {
    measure_all(jobs, step);
  } catch (const Cancelled&) {
    return false;
  }
  return true;
}

std::optional<ProbeReport> probe_model(const Context& context, const Model& model,
                                       std::span<const int32_t> tokens, ProbeOptions options,
                                       const Progress& progress) {
  const ModelConfig& c = model.config();
  const CacheShape shape{.layers = c.layers,
                         .query_heads = c.query_heads,
                         .kv_heads = c.kv_heads,
                         .head_dim = c.head_dim,
                         .sliding_window = c.sliding_window,
                         .context = tokens.size(),
                         .model = c.fingerprint,
                         .soft_cap = c.attention_soft_cap};
  const LayerRopes ropes = model.weights().ropes(tokens.size());
  Probe probe(context, shape, ropes, std::move(options));
  Forward forward(context, model, std::max<size_t>(tokens.size(), 1), MatmulPrecision::kF32);
  forward.set_observer([&](const LayerStep& step) {
    if (!probe.measure(step, progress)) throw Cancelled{};
  });
  // All tokens are one chunk, which attends to its own rows exactly: what the cache keeps of them
  // afterwards does not matter.
  KvCache pass(context, shape, Policy::parse("local(window=1)"), 0, ropes);
  try {
    forward.run(pass, tokens, 0);
  } catch (const Cancelled&) {
    return std::nullopt;
  }
  return probe.report();
}

}  // namespace pith
