// The C face: sessions, batches and generation.

#include <atomic>
#include <vector>

#include "c/c_api.h"

namespace pith::c_api {
namespace {

pith_session_options session_defaults() {
  const SessionOptions o;
  return {.size = sizeof(pith_session_options),
          .policy = "exact",
          .context = o.context,
          .percent_of = o.percent_of,
          .seed = o.seed,
          .cache_limit = o.cache_limit,
          .protect = nullptr,
          .protect_count = 0,
          .probe_rows = o.error_probe.rows,
          .probe_every = o.error_probe.every,
          .max_error = o.error_probe.max_error};
}

pith_sampling_options sampling_defaults() {
  const SamplingOptions o;
  return {.size = sizeof(pith_sampling_options),
          .temperature = o.temperature,
          .top_k = o.top_k,
          .top_p = o.top_p,
          .min_p = o.min_p,
          .repeat_penalty = o.repeat_penalty,
          .repeat_last_n = o.repeat_last_n,
          .seed = o.seed,
          .never = nullptr,
          .never_count = 0,
          .presence_penalty = o.presence_penalty,
          .frequency_penalty = o.frequency_penalty,
          .bias_ids = nullptr,
          .biases = nullptr,
          .bias_count = 0};
}

SamplingOptions options_of(const pith_sampling_options* from) {
  const pith_sampling_options o = read(from, sampling_defaults(), "the options of sampling");
  const auto never = span_of(o.never, o.never_count, "the list of tokens never drawn");
  const auto ids = span_of(o.bias_ids, o.bias_count, "the tokens with a bias");
  const auto biases = span_of(o.biases, o.bias_count, "the biases");
  SamplingOptions options{.temperature = o.temperature,
                          .top_k = o.top_k,
                          .top_p = o.top_p,
                          .min_p = o.min_p,
                          .repeat_penalty = o.repeat_penalty,
                          .presence_penalty = o.presence_penalty,
                          .frequency_penalty = o.frequency_penalty,
                          .repeat_last_n = o.repeat_last_n,
                          .seed = o.seed,
                          .never = {never.begin(), never.end()}};
  for (size_t i = 0; i < o.bias_count; ++i) options.logit_bias.emplace_back(ids[i], biases[i]);
  return options;
}

pith_generate_options generate_defaults() {
  pith_generate_options o = {};
  o.size = sizeof(pith_generate_options);
  o.max_tokens = GenerateOptions().max_tokens;
  o.append_last = 1;
  return o;
}

GenerateOptions generate_options(const pith_generate_options& o) {
  GenerateOptions options;
  options.sampling = options_of(o.sampling);
  options.max_tokens = o.max_tokens;
  for (const char* stop : span_of(o.stop, o.stop_count, "the list of stop strings"))
    options.stop.emplace_back(&given(stop, "a stop string"));
  const auto ends = span_of(o.ends, o.end_count, "the list of tokens that end it");
  options.ends.assign(ends.begin(), ends.end());
  options.ignore_eos = o.ignore_eos != 0;
  options.append_last = o.append_last != 0;
  if (o.form) options.form = o.form->form;
  return options;
}

Work work_of(const pith_work* from) {
  pith_work none = {};
  none.next = -1;
  const pith_work w = read(from, none, "a work");
  Work work;
  work.session = &given(w.session, "a work's session").session;
  work.tokens = span_of(w.tokens, w.count, "a work's tokens");
  work.append = static_cast<Append>(one_of(w.how, 4, "how tokens come:"));
  work.logits = w.logits;
  work.sampler = w.sampler ? &w.sampler->sampler : nullptr;
  work.slice = w.slice;
  return work;
}

/// Says what became of it.
void tell(pith_work* to, const Work& work) {
  pith_work w = read(to, {}, "a work");
  w.next = work.next;
  w.goes_on = work.goes_on;
  w.appended = work.appended;
  w.status = PITH_OK;
  if (work.failure) w.status = failed(w.error, work.failure->code(), work.failure->what());
  if (!work.failure) succeeded(w.error);
  write(to, w, "a work");
}

}  // namespace

GenerateOptions options_of(const pith_generate_options* from) {
  return generate_options(read(from, generate_defaults(), "the options of generation"));
}

std::vector<TokenRange> ranges_of(const int64_t* pairs, size_t count) {
  if (count > 0) given(pairs, "the list of protected tokens");
  std::vector<TokenRange> ranges(count);
  for (size_t i = 0; i < count; ++i) ranges[i] = {pairs[2 * i], pairs[2 * i + 1]};
  return ranges;
}

void write_rows(pith_rows* rows, const HeadRows& held) {
  static_assert(PITH_ROLE_DENOMINATOR == static_cast<int>(Role::kDenominator));
  pith_rows r = read(&given(rows, "the place for the rows"), {}, "the place for the rows");
  r.count = held.positions.size();
  write(rows, r, "the place for the rows");
  const bool wanted = r.positions || r.log_weights || r.roles;
  if (wanted && r.count > r.capacity)
    throw Error(
        ErrorCode::kBufferTooSmall,
        std::to_string(r.count) + " rows do not fit into room for " + std::to_string(r.capacity));
  if (r.positions) std::ranges::copy(held.positions, r.positions);
  if (r.log_weights) std::ranges::copy(held.log_weights, r.log_weights);
  if (r.roles)
    std::ranges::transform(held.roles, r.roles,
                           [](Role role) { return static_cast<int32_t>(role); });
}

void write_error(pith_attention_error* estimate, const AttentionError& e) {
  write(estimate,
        {sizeof(pith_attention_error), static_cast<size_t>(e.layer), e.steps, e.estimate, e.low,
         e.high},
        "the place for the estimate");
}

SessionOptions options_of(const pith_session_options* from) {
  const pith_session_options o = read(from, session_defaults(), "the session's options");
  SessionOptions options;
  options.policy = Policy::parse(o.policy ? o.policy : "exact");
  options.context = o.context;
  options.percent_of = o.percent_of;
  options.seed = o.seed;
  options.cache_limit = o.cache_limit;
  options.protect = ranges_of(o.protect, o.protect_count);
  options.error_probe = {o.probe_rows, o.probe_every, o.max_error};
  return options;
}

pith_ledger ledger_of(const Ledger& l) {
  return {.size = sizeof(pith_ledger),
          .payload = l.payload,
          .metadata = l.metadata,
          .shared = l.shared,
          .slack = l.slack,
          .staging = l.staging,
          .scratch = l.scratch,
          .probe = l.probe,
          .tokens = l.tokens,
          .rows_seen = l.rows_seen,
          .rows_kept = l.rows_kept,
          .effective_bits = l.effective_bits(),
          .retained_bits = l.retained_bits()};
}

}  // namespace pith::c_api

