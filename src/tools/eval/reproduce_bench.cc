#include "tools/eval/reproduce_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include "pith/error.h"
#include "pith/tokenizer.h"
#include "tools/eval/task_runner.h"
#include "tools/eval/tasks.h"

namespace pith {
namespace {

/// Counts work from many threads into one stage.
class Stage {
 public:
  Stage(const StageProgress& progress, std::string name, size_t total)
      : progress_(progress), name_(std::move(name)), total_(total) {}
  bool advance(size_t count) {
    const std::lock_guard lock(mutex_);
    done_ += count;
    return !progress_ || progress_(name_, done_, total_);
  }

 private:
  const StageProgress& progress_;
  std::mutex mutex_;
  std::string name_;
  size_t done_ = 0, total_;
};

}  // namespace

Cell PolicyQuality::cell(Estimate PredictionSummary::*figure, double scale) const {
  std::vector<Estimate> values;
  for (const PredictionSummary& s : seeds) values.push_back(s.*figure);
  const Estimate all = over_seeds(values);
  return {.value = scale * all.mean, .error = scale * all.error};
}
Cell PolicyQuality::perplexity() const { return cell(&PredictionSummary::perplexity); }
Cell PolicyQuality::divergence() const { return cell(&PredictionSummary::divergence); }
Cell PolicyQuality::same_top() const { return cell(&PredictionSummary::same_top, 100); }
Cell PolicyQuality::ln_ratio() const { return cell(&PredictionSummary::ln_ratio); }
Estimate PolicyQuality::above(const PolicyQuality& other) const {
  const auto seeded = [](const PolicyQuality& q) {
    return SeededPredictions(q.predictions.begin(), q.predictions.end());
  };
  return divergence_above(seeded(*this), seeded(other), pieces);
}

std::vector<ReproduceBench::SeededRun> ReproduceBench::seeded(
    const std::vector<NamedPolicy>& policies) const {
  std::vector<SeededRun> runs;
  for (size_t p = 0; p < policies.size(); ++p)
    for (size_t s = 0; s < (policies[p].random ? o_.seeds : 1); ++s)
      runs.push_back({p, o_.session.seed + s, s == 0});
  return runs;
}

std::vector<PolicyQuality> ReproduceBench::quality(const std::string& stage,
                                                   const PerplexityOptions& protocol,
                                                   const std::vector<NamedPolicy>& policies) const {
  PerplexityOptions p = protocol;
  p.session = o_.session;
  p.session.f32_arithmetic = o_.session.device == Device::kCpu;
  p.session.threads = o_.runs_at_once;
  Perplexity perplexity(o_.model, o_.text, p);
  const std::vector<SeededRun> seeded_runs = seeded(policies);
  std::vector<PerplexityRun> runs;
  for (const SeededRun& r : seeded_runs)
    runs.push_back({Policy::parse(policies[r.policy].policy), r.seed});
  Stage counter(o_.progress, stage, perplexity.pieces() * perplexity.steps() * (runs.size() + 1));
  std::vector<std::vector<Prediction>> predictions(runs.size());
  std::vector<PolicyQuality> out(policies.size());
  for (size_t piece = 0; piece < perplexity.pieces(); ++piece) {
    const auto results =
        perplexity.run(piece, runs, [&](size_t tokens) { return counter.advance(tokens); });
    if (results.empty()) throw ReproduceCancelled{};
    for (size_t r = 0; r < runs.size(); ++r) {
      auto& all = predictions[r];
      all.insert(all.end(), results[r].predictions.begin(), results[r].predictions.end());
      if (!seeded_runs[r].first) continue;
      out[seeded_runs[r].policy].ledger = results[r].ledger;
      out[seeded_runs[r].policy].seconds += results[r].seconds;
    }
  }
  for (size_t r = 0; r < runs.size(); ++r) {
    PolicyQuality& quality = out[seeded_runs[r].policy];
    quality.pieces.assign(perplexity.pieces(), perplexity.scored());
    quality.seeds.push_back(summarise(predictions[r], quality.pieces));
    quality.predictions.push_back(std::move(predictions[r]));
  }
  return out;
}

std::vector<PolicyScore> ReproduceBench::scores(const std::string& stage,
                                                const TaskSetting& setting,
                                                const std::vector<NamedPolicy>& policies) const {
  const size_t samples = setting.samples.size();
  std::vector<Sample> made;
  for (const uint64_t number : setting.samples)
    made.push_back(make_sample(
        setting.task, {setting.tokens, number, /*seed=*/42, /*turns=*/8, [&](const std::string& t) {
                         return o_.model->tokenizer().encode(t).size();
                       }}));
  const std::vector<SeededRun> runs = seeded(policies);
  std::vector<SampleResult> results(runs.size() * samples);  // [runs, samples]
  Stage counter(o_.progress, stage, results.size());
  std::atomic<bool> go{true};
  ThreadPool pool(o_.runs_at_once);
  pool.parallel_for(results.size(), [&](size_t i, int) {
    if (!go) return;
    StandaloneOptions s = o_.session;
    s.policy = Policy::parse(policies[runs[i / samples].policy].policy);
    s.seed = runs[i / samples].seed;
    s.threads = 1, s.context = setting.tokens;
    results[i] = run_sample(o_.model, s, made[i % samples]);
    if (!counter.advance(1)) go = false;
  });
  if (!go) throw ReproduceCancelled{};
  std::vector<PolicyScore> out(policies.size());
  std::vector<std::vector<double>> means(policies.size());
  for (size_t r = 0; r < runs.size(); ++r) {
    PolicyScore& score = out[runs[r].policy];
    double sum = 0;
    for (size_t n = 0; n < samples; ++n) {
      const SampleResult& result = results[r * samples + n];
      sum += 100 * result.score();
      if (!runs[r].first) continue;
      score.by_sample.push_back(100 * result.score());
      score.seconds += result.answer_seconds;
      if (n == 0) score.ledger = result.ledger;
    }
    means[runs[r].policy].push_back(sum / static_cast<double>(samples));
  }
  for (size_t p = 0; p < policies.size(); ++p) {
    const Spread all = spread(means[p]);
    out[p].score = {all.mean, all.deviation};
  }
  return out;
}

ProbeReport ReproduceBench::probe(const std::string& stage, size_t tokens, size_t seeds,
                                  const std::vector<NamedPolicy>& policies) const {
  ProbeOptions options;
  for (const NamedPolicy& p : policies) options.policies.push_back(Policy::parse(p.policy));
  options.seeds = seeds, options.seed = o_.session.seed, options.chunk = o_.session.chunk;
  ThreadPool pool(o_.session.threads);
  MemoryCounter memory(o_.session.memory_limit);
  const Context context{pool, memory, kernels_for(o_.session.isa)};
  const auto report = probe_model(
      context, *o_.model, std::span(o_.text).first(tokens), options,
      [&](size_t done, size_t total) { return !o_.progress || o_.progress(stage, done, total); });
  if (!report) throw ReproduceCancelled{};
  return *report;
}

ProbeSummary summarise(const ProbePolicy& policy, size_t first_layer, size_t last_layer) {
  ProbeSummary s;
  const size_t seeds = policy.layers[0].size();
  std::vector<double> errors(seeds), uniforms;
  double heads = 0, log_ratio = 0, compared = 0, won = 0, bytes = 0, channels = 0;
  for (size_t l = first_layer; l <= last_layer; ++l) {
    const auto& trials = policy.layers[l];
    for (size_t g = 0; g < trials[0].errors.size(); ++g) {
      double error = 0, uniform = 0;
      ++heads;
      for (size_t i = 0; i < seeds; ++i) {
        error += trials[i].errors[g], errors[i] += trials[i].errors[g];
        s.rows += static_cast<double>(trials[i].rows[g]) / static_cast<double>(seeds);
        if (trials[i].uniform.empty()) continue;
        uniforms.resize(seeds);
        uniform += trials[i].uniform[g], uniforms[i] += trials[i].uniform[g];
      }
      if (error == 0 || uniform == 0) continue;
      log_ratio += std::log(error / uniform), ++compared, won += error < uniform;
    }
    for (const ProbeTrial& t : trials) {
      bytes += static_cast<double>(t.ledger.cache_bytes());
      channels += static_cast<double>(t.ledger.channels_seen);
    }
  }
  for (double& e : errors) e /= heads;
  for (double& u : uniforms) u /= heads;
  const Spread error = spread(errors), uniform = spread(uniforms);
  s.error = {error.mean, error.deviation};
  if (!uniforms.empty()) s.uniform = {uniform.mean, uniform.deviation};
  if (compared > 0) s.ratio = std::exp(log_ratio / compared), s.won = 100 * won / compared;
  s.rows /= heads, s.bits = 8 * bytes / channels;
  return s;
}

ProbeSummary summarise(const ProbePolicy& policy) {
  return summarise(policy, 0, policy.layers.size() - 1);
}

double mean_rows(const std::string& policy, size_t tokens, size_t last) {
  constexpr int kDim = 16;
  ThreadPool pool(1);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for("")};
  KvCache cache(context, {1, 1, 1, kDim, {}, tokens}, Policy::parse(policy), 0, nullptr);
  const std::vector<float> zeros(kDim);
  std::vector<float> out(kDim);
  double sum = 0;
  for (size_t t = 0; t < tokens; ++t) {
    cache.step(0, out.data(), zeros.data(), zeros.data(), zeros.data(), 1);
    const Occupancy held = cache.held(0, 0);
    if (t + last >= tokens) sum += static_cast<double>(held.sink + held.body + held.window);
  }
  return sum / static_cast<double>(std::min(last, tokens));
}

std::string chain(const std::vector<double>& values, int digits) {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += values[i - 1] < values[i] ? " < " : values[i - 1] > values[i] ? " > " : " = ";
    out += fmt::format("{:.{}f}", values[i], digits);
  }
  return out;
}

bool ascending(const std::vector<double>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end();
}

}  // namespace pith
