#include "engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>

#include "args.h"
#include "console.h"
#include "llama_options.h"
#include "pith/error.h"
#include "pith_tools/catalogue.h"

namespace pith::cli {
namespace {

constexpr const char* kAuto = "auto";
constexpr size_t kProbeRows = 256;  // of --max-attn-error alone
constexpr int64_t kMostTokens = int64_t{1} << 40;

bool has_parameter(const std::string& method, const std::string& name) {
  for (const MethodInfo& m : methods()) {
    if (m.name != method) continue;
    return std::any_of(m.parameters.begin(), m.parameters.end(),
                       [&](const ParameterInfo& p) { return p.name == name; });
  }
  return false;
}

[[noreturn]] void conflict(const std::string& option, const std::string& policy,
                           const std::string& why) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} contradicts the policy '{}': {}; say it in one place", option, policy, why));
}

void apply_exact_rows(PolicyRule& rule, const PolicyOptions& o) {
  if (o.sink >= 0) {
    if (rule.sink) conflict("--kv-sink-tokens", o.policy, "it sets sink itself");
    rule.sink = static_cast<uint32_t>(o.sink);
  }
  if (o.window < 0) return;
  // The window of local and streaming_llm is a parameter of theirs.
  if (!has_parameter(rule.selector.name, "window")) {
    if (rule.window) conflict("--kv-window", o.policy, "it sets window itself");
    rule.window = static_cast<uint32_t>(o.window);
  } else if (!rule.selector.parameters.emplace("window", std::to_string(o.window)).second) {
    conflict("--kv-window", o.policy, "it (or --kv-budget) sets window itself");
  }
}

void apply_cache_types(PolicyRule& rule, const PolicyOptions& o) {
  if (o.cache_type_k.empty() && o.cache_type_v.empty()) return;
  const char* option = o.cache_type_k.empty() ? "-ctv" : "-ctk";
  if (rule.key_codec || rule.value_codec) conflict(option, o.policy, "it names a codec itself");
  if (rule.dtype) conflict(option, o.policy, "it sets dtype itself");
  const auto part = [](const std::string& type) {
    const char* codec = codec_of_type(type);
    return PolicyPart{codec != nullptr ? codec
                      : type.empty()   ? to_string(DType::kF16)
                                       : to_string(parse_dtype(type)),
                      {}};
  };
  rule.key_codec = part(o.cache_type_k);
  rule.value_codec = part(o.cache_type_v);
}

}  // namespace

void add_model_option(CLI::App& app, ModelOptions& options, const std::string& standard) {
  auto* option =
      app.add_option("-m,--model", options.model,
                     "Model folder in Hugging Face's layout (config.json, "
                     "*.safetensors, tokenizer), a GGUF file, or a name of 'pith pull'")
          ->transform([](const std::string& model) { return resolve_model(model).string(); })
          ->envname("PITH_MODEL")
          ->type_name("FILE|NAME")
          ->group("Model");
  if (standard.empty()) {
    option->required();
  } else {
    options.model = standard;
    option->capture_default_str();
  }
}

void add_compute_options(CLI::App& app, ModelOptions& options) {
  app.add_option("-t,--threads", options.threads, "Threads; 0 = all cores")
      ->check(CLI::Range(0, 1024))
      ->type_name("N")
      ->capture_default_str()
      ->group("Model");
  app.add_option("--isa", options.isa,
                 "Instruction set: scalar, avx2, avx512 or avx512_vnni; default: the best")
      ->type_name("NAME")
      ->group("Model");
}