using namespace pith::c_api;  // NOLINT(google-build-using-namespace): all functions are of it

void pith_session_defaults(pith_session_options* options, size_t size) {
  fill(options, size, session_defaults());
}

pith_status pith_session_create(const pith_engine* engine, const pith_session_options* options,
                                pith_session** session, pith_error* error) {
  return guarded(error, [&] {
    given(session, "the place for the session") = nullptr;
    *session =
        new pith_session{pith::Session(given(engine, "the engine").engine, options_of(options))};
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

pith_status pith_session_restore(const pith_engine* engine, const char* path,
                                 const pith_session_options* options, pith_session** session,
                                 pith_error* error) {
  return guarded(error, [&] {
    given(session, "the place for the session") = nullptr;
    *session = new pith_session{pith::Session::restore(
        given(engine, "the engine").engine, &given(path, "the file's name"), options_of(options))};
  });
}

pith_status pith_session_append(pith_session* session, const int32_t* tokens, size_t count,
                                int32_t how, pith_progress progress, void* user,
                                pith_error* error) {
  return guarded(error, [&] {
    static_assert(PITH_APPEND_PART == static_cast<int>(pith::Append::kPart));
    pith::Progress pass_on;
    if (progress) {
      pass_on = [&](size_t done, size_t total) { return progress(done, total, user) == 0; };
    }
    given(session, "the session")
        .session.append(span_of(tokens, count, "the tokens"),
                        static_cast<pith::Append>(one_of(how, 4, "how tokens come:")), pass_on);
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

pith_status pith_session_protect(pith_session* session, const int64_t* ranges, size_t count,
                                 pith_error* error) {
  return guarded(error,
                 [&] { given(session, "the session").session.protect(ranges_of(ranges, count)); });
}

size_t pith_session_tokens(const pith_session* session) {
  return session ? session->session.tokens() : 0;
}

const int32_t* pith_session_token_ids(const pith_session* session, size_t* count) {
  if (count) *count = pith_session_tokens(session);
  return session ? session->session.token_ids().data() : nullptr;
}

pith_status pith_session_describe(const pith_session* session, char* text, size_t capacity,
                                  size_t* written, pith_error* error) {
  return guarded(error, [&] {
    hand_out(given(session, "the session").session.describe_policy(), text, capacity, written,
             "bytes");
  });
}

pith_status pith_session_ledger(const pith_session* session, pith_ledger* ledger,
                                pith_error* error) {
  return guarded(error, [&] {
    write(ledger, ledger_of(given(session, "the session").session.ledger()),
          "the place for the ledger");
  });
}

pith_status pith_session_rows(const pith_session* session, int32_t layer, int32_t head,
                              pith_rows* rows, pith_error* error) {
  return guarded(
      error, [&] { write_rows(rows, given(session, "the session").session.rows(layer, head)); });
}

size_t pith_session_probed_layers(const pith_session* session) {
  return session ? session->session.attention_errors().size() : 0;
}

pith_status pith_session_attention_error(const pith_session* session, size_t index,
                                         pith_attention_error* estimate, pith_error* error) {
  return guarded(error, [&] {
    const auto all = given(session, "the session").session.attention_errors();
    if (index >= all.size())
      throw pith::Error(pith::ErrorCode::kInvalidArgument, "number " + std::to_string(index) +
                                                               " of " + std::to_string(all.size()) +
                                                               " layers with an error probe");
    write_error(estimate, all[index]);
  });
}

void pith_sampling_defaults(pith_sampling_options* options, size_t size) {
  fill(options, size, sampling_defaults());
}

pith_status pith_sampler_create(const pith_sampling_options* options, pith_sampler** sampler,
                                pith_error* error) {
  return guarded(error, [&] {
    given(sampler, "the place for the sampler") = nullptr;
    *sampler = new pith_sampler{pith::Sampler(options_of(options))};
  });
}

void pith_sampler_free(pith_sampler* sampler) { delete sampler; }

pith_status pith_sampler_set_mask(pith_sampler* sampler, const uint32_t* words, size_t count,
                                  pith_error* error) {
  return guarded(error, [&] {
    given(sampler, "the sampler").sampler.set_mask(span_of(words, count, "the mask"));
  });
}

pith_status pith_session_sample(pith_session* session, pith_sampler* sampler, int32_t* token,
                                pith_error* error) {
  return guarded(error, [&] {
    given(token, "the place for the token") = -1;
    *token = given(session, "the session").session.sample(given(sampler, "the sampler").sampler);
  });
}

pith_status pith_session_score(pith_session* session, const int32_t* tokens, size_t count,
                               float* logprobs, int32_t* likeliest, pith_error* error) {
  return guarded(error, [&] {
    const auto scores =
        given(session, "the session").session.score(span_of(tokens, count, "the tokens"));
    for (size_t i = 0; i < scores.size(); ++i) {
      if (logprobs) logprobs[i] = scores[i].logprob;
      if (likeliest) likeliest[i] = scores[i].likeliest;
    }
  });
}

pith_status pith_log_probabilities(const float* logits, size_t vocab, int32_t token, float* logprob,
                                   int32_t* top_ids, float* top_logprobs, size_t top,
                                   pith_error* error) {
  return guarded(error, [&] {
    const pith::TokenLogprobs p =
        pith::log_probabilities(span_of(logits, vocab, "the logits"), token, top);
    given(logprob, "the place for the log-probability") = p.logprob;
    for (size_t i = 0; i < p.top.size(); ++i) {
      (&given(top_ids, "the room for ids"))[i] = p.top[i].id;
      (&given(top_logprobs, "the room for log-probabilities"))[i] = p.top[i].logprob;
    }
  });
}

pith_status pith_engine_step(const pith_engine* engine, pith_work* works, size_t count,
                             pith_error* error) {
  return guarded(error, [&] {
    const Structs<pith_work> all(works, count, "work");
    std::vector<pith::Work> run;
    for (size_t i = 0; i < all.size(); ++i) run.push_back(work_of(all.at(i)));
    given(engine, "the engine").engine->step(run);
    for (size_t i = 0; i < all.size(); ++i) tell(all.at(i), run[i]);
  });
}

void pith_generate_defaults(pith_generate_options* options, size_t size) {
  fill(options, size, generate_defaults());
}

pith_status pith_generate(pith_session* session, const int32_t* prompt, size_t count,
                          const pith_generate_options* options, pith_generate_result* result,
                          pith_error* error) {
  return guarded(error, [&] {
    static_assert(PITH_STOP_ATTENTION_ERROR == static_cast<int>(pith::StopReason::kAttentionError));
    const pith_generate_options o = read(options, generate_defaults(), "the options of generation");
    if (result) check_size(result->size, "the place for the result");
    std::atomic<bool> cancel = false;
    pith::GenerateOptions chosen = generate_options(o);
    chosen.cancel = &cancel;
    const auto on_text = [&](std::string_view text) {
      if (o.on_text && o.on_text(text.data(), text.size(), o.user) != 0) cancel = true;
    };
    pith::Progress on_prompt;
    if (o.on_prompt) {
      on_prompt = [&](size_t done, size_t total) {
        if (o.on_prompt(done, total, o.user) == 0) return true;
        cancel = true;
        return false;
      };
    }
    const pith::GenerateResult r =
        pith::generate(given(session, "the session").session, span_of(prompt, count, "the prompt"),
                       chosen, on_text, on_prompt);
    if (result)
      write(result,
            {.size = sizeof(pith_generate_result),
             .reason = static_cast<int32_t>(r.reason),
             .last_token = r.tokens.empty() ? -1 : r.tokens.back(),
             .prompt_tokens = r.prompt_tokens,
             .sampled_tokens = r.tokens.size(),
             .prompt_seconds = r.prompt_seconds,
             .decode_seconds = r.decode_seconds},
            "the place for the result");
  });
}
