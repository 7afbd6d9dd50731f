// Passes over many sessions: checks, turns and who failed. A backend computes.

#include "pith/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "runtime/runtime.h"
#include "session/state.h"

namespace pith {
namespace {

/// `asked` of an option that a runtime has: throws unless it is the runtime's.
void check_same(bool same, const char* option, const std::string& asked, const std::string& has) {
  if (same) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("an engine's {} {} and a runtime of {}; leave the option out, or give the "
                  "engine a runtime of its own",
                  option, asked, has));
}

std::string name_of(Device device) { return device == Device::kCuda ? "cuda" : "cpu"; }

/// With the options of a given runtime filled in.
EngineOptions with_runtime(EngineOptions o) {
  if (!o.runtime) return o;
  const RuntimeOptions& r = o.runtime->options();
  const int threads = r.threads > 0 ? r.threads : o.runtime->threads();
  check_same(o.device == Device::kCpu || o.device == r.device, "device", name_of(o.device),
             name_of(r.device));
  check_same(o.threads == 0 || o.threads == threads, "threads", std::to_string(o.threads),
             std::to_string(threads));
  check_same(o.isa.empty() || o.isa == o.runtime->isa(), "isa", o.isa, o.runtime->isa());
  check_same(o.memory_limit == 0 || o.memory_limit == r.memory_limit, "memory_limit",
             std::to_string(o.memory_limit),
             r.memory_limit == 0 ? "no limit" : std::to_string(r.memory_limit));
  o.device = r.device;
  o.threads = r.threads;
  o.isa = r.isa;
  o.memory_limit = r.memory_limit;
  return o;
}

std::shared_ptr<Runtime> runtime_of(const EngineOptions& o) {
  if (o.runtime) return o.runtime;
  return std::make_shared<Runtime>(RuntimeOptions{
      .device = o.device, .threads = o.threads, .memory_limit = o.memory_limit, .isa = o.isa});
}

EngineOptions checked(const EngineOptions& o) {
  if (o.chunk == 0 || o.chunk > 65536)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a chunk of {} tokens; choose 1 to 65536", o.chunk));
  if (o.parallel == 0 || o.parallel > 1024)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} sessions in a pass; choose 1 to 1024", o.parallel));
  return with_runtime(o);
}

std::shared_ptr<const Model> given(std::shared_ptr<const Model> model) {
  if (model) return model;
  throw Error(ErrorCode::kInvalidArgument, "an engine without a model; load one with Model::load");
}

std::unique_ptr<EngineBackend> make_engine(const std::shared_ptr<const Model>& model,
                                           const EngineOptions& o, RuntimeBackend& runtime) {
  return o.device == Device::kCuda ? make_cuda_engine(model, o, runtime)
                                   : make_cpu_engine(model, o, runtime);
}

// Selectors that select rows by the prompt's last queries (SnapKV: 64) find them in one chunk.
constexpr size_t kLastChunk = 64;

Error as_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory, "the machine has no memory left");
  } catch (const std::exception& e) {
    return Error(ErrorCode::kInternal, e.what());
  }
}

}  // namespace

/// Those of a step; works that have failed are passed over.
class Engine::Step {
 public:
  /// Throws kInvalidArgument for works that are no works of this engine's.
  Step(const Engine& engine, State& state, std::span<Work> works) : state_(state), works_(works) {
    std::set<const Session*> seen;
    for (Work& w : works) {
      if (!w.session || !w.session->state_ || w.session->engine().get() != &engine)
        throw Error(ErrorCode::kInvalidArgument,
                    "a step was given a work without a session, or with one of another engine; "
                    "make sessions with the engine that runs them");
      if (!seen.insert(w.session).second)
        throw Error(ErrorCode::kInvalidArgument,
                    "a step was given two works of one session; give it one at a time");
      w.next = -1;
      w.failure.reset();
      w.appended = w.goes_on = false;
    }
  }

  void run() {
    each([](Work& w, Session::State& s) {
      s.check(w.tokens, w.append);
      if (w.sampler) (void)w.sampler->options();  // refused if it was moved from
      s.backend->own();
    });
    prepare();
    each([](Work& w, Session::State& s) {
      if (is_token(w)) s.backend->ask({.tokens = 1, .at_once = 1});
    });
    run_tokens();
    each([](Work& w, Session::State& s) {
      if (!is_token(w)) return;
      w.appended = true;
      s.came(w.append);
      if (ends_prompt(w.append, 1)) s.end_prompt();
    });
    for (Work& w : works_) state_of(w).backend->settle();
    finish(is_token);
    each([](Work& w, Session::State& s) {
      if (is_token(w)) return;
      const Session::State::Settles then(s);
      const Appended says(w, s);
      s.run(w.tokens, w.append, {.slice = w.slice});
      w.goes_on = s.reading != nullptr;
    });
    finish([](const Work& w) { return !is_token(w) && !w.goes_on; });
  }

