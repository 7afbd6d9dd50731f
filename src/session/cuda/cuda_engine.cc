// Sessions on the GPU: the runtime's stream and one forward pass for all of an engine's.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/read_rate.h"
#include "model/cuda/device_prompt.h"
#include "runtime/cuda/bits_of_card.h"
#include "session/cuda/cuda_session.h"

namespace pith {
namespace {

/// A prompt that is read exactly, into a copy of the session: an error leaves the copy unfinished.
class CudaPrompt final : public PromptWork {
 public:
  /// The turn is the caller's.
  CudaPrompt(CudaShared& shared, CudaSession& session, std::span<const int32_t> tokens, bool ends)
      : shared_(shared),
        session_(session),
        pass_(std::in_place, shared.forward, session.writes().memory().whole(),
              shared.runtime.stream.stream, session.cache(), tokens, ends) {}
  ~CudaPrompt() override {
    const cuda::Turn turn(shared_.runtime);
    pass_.reset();
    shared_.common->clear_space();
  }

  size_t units() const override { return pass_->units(); }
  size_t units_done() const override { return pass_->units_done(); }
  void advance() override {
    const cuda::Turn turn(shared_.runtime);
    shared_.rows.clear();
    pass_->advance(session_.cache());
  }
  void finish(const Session::LogitsSink& sink) override {
    const cuda::Turn turn(shared_.runtime);
    shared_.rows.clear();
    pass_->finish(session_.state(), sink);
  }

 private:
  CudaShared& shared_;
  CudaSession& session_;
  std::optional<cuda::DevicePrompt> pass_;
};

class CudaEngine final : public EngineBackend {
 public:
  CudaEngine(const std::shared_ptr<const Model>& model, const EngineOptions& o,
             cuda::CudaRuntime& runtime)
      : made_(make(model, o, runtime)), shared_(*made_) {}
  ~CudaEngine() override {
    const cuda::Turn turn(shared_.runtime);
    made_.reset();
  }

  std::unique_ptr<SessionBackend> make_session(const SessionOptions& o) override {
    const cuda::Turn turn(shared_.runtime);
    return std::make_unique<CudaSession>(shared_, o);
  }

  void prepare_tokens(size_t sessions) override {
    const cuda::Turn turn(shared_.runtime);
    shared_.forward.prepare(std::min(sessions, shared_.forward.max_tokens()), shared_.most_calls);
  }

  void run_chunk(SessionBackend& session, std::span<const int32_t> tokens,
                 int64_t first_position) override {
    const cuda::Turn turn(shared_.runtime);
    CudaSession& s = of(session);
    shared_.rows.clear();
    shared_.forward.run_chunk(s.cache(), tokens, first_position, s.state());
  }

  std::unique_ptr<PromptWork> begin_prompt(SessionBackend& session, std::span<const int32_t> tokens,
                                           bool ends) override {
    const cuda::Turn turn(shared_.runtime);
    return std::make_unique<CudaPrompt>(shared_, of(session), tokens, ends);
  }

  /// A pass has rows of one type: it decides how q is rounded. Sessions of one policy stand side by
  /// side, since neighbours share launches.
  void run_tokens(std::span<TokenWork> works) override {
    const cuda::Turn turn(shared_.runtime);
    const auto kind = [](TokenWork* w) {
      const cuda::DeviceCache& cache = of(*w->session).cache();
      return std::pair(cache.dtype(), cache.kind());
    };
    std::vector<TokenWork*> all;
    for (TokenWork& w : works) all.push_back(&w);
    std::ranges::stable_sort(all, {}, kind);
    for (std::span<TokenWork*> left = all; !left.empty();) {
      const auto end = std::ranges::find_if(
          left, [&](TokenWork* w) { return kind(w).first != kind(left.front()).first; });
      const auto alike = static_cast<size_t>(end - left.begin());
      const size_t count = std::min(alike, shared_.forward.max_tokens());
      run_pass(left.first(count));
      left = left.subspan(count);
    }
  }