void add_device_option(CLI::App& app, ModelOptions& options) {
  app.add_option_function<std::string>(
         "--device",
         [&options](const std::string& name) {
           options.device = name == "cuda" ? Device::kCuda : Device::kCpu;
         },
         "Where to compute: cpu, or cuda (an NVIDIA GPU; refused where it cannot)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("DEVICE")
      ->default_str("cpu")
      ->group("Model");
}

namespace {

void add_chunk_option(CLI::App& app, ModelOptions& options, bool measures) {
  const std::string help = "Prompt tokens per forward pass";
  const CLI::Range in_range(1, 1 << 20);
  CLI::Option* option = app.add_option(
      "--ubatch-size", options.chunk,
      measures ? help + "; auto = measured at the start, so that others wait little" : help);
  option->type_name(measures ? "N|auto" : "N")->capture_default_str()->group("Model");
  if (!measures) {
    option->check(in_range);
    return;
  }
  const auto read = [in_range](std::string& text) {
    const bool is_auto = text == "auto";
    const std::string error = is_auto ? "" : in_range(text);
    if (is_auto) text = std::to_string(kMeasuredChunk);
    return error.empty() ? error : error + ", nor auto";
  };
  option->transform(CLI::Validator(read, ""));
}

}  // namespace

void add_engine_options(CLI::App& app, ModelOptions& options, bool measures_chunk) {
  app.add_option("-c,--ctx-size", options.context, "Context in tokens; 0 = the model's own")
      ->check(CLI::Range(int64_t{0}, kMostTokens))
      ->type_name("N")
      ->capture_default_str()
      ->group("Model");
  add_compute_options(app, options);
  add_chunk_option(app, options, measures_chunk);
  app.add_option("--memory-limit", options.memory_limit_mib,
                 "Most MiB for cache and working memory; 0 = no limit")
      ->check(number_from(0, 1e9))
      ->type_name("MIB")
      ->capture_default_str()
      ->group("Model");
  app.add_flag("--no-check-weights", options.no_check,
               "Skip the search for NaN in the weights (loads large models faster)")
      ->group("Model");
  add_json_option(app, options.json);
}

void add_policy_options(CLI::App& app, PolicyOptions& options, std::vector<std::string>* many) {
  constexpr const char* kGroup = "KV cache";
  const std::string names = "--kv-policy,--policy";
  auto* policy =
      many == nullptr
          ? app.add_option(names, options.policy,
                           "Which rows stay and how they are stored, e.g. 'exact', "
                           "'streaming_llm(window=508)', 'uniform(rate=0.25)+bf16,sink=4'; "
                           "'pith policies' lists the parts. auto = the best measured one for "
                           "--kv-budget")
                ->capture_default_str()
          : add_repeated(app, names, *many,
                         "A policy; may be repeated. 'pith policies' lists them; auto = the best "
                         "measured one for --kv-budget");
  policy->type_name("POLICY")->group(kGroup);
  policy->each([&options](const std::string&) { options.policy_given = true; });
  app.add_option("--kv", options.memory,
                 "Memory of the cache in one word: exact, half, quarter or tenth of what exact "
                 "takes (or a share, 30%, or bytes, 16MiB): auto with that --kv-budget")
      ->check(not_empty())
      ->type_name("SIZE")
      ->group(kGroup);
  app.add_option("--kv-budget", options.budget,
                 "Rows that the policy keeps per KV head: 1024, 25% (of what is read) or 16MiB "
                 "(of the whole cache). With auto, or without a policy: MiB, or per cent of what "
                 "exact takes")
      ->check(not_empty())
      ->type_name("BUDGET")
      ->group(kGroup);
  app.add_option("--kv-goal", options.goal,
                 "The goal of auto: text = least divergence from the exact cache, facts = most "
                 "hidden facts found, both (default) = least divergence of those that find facts")
      ->check(CLI::IsMember({"text", "facts", "both"}))
      ->type_name("GOAL")
      ->group(kGroup);
  app.add_option("--presets", options.presets,
                 "The table that auto chooses from, instead of the built-in one: a file of "
                 "'pith tune' or tools/results_presets.py")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_flag("-v,--verbose", options.verbose, "Say which policy auto chose, and from what")
      ->group(kGroup);
  app.add_flag("--no-screen", options.no_screen,
               "Where auto has no figures of the model, it takes what is safe on others instead "
               "of measuring for a minute")
      ->group(kGroup);
  app.add_option("--kv-sink-tokens", options.sink, "First rows kept exactly")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->type_name("N")
      ->group(kGroup);
  app.add_option("--kv-window", options.window, "Newest rows kept exactly")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->type_name("N")
      ->group(kGroup);
  app.add_option("--kv-seed", options.seed, "Seed of randomised policies")
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  add_protect_option(app, options);
  app.add_option("--cache-type-k", options.cache_type_k,
                 "Storage of keys (default f16), in sink and window too; llama.cpp's q8_0 and q4_0 "
                 "stand for the codecs int8 and int4")
      ->check(storage_type("-ctk"))
      ->type_name("TYPE")
      ->group(kGroup);
  app.add_option("--cache-type-v", options.cache_type_v, "Storage of values (default f16)")
      ->check(storage_type("-ctv"))
      ->type_name("TYPE")
      ->group(kGroup);
}

void add_error_probe_options(CLI::App& app, ModelOptions& options) {
  constexpr const char* kGroup = "Error probe";
  app.add_option("--attn-error-probe", options.error_probe.rows,
                 "Exact rows kept aside for each layer and KV head, from which the policy's "
                 "attention error is estimated while it runs; 0 = none, 64 or more (256 is usual)")
      ->check(not_negative())
      ->type_name("ROWS")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--attn-error-every", options.error_probe.every,
                 "Decode steps from one comparison to the next")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--max-attn-error", options.error_probe.max_error,
                 fmt::format("Stop an answer when a layer's error is above X with 97.5% "
                             "certainty (probes {} rows by default); 0 = no limit",
                             kProbeRows))
      ->check(number_from(0, 1e6))
      ->type_name("X")
      ->capture_default_str()
      ->group(kGroup);
}