 private:
  /// Says in a work, when it goes, whether its tokens came, also where what followed failed.
  class Appended {
   public:
    Appended(Work& work, const Session::State& state)
        : work_(work), state_(state), all_(state.seen->size() + work.tokens.size()) {}
    ~Appended() { work_.appended = state_.seen->size() == all_; }
    Appended(const Appended&) = delete;
    Appended& operator=(const Appended&) = delete;

   private:
    Work& work_;
    const Session::State& state_;
    size_t all_;
  };

  static Session::State& state_of(const Work& w) { return *w.session->state_; }
  /// One that goes with others in one pass.
  static bool is_token(const Work& w) {
    return w.tokens.size() == 1 && !state_of(w).reads_exactly(w.append, 1);
  }

  template <class F>
  void each(const F& f) {
    for (Work& w : works_) {
      if (w.failure) continue;
      try {
        f(w, state_of(w));
      } catch (...) {
        w.failure = as_error(std::current_exception());
      }
    }
  }

  /// Buffers that all share, before anything is asked of a session.
  void prepare() {
    const auto tokens = static_cast<size_t>(
        std::ranges::count_if(works_, [](const Work& w) { return !w.failure && is_token(w); }));
    try {
      const std::lock_guard turn(state_.turn);
      if (tokens > 0) state_.backend->prepare_tokens(tokens);
      state_.backend->prepare_logits(works_.size());
    } catch (...) {
      for (Work& w : works_)
        if (!w.failure) w.failure = as_error(std::current_exception());
    }
  }

  void run_tokens() {
    std::vector<Work*> of;
    std::vector<TokenWork> tokens;
    for (Work& w : works_) {
      if (w.failure || !is_token(w)) continue;
      Session::State& s = state_of(w);
      of.push_back(&w);
      tokens.push_back({s.backend.get(), w.tokens[0], static_cast<int64_t>(s.seen->size())});
    }
    if (tokens.empty()) return;
    try {
      const std::lock_guard turn(state_.turn);
      state_.backend->run_tokens(tokens);
    } catch (...) {
      for (TokenWork& t : tokens) t.failure = std::current_exception();
    }
    for (size_t i = 0; i < of.size(); ++i) {
      Session::State& s = state_of(*of[i]);
      if (tokens[i].failure) {
        s.fail(tokens[i].failure);
        of[i]->failure = as_error(tokens[i].failure);
      } else {
        s.seen.own().push_back(tokens[i].token);
      }
    }
  }

  /// Makes what is wanted of the logits of some works.
  template <class Which>
  void finish(const Which& which) {
    std::vector<Work*> of;
    std::vector<LogitsWork> wanted;
    for (Work& w : works_) {
      if (w.failure || !which(w) || (!w.logits && !w.sampler)) continue;
      of.push_back(&w);
      Session::State& s = state_of(w);
      if (w.sampler) w.sampler->set_draw(s.seen->size());
      wanted.push_back({s.backend.get(), w.logits, w.sampler, *s.seen});
    }
    if (wanted.empty()) return;
    try {
      const std::lock_guard turn(state_.turn);
      state_.backend->finish(wanted);
    } catch (...) {
      for (LogitsWork& l : wanted) l.failure = std::current_exception();
    }
    for (size_t i = 0; i < of.size(); ++i) {
      of[i]->next = wanted[i].next;
      if (wanted[i].failure) of[i]->failure = as_error(wanted[i].failure);
    }
  }

  State& state_;
  std::span<Work> works_;
};

Engine::State::State(std::shared_ptr<const Model> m, const EngineOptions& o)
    : model(std::move(m)),
      options(checked(o)),
      runtime(runtime_of(options)),
      turn(runtime->state_->backend->turn),
      backend(make_engine(model, options, *runtime->state_->backend)) {}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : state_(std::make_unique<State>(given(std::move(model)), options)) {}
Engine::~Engine() = default;

void Engine::step(std::span<Work> works) { Step(*this, *state_, works).run(); }

size_t Engine::next_chunk(size_t left) const {
  const size_t chunk = state_->options.chunk;
  if (left <= chunk) return left;
  const size_t rest = left - chunk;
  return rest < kLastChunk && chunk > kLastChunk ? left - kLastChunk : chunk;
}

Ledger Engine::ledger() const { return state_->backend->ledger(); }
size_t Engine::bytes_in_use() const {
  return state_->backend->memory().total() + state_->backend->tables().total();
}
size_t Engine::peak_bytes() const {
  // The two may have had theirs at different times, but both are in the runtime's.
  const size_t apart = state_->backend->memory().peak() + state_->backend->tables().peak();
  return std::min(apart, state_->runtime->peak_bytes());
}
size_t Engine::bytes_reserved() const { return set_aside(state_->backend->memory()); }
void Engine::set_memory_limit(size_t bytes) { state_->runtime->set_memory_limit(bytes); }
const std::shared_ptr<const Model>& Engine::model() const { return state_->model; }
const EngineOptions& Engine::options() const { return state_->options; }
const std::shared_ptr<Runtime>& Engine::runtime() const { return state_->runtime; }
int Engine::threads() const { return state_->runtime->threads(); }
const char* Engine::isa() const { return state_->runtime->isa(); }

}  // namespace pith