  void finish(std::span<LogitsWork> works) override {
    const cuda::Turn turn(shared_.runtime);
    std::vector<LogitsWork*> others;
    Finishing there{works.size() > 1};
    for (LogitsWork& w : works) {
      const auto row = row_of(of(*w.session));
      row ? finish_one(w, *row, there) : others.push_back(&w);
    }
    const size_t most = shared_.forward.max_tokens();
    for (size_t first = 0; first < others.size(); first += most) {
      const auto some = std::span(others).subspan(first, std::min(most, others.size() - first));
      std::vector<CudaSession*> sessions;
      for (const LogitsWork* w : some) sessions.push_back(&of(*w->session));
      make_logits(sessions);
      Finishing made{some.size() > 1};
      for (size_t i = 0; i < some.size(); ++i) finish_one(*some[i], i, made);
    }
  }

  std::span<const float> last_logits(SessionBackend& session) override {
    const cuda::Turn turn(shared_.runtime);
    CudaSession& s = of(session);
    if (!row_of(s)) make_logits({&s});
    const std::span<const float> logits = shared_.forward.logits().row(*row_of(s));
    s.logits().assign(logits.begin(), logits.end());
    return s.logits();
  }
  void all_logits(SessionBackend& /*session*/, const Session::LogitsSink& sink) override {
    const cuda::Turn turn(shared_.runtime);
    shared_.rows.clear();
    shared_.forward.logits().of_chunk(sink);
  }

  Ledger ledger() const override {
    Ledger ledger;
    ledger.scratch = shared_.own.bytes(MemoryKind::kScratch) +
                     shared_.runtime.tables->memory.bytes(MemoryKind::kScratch);
    ledger.staging = shared_.own.bytes(MemoryKind::kStaging);
    return ledger;
  }
  const MemoryCounter& memory() const override { return shared_.memory; }
  const MemoryCounter& tables() const override { return shared_.runtime.tables->memory; }
  /// An engine for many has products of its own.
  std::string bits() const override {
    return fmt::format("{}, {}", cuda::bits_of_card(), shared_.forward.bits());
  }

 private:
  static std::unique_ptr<CudaShared> make(const std::shared_ptr<const Model>& model,
                                          const EngineOptions& o, cuda::CudaRuntime& runtime) {
    const cuda::Turn turn(runtime);
    return std::make_unique<CudaShared>(model, o, runtime);
  }
  static CudaSession& of(SessionBackend& session) { return static_cast<CudaSession&>(session); }

  std::optional<size_t> row_of(const CudaSession& session) const {
    const auto at = std::ranges::find(shared_.rows, &session);
    if (at == shared_.rows.end()) return std::nullopt;
    return static_cast<size_t>(at - shared_.rows.begin());
  }

  void run_pass(std::span<TokenWork* const> works) {
    const auto noting = [](TokenWork& w, const auto& act) {
      try {
        act();
      } catch (...) {
        w.failure = std::current_exception();
      }
    };
    shared_.rows.clear();
    shared_.forward.wait_for_uploads();
    std::vector<cuda::TokenRun> runs;
    std::vector<TokenWork*> begun;
    for (TokenWork* w : works) {
      CudaSession& s = of(*w->session);
      noting(*w, [&] { s.cache().steps().begin_token(); });
      if (w->failure) continue;
      begun.push_back(w);
      runs.push_back({&s.cache(), w->token, w->position, s.state()});
    }
    if (runs.empty()) return;
    try {
      shared_.forward.run_tokens(runs);
    } catch (...) {
      for (TokenWork* w : begun) w->failure = std::current_exception();
      return;
    }
    cuda::LateWork late;
    for (TokenWork* w : begun) {
      shared_.rows.push_back(&of(*w->session));
      noting(*w, [&] { of(*w->session).cache().steps().end_token(late); });
    }
    try {
      of(*begun.front()->session).cache().steps().run(late);
      // The next token's descriptors are written while the device works on this one's.
      shared_.forward.wait_for_uploads();
      begin_ahead(begun);
    } catch (...) {
      for (TokenWork* w : begun) w->failure = std::current_exception();
    }
  }