void add_protect_option(CLI::App& app, PolicyOptions& options) {
  app.add_option("--protect", options.protect,
                 "Tokens whose rows stay exact under every policy, on top of its budget: "
                 "FIRST:LAST,..., e.g. 0:120,500:620 (LAST is the first that is not)")
      ->type_name("RANGES")
      ->group("KV cache");
}

void add_json_option(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "Print one JSON object instead of text")->group("Output");
}

/// llama.cpp's "ID+X" and "ID-X".
std::pair<int32_t, float> parse_bias(const std::string& text) {
  std::pair<int32_t, float> bias;
  const char *begin = text.data(), *end = begin + text.size();
  const auto [sign, id_error] = std::from_chars(begin, end, bias.first);
  const bool plus = sign != end && *sign == '+';
  if (id_error == std::errc() && (plus || (sign != end && *sign == '-'))) {
    const auto [last, error] = std::from_chars(plus ? sign + 1 : sign, end, bias.second);
    if (error == std::errc() && last == end) return bias;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--logit-bias {}: expected a token's id and what is added to its logit, "
                          "such as 266+2.5 or 266-inf (never drawn); 'pith tokenize' shows ids",
                          text));
}

void add_sampling_options(CLI::App& app, SamplingOptions& o) {
  constexpr const char* kGroup = "Sampling";
  const auto option = [&](const char* name, auto& value, const char* help, const char* type) {
    return app.add_option(name, value, help)->type_name(type)->capture_default_str()->group(kGroup);
  };
  option("-s,--seed", o.seed,
         "Seed: the same seed gives the same text; -1 = draw one, and print it", "N")
      ->transform([](const std::string& text) {
        if (text != "-1") return text;
        std::random_device device;
        std::string drawn = std::to_string(device());
        say(fmt::format("pith: seed {}", drawn));
        return drawn;
      });
  option("--temp,--temperature", o.temperature, "Temperature; 0 = always the likeliest token", "T");
  option("--top-k", o.top_k, "Only the K likeliest tokens; 0 = off", "K");
  option("--top-p", o.top_p, "Only the likeliest tokens that together hold P; 1 = off", "P");
  option("--min-p", o.min_p, "Only tokens with P of the likeliest's probability; 0 = off", "P");
  option("--repeat-penalty", o.repeat_penalty, "Makes recent tokens less likely; 1 = off", "X");
  option("--presence-penalty", o.presence_penalty,
         "Taken from the logits of recent tokens; 0 = off", "X");
  option("--frequency-penalty", o.frequency_penalty,
         "The same for each time that a token is recent; 0 = off", "X");
  option("--repeat-last-n", o.repeat_last_n, "Recent means this many tokens; -1 = all, 0 = off",
         "N");
  app.add_option_function<std::vector<std::string>>(
         "-l,--logit-bias",
         [&o](const std::vector<std::string>& all) {
           for (const std::string& text : all) o.logit_bias.push_back(parse_bias(text));
         },
         "Added to a token's logit: ID+X or ID-X, -inf = never drawn; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("ID+X")
      ->group(kGroup);
}

namespace {

/// A selector whose size is its window has no other rows, and these are exact: a codec beside it
/// finds nothing to code.
void warn_of_idle_codecs(const Policy& policy) {
  const auto all_exact = [](const std::string& selector) {
    for (const MethodInfo& method : methods())
      if (method.is_selector && method.name == selector) return method.size_parameter == "window";
    return false;
  };
  const auto coded = [](const std::optional<PolicyPart>& part) {
    return part && part->name != "f32" && part->name != "f16" && part->name != "bf16";
  };
  for (const PolicyRule& rule : policy.rules) {
    if (!all_exact(rule.selector.name)) continue;
    for (const auto* part : {&rule.key_codec, &rule.value_codec}) {
      if (!coded(*part)) continue;
      say(fmt::format(
          "pith: warning: '{0}' codes no row beside '{1}', whose rows are all sink or window "
          "and stay exact; to code them write exact+{0},window=... or choose a selector with "
          "a budget",
          (*part)->name, rule.selector.name));
      break;
    }
  }
}

}  // namespace

Policy resolve_policy(const PolicyOptions& o) {
  if (o.policy == kAuto)
    throw Error(ErrorCode::kInvalidArgument,
                "auto: this command has no model to choose for; name a policy");
  Policy policy = Policy::parse(o.policy);
  if (!o.budget.empty()) policy.set_budget(o.budget);
  apply_exact_rows(policy.rules[0], o);
  for (PolicyRule& rule : policy.rules) apply_cache_types(rule, o);
  warn_of_idle_codecs(policy);
  return Policy::parse(policy.to_string());
}

StandaloneOptions session_options(const ModelOptions& o) {
  StandaloneOptions s;
  s.policy = resolve_policy(o.policy);
  s.context = static_cast<size_t>(o.context);
  s.chunk = static_cast<size_t>(o.chunk);
  s.threads = o.threads;
  s.seed = o.policy.seed;
  s.memory_limit = static_cast<size_t>(o.memory_limit_mib * 1048576);
  s.isa = o.isa;
  s.device = o.device;
  s.protect = parse_ranges(o.policy.protect);
  s.error_probe = o.error_probe;
  if (s.error_probe.max_error > 0 && s.error_probe.rows == 0) s.error_probe.rows = kProbeRows;
  return s;
}

std::optional<Session> keep_weights(const std::shared_ptr<const Model>& model,
                                    const ModelOptions& o) {
  if (o.device == Device::kCpu) return std::nullopt;
  StandaloneOptions small;
  small.device = o.device;
  small.context = small.chunk = 1;
  return Session(model, small);
}

int worker_threads(const ModelOptions& o) { return o.device == Device::kCpu ? o.threads : 1; }

std::shared_ptr<const Model> load_model(const ModelOptions& o, bool check_weights) {
  ProgressBar bar("checking weights", "", o.json);
  auto model = Model::load(o.model, check_weights && !o.no_check, bar.callback());
  bar.finish();
  const int64_t trained = model->config().context;
  if (trained > 0 && o.context > trained) {
    say(fmt::format(
        "pith: warning: -c {} is more than the {} tokens that the model was trained for; past "
        "these its answers get worse, unless the policy bounds positions, as "
        "'streaming_llm(rope=cache)' does",
        o.context, trained));
  }
  return model;
}

}  // namespace pith::cli
