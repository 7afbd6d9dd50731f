#include "tools/eval/error_calibration.h"

#include <algorithm>
#include <cmath>

#include "core/thread_pool.h"
#include "model/forward.h"
#include "model/loaders/weights.h"

namespace pith {
namespace {

constexpr double kFade = 1 - 1.0 / 32;  // the probe's

/// Fading sums of squares, as the probe has them.
struct Truth {
  double error = 0, size = 0;
  void add(std::span<const float> policy, std::span<const float> exact) {
    error *= kFade, size *= kFade;
    for (size_t i = 0; i < exact.size(); ++i) {
      error += (double{policy[i]} - exact[i]) * (double{policy[i]} - exact[i]);
      size += double{exact[i]} * exact[i];
    }
  }
};

class Calibration {
 public:
  Calibration(const Context& context, const CacheShape& shape, const LayerRopes& ropes,
              const CalibrationOptions& o)
      : o_(o),
        width_(static_cast<size_t>(shape.query_heads * shape.head_dim)),
        exact_(context, shape, Policy::parse("exact+f32"), 0, ropes),
        truths_(static_cast<size_t>(shape.layers) * o.policies.size() * o.seeds) {
    for (size_t p = 0; p < o.policies.size(); ++p)
      for (size_t s = 0; s < o.seeds; ++s) {
        caches_.emplace_back(context, shape, o.policies[p], o.session.seed + s, ropes);
        caches_.back().start_error_probe(o.probe, o.session.seed + s);
      }
  }

  void step(const LayerStep& step) {
    std::vector<float> exact(step.tokens * width_), out(step.tokens * width_);
    exact_.step(step.layer, exact.data(), step.q, step.k, step.v, step.tokens);
    const bool compared = step.tokens == 1 && steps_ % o_.probe.every == 0;
    for (size_t i = 0; i < caches_.size(); ++i) {
      caches_[i].step(step.layer, out.data(), step.q, step.k, step.v, step.tokens);
      if (compared) truths_[static_cast<size_t>(step.layer) * caches_.size() + i].add(out, exact);
    }
  }
  void end_prompt() {
    for (KvCache& cache : caches_) cache.end_prefill();
  }
  void end_step() { ++steps_; }

  std::vector<CalibrationPoint> points() const {
    std::vector<CalibrationPoint> points;
    for (size_t p = 0; p < o_.policies.size(); ++p) {
      std::vector<std::vector<AttentionError>> results;
      for (size_t s = 0; s < o_.seeds; ++s)
        results.push_back(caches_[p * o_.seeds + s].attention_errors());
      for (size_t l = 0; l < results[0].size(); ++l) {
        CalibrationPoint point{p, results[0][l].layer, {}, {}};
        for (size_t s = 0; s < o_.seeds; ++s) {
          const Truth& t =
              truths_[static_cast<size_t>(point.layer) * caches_.size() + p * o_.seeds + s];
          point.truth.push_back(std::sqrt(t.error / t.size));
          point.probes.push_back(results[s][l]);
        }
        points.push_back(std::move(point));
      }
    }
    return points;
  }

 private:
  const CalibrationOptions& o_;
  size_t width_;
  KvCache exact_;
  std::vector<KvCache> caches_;  // [policies, seeds]
  std::vector<Truth> truths_;    // [L, policies, seeds]
  size_t steps_ = 0;
};

}  // namespace

std::vector<CalibrationPoint> calibrate_error_probe(const Model& model,
                                                    std::span<const int32_t> text,
                                                    const CalibrationOptions& o,
                                                    const Progress& progress) {
  const ModelConfig& c = model.config();
  const size_t all = o.prompt + o.steps;
  const CacheShape shape{c.layers, c.query_heads, c.kv_heads, c.head_dim, c.sliding_window, all};
  ThreadPool pool(o.session.threads);
  MemoryCounter memory(o.session.memory_limit);
  const Context context{pool, memory, kernels_for(o.session.isa)};
  const LayerRopes ropes = model.weights().ropes(all);
  Calibration calibration(context, shape, ropes, o);
  Forward forward(context, model, o.session.chunk, MatmulPrecision::kF32);
  forward.set_observer([&](const LayerStep& step) { calibration.step(step); });
  KvCache pass(context, shape, Policy::parse("exact+f32"), 0, ropes);
  for (size_t at = 0; at < all;) {
    const size_t count = at < o.prompt ? std::min(o.session.chunk, o.prompt - at) : 1;
    forward.run(pass, text.subspan(at, count), static_cast<int64_t>(at));
    at += count;
    if (at == o.prompt) calibration.end_prompt();
    if (at > o.prompt) calibration.end_step();
    if (progress && !progress(at, all)) return {};
  }
  return calibration.points();
}

CalibrationSummary summarise(std::span<const CalibrationPoint> points) {
  CalibrationSummary s;
  for (const CalibrationPoint& point : points)
    for (size_t i = 0; i < point.probes.size(); ++i) {
      const AttentionError& e = point.probes[i];
      const double truth = point.truth[i];
      ++s.count;
      s.truth += truth * truth, s.estimate += e.estimate * e.estimate;
      s.covered += e.low <= truth && truth <= e.high;
      s.above += e.low > truth, s.width += e.high - e.low;
    }
  const auto n = static_cast<double>(std::max<size_t>(s.count, 1));
  s.truth = std::sqrt(s.truth / n), s.estimate = std::sqrt(s.estimate / n);
  s.covered /= n, s.above /= n, s.width /= n;
  return s;
}

}  // namespace pith
