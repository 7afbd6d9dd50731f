// Session::save and restore: what a session is made of goes into its file, and what it depends on
// into the file's key.

#include "pith/saved.h"

#include <fmt/format.h>

#include "core/digest.h"
#include "model/loaders/weights_digest.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "session/session_file.h"
#include "session/session_key.h"
#include "session/state.h"

namespace pith {
namespace {

constexpr const char* kPrompt = "prompt";
constexpr const char* kUnnamed = "a saved session";  // one that is no file

/// A file's protected tokens come with their rows.
template <class Options>
Options without_protected(Options options) {
  options.protect.clear();
  return options;
}

/// Models without one are given ids.
std::string tokenizer_digest(const Tokenizer* tokenizer) {
  if (!tokenizer) return "none";
  DigestStream stream;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) stream.add_text(tokenizer->piece(id));
  return stream.digest().text();
}

/// Whatever changes a later bit is a field.
SessionKey file_key(const Engine& engine, const EngineBackend& device, const SessionOptions& o) {
  const Model& model = *engine.model();
  const ModelConfig& c = model.config();
  const EngineOptions& e = engine.options();
  SessionKey key = {{"model", fmt::format("{}, {} layers", c.architecture, c.layers)},
                    {"weights", digest_of_model(model.weights()).text()},
                    {"tokenizer", tokenizer_digest(model.weights().tokenizer.get())},
                    {"device", e.device == Device::kCuda ? "cuda" : "cpu"}};
  for (auto& field : session_key(engine, o)) key.push_back(std::move(field));
  key.insert(key.end(), {{"chunk", std::to_string(e.chunk)},
                         {"arithmetic", e.f32_arithmetic ? "f32" : "fast"},
                         {"isa", device.bits()}});
  return key;
}

/// Where the pieces of a prompt that goes on were cut: the prefix tree asks for it.
template <class State>
void archive_cuts(Archive& a, State& state, size_t tokens) {
  a.flag(state.in_prompt);
  uint64_t count = state.cuts.size();
  a.number(count, uint64_t{tokens}, "more pieces of a prompt than tokens");
  state.cuts.resize(count);
  size_t before = 0;
  for (size_t& cut : state.cuts) {
    uint64_t at = cut;
    a.number(at, uint64_t{tokens}, "a piece of a prompt past its end");
    a.need(at > before, "pieces of a prompt out of order");
    before = cut = at;
  }
}

/// The checks before a row is loaded: of a stream, which comes once, its header alone.
template <class Saved>
void check(const Saved& saved, const Engine& engine, const EngineBackend& device,
           const SessionOptions& options) {
  saved.check_key(file_key(engine, device, options));
  if constexpr (requires { saved.verify(); }) saved.verify();
}

std::vector<SessionSection> sections_of(SessionBackend& session, int layers) {
  std::vector<SessionSection> all;
  all.push_back({"cache", [&session](Archive& a) { session.archive(a); }});
  for (int l = 0; l < layers; ++l)
    all.push_back(
        {fmt::format("layers.{}", l), [&session, l](Archive& a) { session.archive_layer(l, a); }});
  all.push_back({"last", [&session](Archive& a) {
                   bool any = session.tokens() > 0;
                   a.flag(any);
                   a.need(any == (session.tokens() > 0), "tokens that left off nowhere");
                   if (any) session.archive_last(a);
                 }});
  return all;
}

}  // namespace

SessionKey session_key(const Engine& engine, const SessionOptions& o) {
  const ResolvedPolicy policy(o.policy, cache_shape(engine.model()->config(), o), o.seed,
                              engine.options().device);
  const auto probe = fmt::format("{} rows every {} steps", o.error_probe.rows, o.error_probe.every);
  return {{"policy", policy.describe()},
          {"context", std::to_string(o.context)},
          {"per cent of", std::to_string(o.percent_of)},
          {"seed", std::to_string(o.seed)},
          {"error probe", o.error_probe.rows > 0 ? probe : "none"}};
}

SessionContents Session::contents(const SaveOptions& options) const {
  there(state_).check_usable();
  const int layers = state_->engine->model()->config().layers;
  SessionContents contents{file_key(*state_->engine, state_->device(), state_->options),
                           *state_->seen, sections_of(*state_->backend, layers), options.note};
  contents.sections.push_back({kPrompt, [state = state_.get()](Archive& a) {
                                 archive_cuts(a, *state, state->seen->size());
                               }});
  return contents;
}

