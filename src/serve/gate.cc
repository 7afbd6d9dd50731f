// Fields that chat and text completions share, and text completions.

#include "serve/gate.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "serve/gate_fields.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

// They say who asks, or are promises that a server without accounts keeps anyway.
constexpr const char* kIgnored[] = {"user",         "metadata",          "store",
                                    "service_tier", "safety_identifier", "prompt_cache_retention",
                                    "verbosity",    "timings_per_token"};

/// Forms of answers as llama.cpp, vLLM and SGLang name them: left out, an answer would not have
/// them.
constexpr const char* kOtherForms[] = {
    "grammar",        "guided_json",        "guided_regex", "guided_choice",
    "guided_grammar", "structured_outputs", "regex",        "ebnf"};

void read_sampling(Fields& f, Call& call, const GateOptions& options) {
  SamplingOptions& s = call.sampling;
  const auto real = [&](const char* name, float& value, double least, double most) {
    if (const auto given = f.number(name, least, most)) value = static_cast<float>(*given);
  };
  real("temperature", s.temperature, 0, 100);
  real("top_p", s.top_p, 0, 1);
  real("min_p", s.min_p, 0, 1);
  real("repeat_penalty", s.repeat_penalty, 0.01, 100);
  constexpr int kMost = std::numeric_limits<int>::max();
  if (const auto k = f.integer("top_k", -1, kMost))
    s.top_k = static_cast<int>(std::max<int64_t>(*k, 0));
  if (const auto n = f.integer("repeat_last_n", -1, kMost)) s.repeat_last_n = static_cast<int>(*n);
  if (const auto seed = f.integer("seed", std::numeric_limits<int64_t>::min(), INT64_MAX)) {
    // llama.cpp's -1 means any.
    call.seeded = *seed != -1;
    s.seed = static_cast<uint64_t>(*seed);
  }
  read_penalties(f, call, options);
}

void read_stream(Fields& f, Call& call) {
  call.stream = f.boolean("stream").value_or(false);
  if (const Json* options = f.get("stream_options")) {
    if (!call.stream) throw wrong("stream_options", "is for streams; set 'stream' to true");
    Fields inner(*options, "stream_options");
    call.include_usage = inner.boolean("include_usage").value_or(false);
  }
  call.progress = f.boolean("return_progress").value_or(false);
}

void read_pith(Fields& f, Call& call) {
  if (const auto key = f.text("prompt_cache_key", 1024)) {
    call.conversation = *key;
    call.shared_name = true;
  }
  const auto bears = [&](std::string session) {
    call.conversation = std::move(session);
    call.shared_name = false;
  };
  if (const auto slot = f.integer("id_slot", -1, 1023); slot && *slot >= 0)
    bears(fmt::format("slot-{}", *slot));
  call.salt = f.text("cache_salt", 1024).value_or("");
  const Json* own = f.get("pith");
  if (own == nullptr) return;
  Fields p(*own, "pith");
  call.policy = p.text("policy", 4096).value_or("");
  call.budget = p.text("budget", 100).value_or("");
  if (const auto seed = p.integer("seed", 0, INT64_MAX))
    call.policy_seed = static_cast<uint64_t>(*seed);
  if (const auto session = p.text("session", 128)) bears(*session);
  if (const auto protect = p.text("protect", 16)) {
    if (*protect != "none" && *protect != "system")
      throw wrong("pith.protect", "must be \"none\" or \"system\"");
    call.protect_system = *protect == "system";
  }
  for (const std::string& name : p.unknown())
    throw unsupported("pith." + name,
                      "is not known; 'pith' has policy, budget, seed, session and protect");
}

TextPrompt one_prompt(const Json& item, const GateOptions& options) {
  if (!item.is_string() && !item.is_array())
    throw wrong("prompt", "must be a string, a list of token ids, or a list of these");
  TextPrompt out;
  out.tokenised = !item.is_string();
  if (out.tokenised)
    out.ids = token_ids(item, "prompt", options.vocabulary);
  else
    out.text = item.get<std::string>();
  return out;
}

void read_prompts(Fields& f, Call& call, const GateOptions& options) {
  const Json* prompt = f.get("prompt");
  if (prompt == nullptr) throw wrong("prompt", "is missing: give a string or a list of token ids");
  const bool many = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!many) {
    call.prompts.push_back(one_prompt(*prompt, options));
    return;
  }
  if (prompt->size() > 16) throw wrong("prompt", "has more than 16 prompts");
  for (const Json& item : *prompt) call.prompts.push_back(one_prompt(item, options));
}

}  // namespace

void read_common(Fields& f, Call& call, const GateOptions& options) {
  call.sampling = options.sampling;
  call.model = f.text("model", 1024).value_or("");
  read_sampling(f, call, options);
  read_stream(f, call);
  read_pith(f, call);
  // The newer name first: a client that sends both means it (docs/serving.md).
  const auto completion = f.integer("max_completion_tokens", 0, int64_t{1} << 30);
  const auto most = f.integer("max_tokens", -1, int64_t{1} << 30);
  const auto predict = f.integer("n_predict", -1, int64_t{1} << 30);
  call.max_tokens = completion ? *completion : most ? *most : predict.value_or(-1);
  call.stop = f.texts("stop", 16, 1024);
  call.n = static_cast<size_t>(f.integer("n", 1, 8).value_or(1));
  call.ignore_eos = f.boolean("ignore_eos").value_or(false);
  call.cache_prompt = f.boolean("cache_prompt").value_or(true);
  call.return_tokens = f.boolean("return_tokens").value_or(false);
  call.priority = static_cast<int>(f.integer("priority", -1000000, 1000000).value_or(0));
  for (const char* name : kIgnored) f.get(name);
  read_form(f, call);
  for (const char* name : kOtherForms)
    if (f.get(name) != nullptr)
      throw unsupported(name, "is not there: say it as a JSON schema, in 'response_format'");
}

void refuse_unknown(const Fields& f, const GateOptions& options) {
  if (!options.strict) return;
  for (const std::string& name : f.unknown())
    throw unsupported(name, "is not known (the server runs with --strict)");
}

Call text_call(const Json& body, const GateOptions& options) {
  Call call;
  call.form = Form::kText;
  Fields f(body);
  read_common(f, call, options);
  read_prompts(f, call, options);
  if (const auto top = f.integer("logprobs", 0, 20)) call.logprobs = static_cast<int>(*top);
  call.echo = f.boolean("echo").value_or(false);
  if (const auto best = f.integer("best_of", 1, 8); best && *best != static_cast<int64_t>(call.n))
    throw unsupported("best_of", "other than n is not there: ask for n answers and choose");
  if (const auto suffix = f.text("suffix", size_t{8} << 20); suffix && !suffix->empty()) {
    for (TextPrompt& prompt : call.prompts) {
      if (prompt.tokenised)
        throw unsupported("suffix", "goes with a prompt of text, not of tokens");
      prompt.suffix = *suffix;
    }
  }
  refuse_unknown(f, options);
  return call;
}

}  // namespace pith::serve