  /// A loop over heads on the host for each session: with many of them it takes as long as the
  /// device's work, beside which it runs.
  void begin_ahead(std::span<TokenWork* const> works) {
    constexpr size_t kFew = 16;
    auto begin = [&](size_t i, int /*worker*/) {
      if (!works[i]->failure) of(*works[i]->session).cache().steps().begin_ahead();
    };
    if (works.size() >= kFew) return shared_.runtime.host().parallel_for(works.size(), begin);
    for (size_t i = 0; i < works.size(); ++i) begin(i, 0);
  }

  void make_logits(const std::vector<CudaSession*>& sessions) {
    std::vector<float*> states;
    for (CudaSession* s : sessions) states.push_back(s->state());
    shared_.rows.clear();
    shared_.forward.make_logits_after(states);
    shared_.rows.assign(sessions.begin(), sessions.end());
  }

  /// Works over the logits that are there.
  struct Finishing {
    bool many = false;     ///< the largest of all rows are found together
    bool largest = false;  ///< they have been
  };

  void finish_one(LogitsWork& w, size_t row, Finishing& all) {
    try {
      if (w.logits) std::ranges::copy(shared_.forward.logits().row(row), w.logits);
      if (w.sampler) w.next = sample(*w.sampler, w.history, row, all);
    } catch (...) {
      w.failure = std::current_exception();
    }
  }

  int32_t sample(Sampler& sampler, std::span<const int32_t> history, size_t row, Finishing& all) {
    const auto vocabulary = static_cast<size_t>(shared_.weights->config().vocab);
    const Sampler::Ranking ranking = sampler.ranking(history, vocabulary);
    if (ranking.count == 0 || ranking.count > cuda::kMostRanked)
      return sampler.sample(shared_.forward.logits().row(row), history);
    std::vector<Sampler::Candidate> best;
    for (const cuda::RankedLogit& x : best_logits(ranking, row, all))
      best.push_back({x.logit, x.id});
    return sampler.sample_ranked(best);
  }

  std::span<const cuda::RankedLogit> best_logits(const Sampler::Ranking& ranking, size_t row,
                                                 Finishing& all) {
    const bool first_alone = ranking.count == 1 && ranking.adjusted.empty() && ranking.mask.empty();
    if (!all.many || !first_alone) {
      std::vector<cuda::LogitAdjustment> adjusted;
      for (const Sampler::Adjustment& a : ranking.adjusted)
        adjusted.push_back({a.id, a.bias, a.divisor, a.minus});
      return shared_.forward.logits().best(row, {nullptr, ranking.count, adjusted, ranking.mask});
    }
    if (!std::exchange(all.largest, true))
      shared_.forward.logits().find_largest(shared_.rows.size());
    return shared_.forward.logits().largest(row);
  }

  std::unique_ptr<CudaShared> made_;
  CudaShared& shared_;
};

}  // namespace

// As make_cpu_engine, which keeps it. NOLINTNEXTLINE(performance-unnecessary-value-param)
std::unique_ptr<EngineBackend> make_cuda_engine(std::shared_ptr<const Model> model,
                                                const EngineOptions& options,
                                                RuntimeBackend& runtime) {
  return std::make_unique<CudaEngine>(model, options, static_cast<cuda::CudaRuntime&>(runtime));
}

double cuda_read_rate() {
  cuda::device_info();
  return cuda::read_rate();
}

size_t cuda_bytes_in_use() {
  cuda::device_info();
  size_t free = 0, all = 0;
  cuda::check(cudaMemGetInfo(&free, &all), "memory in use");
  return all - free;
}

}  // namespace pith
