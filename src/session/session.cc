#include "pith/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"
#include "session/cpu_backend.h"

namespace pith {
namespace {

SessionOptions checked(SessionOptions o, const ModelConfig& config) {
  if (o.context == 0) o.context = static_cast<size_t>(config.context);
  if (o.chunk == 0 || o.chunk > 65536)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a chunk of {} tokens; choose 1 to 65536", o.chunk));
  if (o.threads < 0 || o.threads > 1024)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} threads; choose 1 to 1024, or 0 for all cores", o.threads));
  o.chunk = std::min(o.chunk, o.context);
  return o;
}

// Selectors that judge rows by the prompt's last queries (SnapKV: 64) find them in one chunk.
constexpr size_t kLastChunk = 64;

size_t next_chunk(size_t left, size_t chunk) {
  if (left <= chunk) return left;
  const size_t rest = left - chunk;
  return rest < kLastChunk && chunk > kLastChunk ? left - kLastChunk : chunk;
}

std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model, const SessionOptions& o) {
  return o.device == Device::kCuda ? make_cuda_backend(std::move(model), o)
                                   : make_cpu_backend(std::move(model), o);
}

}  // namespace

struct Session::State {
  State(std::shared_ptr<const Model> m, const SessionOptions& o)
      : model(std::move(m)),
        options(checked(o, model->config())),
        backend(make_backend(model, options)) {}
  State(const State& o)
      : model(o.model),
        options(o.options),
        backend(o.backend->clone()),
        tokens(o.tokens),
        failure(o.failure) {}

  std::shared_ptr<const Model> model;
  SessionOptions options;
  std::unique_ptr<Backend> backend;
  size_t tokens = 0;
  std::string failure;  ///< why the layers disagree, if they do

  void check_usable() const;
  void check(std::span<const int32_t> ids) const;
  void run_chunk(std::span<const int32_t> ids);
};

void Session::State::check_usable() const {
  if (!failure.empty())
    throw Error(ErrorCode::kInternal, "this session failed before (" + failure +
                                          "); start a new one, or go on from a fork");
}

void Session::State::check(std::span<const int32_t> ids) const {
  check_usable();
  if (ids.empty()) throw Error(ErrorCode::kInvalidArgument, "no tokens were given");
  if (tokens + ids.size() > options.context)
    throw Error(ErrorCode::kContextFull,
                fmt::format("{} tokens after the {} already seen pass the context of {}; raise it "
                            "(-c; the model was trained for {}) or shorten the prompt",
                            ids.size(), tokens, options.context, model->config().context));
  for (int32_t id : ids)
    if (id < 0 || id >= model->config().vocab)
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("token {} is outside the vocabulary of {}", id, model->config().vocab));
}

void Session::State::run_chunk(std::span<const int32_t> ids) {
  try {
    backend->run(ids, static_cast<int64_t>(tokens));
    tokens += ids.size();
  } catch (const std::exception& e) {
    failure = e.what();
    throw;
  }
}

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : state_(std::make_unique<State>(std::move(model), options)) {}
Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Session Session::fork() const { return Session(std::make_unique<State>(*state_)); }

std::span<const float> Session::prefill(std::span<const int32_t> ids, const Progress& progress) {
  append(ids, progress);
  return state_->backend->last_logits();
}

void Session::append(std::span<const int32_t> ids, const Progress& progress) {
  state_->check(ids);
  for (size_t done = 0; done < ids.size();) {
    const size_t count = next_chunk(ids.size() - done, state_->options.chunk);
    state_->run_chunk(ids.subspan(done, count));
    done += count;
    if (progress && !progress(done, ids.size())) break;
  }
  if (ids.size() > 1) state_->backend->end_prefill();
}

int32_t Session::sample(Sampler& sampler, std::span<const int32_t> history) {
  state_->check_usable();
  if (state_->tokens == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "nothing was appended yet; a token is drawn after one that is there");
  return state_->backend->sample(sampler, history);
}

std::span<const float> Session::decode(int32_t token) { return prefill({&token, 1}); }

void Session::prefill_logits(std::span<const int32_t> ids, const LogitsSink& sink) {
  state_->check(ids);
  for (size_t done = 0; done < ids.size();) {
    const size_t count = next_chunk(ids.size() - done, state_->options.chunk);
    state_->run_chunk(ids.subspan(done, count));
    state_->backend->all_logits(
        [&](size_t first, size_t n, const float* logits) { sink(done + first, n, logits); });
    done += count;
  }
  if (ids.size() > 1) state_->backend->end_prefill();
}

void Session::protect(std::span<const TokenRange> ranges) {
  state_->check_usable();
  state_->backend->protect(ranges);
  state_->options.protect.insert(state_->options.protect.end(), ranges.begin(), ranges.end());
}

size_t Session::tokens() const { return state_->tokens; }
size_t Session::context() const { return state_->options.context; }
std::vector<AttentionError> Session::attention_errors() const {
  return state_->backend->attention_errors();
}
HeadRows Session::rows(int layer, int head) const { return state_->backend->rows(layer, head); }
const Model& Session::model() const { return *state_->model; }
const SessionOptions& Session::options() const { return state_->options; }
std::string Session::describe_policy() const { return state_->backend->describe_policy(); }
int Session::threads() const { return state_->backend->threads(); }
const char* Session::isa() const { return state_->backend->isa(); }

Ledger Session::ledger() const { return state_->backend->ledger(); }

Ledger estimate_ledger(const ModelConfig& config, const SessionOptions& options, size_t tokens) {
  const SessionOptions o = checked(options, config);
  ProtectedRows rows;
  rows.add(o.protect, 0, static_cast<int64_t>(o.context));
  const ResolvedPolicy policy(o.policy, cache_shape(config, o), o.seed, o.device);
  if (!o.protect.empty()) policy.check_protect();
  return policy.estimate(tokens, rows);
}

}  // namespace pith
