// Session::save and restore: what a session is made of goes into its file, and what it depends on
// into the file's key.

#include "pith/saved.h"

#include <fmt/format.h>

#include "core/digest.h"
#include "model/weights_digest.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "session/session_file.h"
#include "session/session_key.h"
#include "session/state.h"

namespace pith {
namespace {

std::string tokenizer_digest(const Tokenizer& tokenizer) {
  DigestStream stream;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) stream.add_text(tokenizer.piece(id));
  return stream.digest().text();
}

/// Whatever changes a later bit is a field.
SessionKey file_key(const Engine& engine, const SessionOptions& o) {
  const Model& model = *engine.model();
  const ModelConfig& c = model.config();
  const EngineOptions& e = engine.options();
  SessionKey key = {{"model", fmt::format("{}, {} layers", c.architecture, c.layers)},
                    {"weights", digest_of_model(model.weights()).text()},
                    {"tokenizer", tokenizer_digest(model.tokenizer())}};
  for (auto& field : session_key(engine, o)) key.push_back(std::move(field));
  key.insert(key.end(), {{"chunk", std::to_string(e.chunk)},
                         {"arithmetic", e.f32_arithmetic ? "f32" : "fast"},
                         {"device", e.device == Device::kCuda ? "cuda" : "cpu"},
                         {"isa", engine.isa()}});
  return key;
}

}  // namespace

void Session::save(const std::filesystem::path& path, const SaveOptions& options) const {
  state_->check_usable();
  write_session_file(
      path, {file_key(*state_->engine, state_->options), state_->seen, state_->backend->sections()},
      {.replace = options.replace});
}

Session Session::restore(std::shared_ptr<Engine> engine, const std::filesystem::path& path,
                         const SessionOptions& options) {
  SessionOptions fresh = options;
  fresh.protect.clear();  // the file's come with its rows
  return restored(Session(std::move(engine), fresh), path, options.protect);
}

Session Session::restore(std::shared_ptr<const Model> model, const std::filesystem::path& path,
                         const StandaloneOptions& options) {
  StandaloneOptions fresh = options;
  fresh.protect.clear();
  return restored(Session(std::move(model), fresh), path, options.protect);
}

Session Session::restored(Session session, const std::filesystem::path& path,
                          const std::vector<TokenRange>& protect) {
  State& state = *session.state_;
  const SessionFile file(path);
  file.check_key(file_key(*state.engine, state.options));
  file.verify();
  const int32_t vocab = state.engine->model()->config().vocab;
  for (const int32_t id : file.tokens())
    if (id < 0 || id >= vocab)
      throw Error(ErrorCode::kCorrupt, fmt::format("{}: token {} is outside the vocabulary of {}",
                                                   path.string(), id, vocab));
  for (const SessionSection& section : state.backend->sections())
    file.load(section.name, section.archive);
  const uint64_t cached = state.backend->ledger().tokens;
  if (cached != file.tokens().size())
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: {} tokens, and a cache of {}", path.string(),
                                                 file.tokens().size(), cached));
  state.seen = file.tokens();
  state.in_prompt = state.seen.empty();  // where its prompts were cut is not in the file
  state.options.protect = state.backend->protected_tokens();
  check_protected(path.string(), state.options.protect, protect);
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
                     {}};
  for (const SessionFile::Section& s : file.sections()) saved.parts.push_back({s.name, s.length});
  return saved;
}

}  // namespace pith