void Session::save(const std::filesystem::path& path, const SaveOptions& options) const {
  write_session_file(path, contents(options), {.replace = options.replace});
}

void Session::save(const StateSink& sink, const SaveOptions& options) const {
  write_session(sink, contents(options));
}

Session Session::restore(std::shared_ptr<Engine> engine, const std::filesystem::path& path,
                         const SessionOptions& options) {
  return restored(Session(std::move(engine), without_protected(options)), SessionFile(path),
                  options.protect);
}

Session Session::restore(std::shared_ptr<Engine> engine, const StateSource& source,
                         const SessionOptions& options) {
  return restored(Session(std::move(engine), without_protected(options)),
                  SessionStream(kUnnamed, source), options.protect);
}

Session Session::restore(std::shared_ptr<const Model> model, const std::filesystem::path& path,
                         const StandaloneOptions& options) {
  return restored(Session(std::move(model), without_protected(options)), SessionFile(path),
                  options.protect);
}

Session Session::restore(std::shared_ptr<Engine> engine, std::span<const std::byte> bytes,
                         const SessionOptions& options) {
  return restored(Session(std::move(engine), without_protected(options)),
                  SessionFile(kUnnamed, bytes), options.protect);
}

Session Session::restore(Session&& empty, const std::filesystem::path& path) {
  return restored_into(empty, [&] { return SessionFile(path); });
}

Session Session::restore(Session&& empty, const StateSource& source) {
  return restored_into(empty, [&] { return SessionStream(kUnnamed, source); });
}

template <class Open>
Session Session::restored_into(Session& empty, const Open& open) {
  State& s = there(empty.state_);
  s.check_usable();
  if (!s.seen->empty())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a session that has seen {} tokens, and a saved one that is to be "
                            "restored into it; give one that has seen none",
                            s.seen->size()));
  auto saved = open();
  check(saved, *s.engine, s.device(), s.options);
  Session with_room(std::make_unique<State>(s.engine, without_protected(s.options), s.own_engine));
  with_room.state_->backend->take_room(*s.backend);
  with_room.state_->room = std::move(s.room);
  Session done = loaded(std::move(with_room), saved, s.options.protect);
  empty.state_ = nullptr;
  return done;
}

template <class Saved>
Session Session::restored(Session fresh, Saved&& saved, const std::vector<TokenRange>& protect) {
  const State& s = *fresh.state_;
  check(saved, *s.engine, s.device(), s.options);
  return loaded(std::move(fresh), saved, protect);
}

template <class Saved>
Session Session::loaded(Session session, Saved& saved, const std::vector<TokenRange>& protect) {
  State& state = *session.state_;
  const size_t count = saved.token_count();
  const int layers = state.engine->model()->config().layers;
  for (const SessionSection& section : sections_of(*state.backend, layers))
    saved.load(section.name, section.archive);
  const size_t cached = state.backend->tokens();
  if (cached != count)
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: {} tokens, and a cache of {}", saved.name(), count, cached));
  state.in_prompt = count == 0;
  if (saved.has(kPrompt)) saved.load(kPrompt, [&](Archive& a) { archive_cuts(a, state, count); });
  state.seen.own() = saved.tokens();
  const int32_t vocab = state.engine->model()->config().vocab;
  for (const int32_t id : *state.seen)
    if (id < 0 || id >= vocab)
      throw Error(ErrorCode::kCorrupt, fmt::format("{}: token {} is outside the vocabulary of {}",
                                                   saved.name(), id, vocab));
  state.options.protect = state.backend->protected_tokens();
  check_protected(saved.name(), state.options.protect, protect);
  return session;
}

std::string SavedSession::field(const std::string& name) const { return field_of(key, name); }

SavedSession read_saved(const std::filesystem::path& path, bool verify) {
  const SessionFile file(path);
  if (verify) file.verify();
  SavedSession saved{file.version(),
                     file.created(),
                     file.written_by(),
                     file.bytes(),
                     file.key(),
                     file.tokens(),
                     {},
                     file.note()};
  for (const SessionFile::Section& s : file.sections()) saved.parts.push_back({s.name, s.length});
  return saved;
}

}  // namespace pith
