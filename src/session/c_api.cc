// include/pith/pith.h over the C++ classes: nothing is decided here. Every function that can fail
// runs inside guarded(), which turns whatever is thrown into a status and a message.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "pith/error.h"
#include "pith/generate.h"
#include "pith/pith.h"
#include "pith/tokenizer.h"

// NOLINTBEGIN(readability-identifier-naming): the names of pith.h.
struct pith_model {
  std::shared_ptr<const pith::Model> model;
};

struct pith_session {
  pith::Session session;
};
// NOLINTEND(readability-identifier-naming)

namespace {

using pith::Error;
using pith::ErrorCode;

pith_status failed(pith_error* error, ErrorCode code, const char* message) {
  const auto status = static_cast<pith_status>(PITH_INVALID_ARGUMENT + static_cast<int>(code));
  if (error) {
    error->status = status;
    size_t size = std::min(std::strlen(message), sizeof(error->message) - 1);
    if (message[size] != 0)  // cut off: not in the middle of a character
      while (size > 0 && (message[size] & 0xC0) == 0x80) --size;
    std::memcpy(error->message, message, size);
    error->message[size] = 0;
  }
  return status;
}

template <class F>
pith_status guarded(pith_error* error, const F& work) noexcept {
  try {
    work();
  } catch (const Error& e) {
    return failed(error, e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return failed(error, ErrorCode::kOutOfMemory, "the machine has no memory left");
  } catch (const std::exception& e) {
    return failed(error, ErrorCode::kInternal, e.what());
  } catch (...) {
    return failed(error, ErrorCode::kInternal, "an exception that is none of Pith's");
  }
  if (error) {
    error->status = PITH_OK;
    error->message[0] = 0;
  }
  return PITH_OK;
}

template <class T>
T& given(T* pointer, const char* what) {
  if (!pointer)
    throw Error(ErrorCode::kInvalidArgument, std::string(what) + " is NULL; pass a pointer to one");
  return *pointer;
}

template <class T>
std::span<const T> span_of(const T* first, size_t count, const char* what) {
  if (count > 0) given(first, what);
  return {first, count};
}

/// Copies what fits entirely; throws where it does not, with `count` written first.
template <class From, class To>
void hand_out(const From& from, To* to, size_t capacity, size_t* count, const char* what) {
  given(count, "the place for the number") = from.size();
  if (from.size() > capacity)
    throw Error(ErrorCode::kOutOfMemory, std::to_string(from.size()) + " " + what +
                                             " do not fit into room for " +
                                             std::to_string(capacity));
  if (!from.empty()) given(to, "the room for the result");
  std::copy(from.begin(), from.end(), to);
}

pith::StandaloneOptions options_of(const pith_session_options& o) {
  pith::StandaloneOptions options;
  options.policy = pith::Policy::parse(o.policy ? o.policy : "exact");
  options.context = o.context;
  options.chunk = o.chunk;
  options.threads = o.threads;
  options.seed = o.seed;
  options.memory_limit = o.memory_limit;
  return options;
}

pith::GenerateOptions options_of(const pith_generate_options& o) {
  pith::GenerateOptions options;
  options.sampling = {.temperature = o.temperature,
                      .top_k = o.top_k,
                      .top_p = o.top_p,
                      .min_p = o.min_p,
                      .repeat_penalty = o.repeat_penalty,
                      .repeat_last_n = o.repeat_last_n,
                      .seed = o.seed};
  options.max_tokens = o.max_tokens;
  for (const char* stop : span_of(o.stop, o.stop_count, "the list of stop strings"))
    options.stop.emplace_back(&given(stop, "a stop string"));
  return options;
}

}  // namespace

const char* pith_version(void) { return PITH_VERSION; }

pith_status pith_model_load(const char* folder, pith_model** model, pith_error* error) {
  return guarded(error, [&] {
    given(model, "the place for the model") = nullptr;
    auto loaded = pith::Model::load(&given(folder, "the model's folder"));
    *model = new pith_model{std::move(loaded)};
  });
}

void pith_model_free(pith_model* model) { delete model; }

void pith_model_get_info(const pith_model* model, pith_model_info* info) {
  if (!model || !info) return;
  const pith::ModelConfig& c = model->model->config();
  *info = {c.layers,   c.hidden, c.query_heads, c.kv_heads,
           c.head_dim, c.vocab,  c.context,     model->model->weight_bytes()};
}

pith_status pith_tokenize(const pith_model* model, const char* text, size_t size, int begin,
                          int32_t* ids, size_t capacity, size_t* count, pith_error* error) {
  return guarded(error, [&] {
    const pith::Tokenizer& tokenizer = given(model, "the model").model->tokenizer();
    const auto bytes = span_of(text, size, "the text");
    auto result = tokenizer.encode({bytes.data(), bytes.size()});
    if (begin && tokenizer.add_bos()) result.insert(result.begin(), tokenizer.bos());
    hand_out(result, ids, capacity, count, "ids");
  });
}

pith_status pith_detokenize(const pith_model* model, const int32_t* ids, size_t count, char* text,
                            size_t capacity, size_t* size, pith_error* error) {
  return guarded(error, [&] {
    const pith::Tokenizer& tokenizer = given(model, "the model").model->tokenizer();
    hand_out(tokenizer.decode(span_of(ids, count, "the ids")), text, capacity, size, "bytes");
  });
}

pith_session_options pith_session_defaults(void) {
  const pith::StandaloneOptions o;
  return {"exact", o.context, o.chunk, o.threads, o.seed, o.memory_limit};
}

pith_status pith_session_create(const pith_model* model, const pith_session_options* options,
                                pith_session** session, pith_error* error) {
  return guarded(error, [&] {
    given(session, "the place for the session") = nullptr;
    const pith_session_options chosen = options ? *options : pith_session_defaults();
    pith::Session created(given(model, "the model").model, options_of(chosen));
    *session = new pith_session{std::move(created)};
  });
}

void pith_session_free(pith_session* session) { delete session; }

pith_status pith_session_fork(const pith_session* session, pith_session** fork, pith_error* error) {
  return guarded(error, [&] {
    given(fork, "the place for the session") = nullptr;
    *fork = new pith_session{given(session, "the session").session.fork()};
  });
}

pith_status pith_session_save(const pith_session* session, const char* path, int replace,
                              pith_error* error) {
  return guarded(error, [&] {
    given(session, "the session")
        .session.save(&given(path, "the file's name"), {.replace = replace != 0});
  });
}

pith_status pith_session_restore(const pith_model* model, const char* path,
                                 const pith_session_options* options, pith_session** session,
                                 pith_error* error) {
  return guarded(error, [&] {
    given(session, "the place for the session") = nullptr;
    const pith_session_options chosen = options ? *options : pith_session_defaults();
    *session = new pith_session{pith::Session::restore(
        given(model, "the model").model, &given(path, "the file's name"), options_of(chosen))};
  });
}

pith_status pith_session_prefill(pith_session* session, const int32_t* tokens, size_t count,
                                 const float** logits, pith_error* error) {
  return guarded(error, [&] {
    const auto result =
        given(session, "the session").session.prefill(span_of(tokens, count, "the tokens"));
    if (logits) *logits = result.data();
  });
}

size_t pith_session_tokens(const pith_session* session) {
  return session ? session->session.tokens() : 0;
}

pith_status pith_session_ledger(const pith_session* session, pith_ledger* ledger,
                                pith_error* error) {
  return guarded(error, [&] {
    const pith::Ledger l = given(session, "the session").session.ledger();
    given(ledger, "the place for the ledger") = {
        l.payload,   l.metadata,         l.shared,         l.slack,
        l.staging,   l.scratch,          l.tokens,         l.rows_seen,
        l.rows_kept, l.effective_bits(), l.retained_bits()};
  });
}

pith_generate_options pith_generate_defaults(void) {
  const pith::GenerateOptions o;
  const pith::SamplingOptions& s = o.sampling;
  return {s.temperature,   s.top_k, s.top_p,      s.min_p, s.repeat_penalty,
          s.repeat_last_n, s.seed,  o.max_tokens, nullptr, 0};
}

pith_status pith_generate(pith_session* session, const int32_t* prompt, size_t count,
                          const pith_generate_options* options, pith_text_callback on_text,
                          void* user, pith_generate_result* result, pith_error* error) {
  return guarded(error, [&] {
    std::atomic<bool> cancel = false;
    pith::GenerateOptions chosen = options_of(options ? *options : pith_generate_defaults());
    chosen.cancel = &cancel;
    const auto pass_on = [&](std::string_view text) {
      if (on_text && on_text(text.data(), text.size(), user) != 0) cancel = true;
    };
    const pith::GenerateResult r =
        pith::generate(given(session, "the session").session, span_of(prompt, count, "the prompt"),
                       chosen, pass_on);
    if (result)
      *result = {static_cast<pith_stop_reason>(r.reason), r.prompt_tokens, r.tokens.size(),
                 r.prompt_seconds, r.decode_seconds};
  });
}
