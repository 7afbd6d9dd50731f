#include "pith/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/allocation.h"
#include "model/prompt_blocks.h"
#include "pith/error.h"
#include "session/state.h"

namespace pith {
namespace {

SessionOptions with_context(SessionOptions o, const ModelConfig& config) {
  if (o.context == 0) o.context = static_cast<size_t>(config.context);
  return o;
}

/// An engine for one session and its forks: no pass is longer than what they may see.
EngineOptions own_engine(const StandaloneOptions& o, const ModelConfig& config) {
  EngineOptions own = o;
  own.chunk = std::min(own.chunk, with_context(o, config).context);
  return own;
}

std::shared_ptr<Engine> given(std::shared_ptr<Engine> engine) {
  if (engine) return engine;
  throw Error(ErrorCode::kInvalidArgument,
              "a session without an engine; make one with std::make_shared<Engine>(model)");
}

}  // namespace

Session::State::State(std::shared_ptr<Engine> e, const SessionOptions& o, bool its_own)
    : engine(given(std::move(e))),
      own_engine(its_own),
      options(with_context(o, engine->model()->config())),
      backend(device().make_session(options)) {}

Session::State::State(const State& o)
    : engine(o.engine),
      own_engine(o.own_engine),
      options(o.options),
      backend(o.backend->clone()),
      seen(o.seen),
      failure(o.failure),
      in_prompt(o.in_prompt),
      cuts(o.cuts) {
  if (o.backend->has_room()) backend->own();  // rows in common would take the other's room
}

void Session::State::check_usable() const {
  if (!failure.empty())
    throw Error(ErrorCode::kInvalidArgument, "this session failed before (" + failure +
                                                 "); start a new one, or go on from a fork");
}

void Session::State::check(std::span<const int32_t> ids, Append how) const {
  check_usable();
  const ModelConfig& config = engine->model()->config();
  if (ids.empty()) throw Error(ErrorCode::kInvalidArgument, "no tokens were given");
  if (seen->size() + ids.size() > options.context)
    throw Error(ErrorCode::kContextFull,
                fmt::format("{} tokens after the {} already seen pass the context of {}; raise it "
                            "(-c; the model was trained for {}) or shorten the prompt",
                            ids.size(), seen->size(), options.context, config.context));
  for (int32_t id : ids)
    if (id < 0 || id >= config.vocab)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("token {} is outside the vocabulary of {}", id, config.vocab));
  if (!reads_exactly(how, ids.size())) return;
  if (how == Append::kPart)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("part of a prompt under prompt={}, which reads it a layer at a time; "
                            "append all its tokens in one call (PromptReader does)",
                            to_string(options.policy.prompt)));
  if (how == Append::kMore && options.policy.prompt == PromptReading::kOnce)
    throw Error(
        ErrorCode::kInvalidArgument,
        "a fork point under prompt=once, whose selector selects when the prompt ends; append "
        "all its tokens in one call, or choose prompt=exact");
}

void Session::State::fail(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const std::exception& e) {
    failure = e.what();
  }
}

size_t Session::State::run(std::span<const int32_t> ids, Append how, const RunWatch& watch) {
  const bool exactly = reads_exactly(how, ids.size());
  const size_t done = exactly ? run_exactly(ids, how, watch) : run_chunks(ids, watch);
  if (reading) return done;
  // A prompt that is broken off has not ended: its rest may come later.
  if (done < ids.size()) how = Append::kPart;
  came(how);
  if (ends_prompt(how, ids.size()) && !exactly) end_prompt();
  return done;
}

size_t Session::State::at_once(size_t tokens) const {
  return std::min(tokens, engine->options().chunk);
}

void Session::State::drop(std::unique_ptr<Reading>& begun) noexcept {
  if (!begun) return;
  begun->work = nullptr;
  if (begun->copy) backend->take_room_of(std::move(begun->copy));
  begun = nullptr;
}

size_t Session::State::run_exactly(std::span<const int32_t> ids, Append how,
                                   const RunWatch& watch) {
  // Whatever is thrown here drops what was read so far.
  std::unique_ptr<Reading> now;
  if (reading && reading->how == how && std::ranges::equal(reading->ids, ids))
    now = std::move(reading);
  drop(reading);
  if (!now) {
    backend->own();  // without room for that it stays as it was
    seen.own();
    now = std::make_unique<Reading>(Reading{{ids.begin(), ids.end()}, how, {}, {}});
    // A copy of an empty session costs nothing.
    if (watch.progress || watch.slice > 0 || seen->empty()) {
      now->copy = backend->clone();
      now->copy->own();
      now->copy->take_room(*backend);
    }
    SessionBackend& reads = now->copy ? *now->copy : *backend;
    try {
      reads.ask({ids.size(), at_once(ids.size()), watch.logits, true});
      now->work = device().begin_prompt(reads, ids, ends_prompt(how, ids.size()));
    } catch (...) {
      drop(now);
      throw;
    }
  }
  PromptWork& work = *now->work;
  try {
    for (size_t ran = 0; work.units_done() < work.units(); ++ran) {
      if (watch.slice > 0 && ran == watch.slice) {
        reading = std::move(now);
        return 0;
      }
      {
        const std::lock_guard turn(shared().turn);
        work.advance();
      }
      const size_t done = ids.size() * work.units_done() / work.units();
      if (watch.progress && !watch.progress(done, ids.size()) && work.units_done() < work.units()) {
        drop(now);
        return 0;
      }
    }
    const std::lock_guard turn(shared().turn);
    work.finish(watch.sink);
    std::vector<int32_t>& all = seen.own();
    all.insert(all.end(), ids.begin(), ids.end());
  } catch (...) {
    if (now && !now->copy) fail(std::current_exception());
    drop(now);
    throw;
  }
  if (now->copy) backend = std::move(now->copy);
  return ids.size();
}

size_t Session::State::run_chunks(std::span<const int32_t> ids, const RunWatch& watch) {
  backend->own();  // without room for that it stays as it was
  {
    const std::lock_guard turn(shared().turn);
    for (size_t left = ids.size(), count = 0; left > 0; left -= count) {
      count = engine->next_chunk(left);
      device().prepare_chunk(count);
    }
    device().prepare_logits(watch.sink ? at_once(ids.size()) : 1);
  }
  backend->ask({ids.size(), at_once(ids.size()), watch.logits});
  size_t done = 0;
  while (done < ids.size()) {
    const size_t count = engine->next_chunk(ids.size() - done);
    LogitsSink of_chunk;
    if (watch.sink) {
      of_chunk = [&](size_t first, size_t n, const float* logits) {
        watch.sink(done + first, n, logits);
      };
    }
    run_chunk(ids.subspan(done, count), of_chunk);
    done += count;
    if (watch.progress && !watch.progress(done, ids.size())) break;
  }
  return done;
}

void Session::State::run_chunk(std::span<const int32_t> ids, const LogitsSink& sink) {
  const auto first = static_cast<int64_t>(seen->size());
  std::vector<int32_t>& all = seen.own();
  const std::lock_guard turn(shared().turn);
  try {
    if (ids.size() > 1 || sink) {
      device().run_chunk(*backend, ids, first);
    } else {
      TokenWork work{backend.get(), ids[0], first};
      device().run_tokens({&work, 1});
      if (work.failure) std::rethrow_exception(work.failure);
    }
    all.insert(all.end(), ids.begin(), ids.end());
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  if (sink) device().all_logits(*backend, sink);
}

void Session::State::came(Append how) {
  drop(reading);  // what was read of it began before these tokens
  in_prompt = in_prompt && (how == Append::kMore || how == Append::kPart);
  if (in_prompt && how == Append::kMore) cuts.push_back(seen->size());
}

void Session::State::end_prompt() {
  const std::lock_guard turn(shared().turn);
  try {
    backend->end_prompt();
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

Session::Session(std::shared_ptr<Engine> engine, const SessionOptions& options)
    : state_(std::make_unique<State>(std::move(engine), options, false)) {}
Session::Session(std::shared_ptr<const Model> model, const StandaloneOptions& options) {
  if (!model)
    throw Error(ErrorCode::kInvalidArgument,
                "a session without a model; load one with Model::load");
  const EngineOptions own = own_engine(options, model->config());
  state_ = std::make_unique<State>(std::make_shared<Engine>(std::move(model), own), options, true);
}
Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Session Session::fork(Copy when) const {
  Session fork(std::make_unique<State>(there(state_)));
  if (when == Copy::kNow) fork.state_->backend->own();
  return fork;
}

std::span<const float> Session::prefill(std::span<const int32_t> ids, const Progress& progress) {
  there(state_).check(ids, Append::kWhole);
  const State::Settles then(*state_);
  state_->run(ids, Append::kWhole, {.progress = progress, .logits = true});
  const std::lock_guard turn(state_->shared().turn);
  return state_->device().last_logits(*state_->backend);
}

void Session::append(std::span<const int32_t> ids, const Progress& progress) {
  append(ids, Append::kWhole, progress);
}

void Session::append(std::span<const int32_t> ids, Append how, const Progress& progress) {
  there(state_).check(ids, how);
  const State::Settles then(*state_);
  state_->run(ids, how, {.progress = progress});
}

int32_t Session::sample(Sampler& sampler) {
  there(state_).check_usable();
  if (state_->seen->empty())
    throw Error(ErrorCode::kInvalidArgument,
                "nothing was appended yet; a token is drawn after one that is there");
  sampler.set_draw(state_->seen->size());
  LogitsWork work{state_->backend.get(), nullptr, &sampler, *state_->seen};
  const std::lock_guard turn(state_->shared().turn);
  state_->device().finish({&work, 1});
  if (work.failure) std::rethrow_exception(work.failure);
  return work.next;
}

std::span<const float> Session::decode(int32_t token) { return prefill({&token, 1}); }

void Session::prefill_logits(std::span<const int32_t> ids, const LogitsSink& sink) {
  there(state_).check(ids, Append::kWhole);
  const State::Settles then(*state_);
  state_->run(ids, Append::kWhole, {.sink = sink});
}

std::vector<TokenScore> Session::score(std::span<const int32_t> ids) {
  there(state_).check(ids, Append::kWhole);
  std::vector<TokenScore> scores(ids.size());
  const auto vocabulary = static_cast<size_t>(model().config().vocab);
  const auto look = [&](const float* logits, size_t at) {
    const TokenLogprobs p = log_probabilities({logits, vocabulary}, ids[at], 1);
    scores[at] = {p.logprob, p.top[0].id};
  };
  if (tokens() > 0) {
    const std::lock_guard turn(state_->shared().turn);
    look(state_->device().last_logits(*state_->backend).data(), 0);
  }
  prefill_logits(ids, [&](size_t first, size_t count, const float* logits) {
    for (size_t i = 0; i < count && first + i + 1 < ids.size(); ++i)
      look(logits + i * vocabulary, first + i + 1);
  });
  return scores;
}

void Session::protect(std::span<const TokenRange> ranges) {
  there(state_).check_usable();
  state_->backend->protect(ranges);
  state_->drop(state_->reading);
  state_->options.protect.insert(state_->options.protect.end(), ranges.begin(), ranges.end());
}

void Session::State::check_room(size_t tokens) const {
  check_usable();
  if (tokens <= options.context - seen->size()) return;
  throw Error(ErrorCode::kContextFull,
              fmt::format("room for {} tokens after the {} already seen, in a context of {}; "
                          "raise it (-c), or ask for fewer",
                          tokens, seen->size(), options.context));
}

size_t Session::room(size_t tokens) const {
  const State& s = there(state_);
  s.check_room(tokens);
  return s.backend->room({tokens, s.at_once(tokens), true, true});
}

void Session::reserve(size_t tokens) {
  State& s = there(state_);
  s.check_room(tokens);
  s.drop(s.reading);
  if (tokens > 0) {
    s.backend->own();
    const std::lock_guard turn(s.shared().turn);
    s.device().prepare_chunk(s.at_once(tokens));
    // With it as many as have room. A short rest of a prompt runs as many sessions' tokens do.
    constexpr size_t kFew = 16;
    const auto all = static_cast<size_t>(s.shared().rooms.use_count()) - (s.room ? 1 : 0);
    const size_t sessions = std::max(all, kFew);
    s.device().prepare_tokens(sessions);
    s.device().prepare_logits(all);
  }
  s.backend->reserve({tokens, s.at_once(tokens), true, true});
  s.room = tokens > 0 ? s.shared().rooms : nullptr;
}

bool Session::try_reserve(size_t tokens) {
  try {
    reserve(tokens);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kOutOfMemory) throw;
    return false;
  }
  return true;
}

size_t Session::tokens() const { return there(state_).seen->size(); }
size_t Session::context() const { return there(state_).options.context; }
std::span<const int32_t> Session::token_ids() const { return *there(state_).seen; }
std::vector<AttentionError> Session::attention_errors() const {
  return there(state_).backend->attention_errors();
}
HeadRows Session::rows(int layer, int head) const {
  return there(state_).backend->rows(layer, head);
}
const Model& Session::model() const { return *there(state_).engine->model(); }
const std::shared_ptr<Engine>& Session::engine() const { return there(state_).engine; }
const SessionOptions& Session::options() const { return there(state_).options; }
std::string Session::describe_policy() const { return there(state_).backend->describe_policy(); }
int Session::threads() const { return there(state_).engine->threads(); }
const char* Session::isa() const { return there(state_).engine->isa(); }

Ledger Session::ledger() const {
  Ledger ledger = there(state_).backend->ledger();
  if (!state_->own_engine) return ledger;
  const MemoryCounter& all = state_->device().memory();
  ledger.scratch = all.bytes(MemoryKind::kScratch);
  ledger.staging = all.bytes(MemoryKind::kStaging);
  ledger.probe = all.bytes(MemoryKind::kProbe);
  return ledger;
}

Ledger estimate_ledger(const ModelConfig& config, const SessionOptions& options, size_t tokens,
                       Device device) {
  const SessionOptions o = with_context(options, config);
  ProtectedRows rows;
  rows.add(o.protect, 0, static_cast<int64_t>(o.context));
  const ResolvedPolicy policy(o.policy, cache_shape(config, o), o.seed, device);
  if (!o.protect.empty()) policy.check_protect();
  Ledger most = policy.estimate(tokens, rows);
  // Where the last token left off, and its logits, which are the host's where there is a GPU.
  most.scratch += grown_bytes(static_cast<size_t>(config.hidden) * sizeof(float));
  if (device == Device::kCpu)
    most.scratch += grown_bytes(static_cast<size_t>(config.vocab) * sizeof(float));
  most.scratch += device == Device::kCpu ? prompt_bytes(config, o.policy.prompt, tokens)
                                         : prompt_bytes_on_gpu(config, policy, tokens);
  return most;
}

Ledger estimate_ledger(const ModelConfig& config, const StandaloneOptions& options, size_t tokens) {
  return estimate_ledger(config, options, tokens, options.device);
}

}  // namespace pith
