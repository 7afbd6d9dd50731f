// pith inspect: a model's shapes, what an uncompressed cache costs per token, and what a policy
// will cost at a context length, before anything is run.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>

#include "commands.h"
#include "console.h"
#include "engine.h"
#include "pith/error.h"
#include "policies.h"
#include "report.h"
#include "tools/weight_types.h"

namespace pith::cli {
namespace {

struct InspectOptions {
  ModelOptions engine;
  bool policies = false;
  CLI::Option *policy_option = nullptr, *context_option = nullptr;
};

// Numbers in the weights, from the shapes: biases and norms included.
double parameter_count(const ModelConfig& c) {
  const double hidden = c.hidden, queries = double(c.query_heads) * c.head_dim;
  const double kv = double(c.kv_heads) * c.head_dim;
  double layer = 2 * hidden * queries + 2 * hidden * kv + 3 * hidden * c.intermediate + 2 * hidden;
  if (c.qkv_bias) layer += queries + 2 * kv;
  if (c.qk_norm) layer += 2.0 * c.head_dim;
  return c.layers * layer + hidden + hidden * c.vocab * (c.tied_embeddings ? 1 : 2);
}

std::string types_text(const Model& model) {
  std::string out;
  for (const auto& [type, bytes] : bytes_by_type(model))
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", type,
                       human_bytes(static_cast<double>(bytes)));
  return out;
}

Json config_json(const ModelConfig& c, const Model* model) {
  return {{"architecture", c.architecture},
          {"layers", c.layers},
          {"hidden", c.hidden},
          {"intermediate", c.intermediate},
          {"query_heads", c.query_heads},
          {"kv_heads", c.kv_heads},
          {"head_dim", c.head_dim},
          {"vocab", c.vocab},
          {"context", c.context},
          {"rope_theta", c.rope_theta},
          {"norm_eps", c.norm_eps},
          {"sliding_window", c.sliding_window},
          {"tied_embeddings", c.tied_embeddings},
          {"qkv_bias", c.qkv_bias},
          {"qk_norm", c.qk_norm},
          {"weights", to_string(c.weights)},
          {"weight_types", model != nullptr ? Json(bytes_by_type(*model)) : Json()},
          {"weight_bytes", model != nullptr ? Json(model->weight_bytes()) : Json()},
          {"parameters", parameter_count(c)},
          {"bos", c.bos},
          {"eos", c.eos},
          {"bytes_per_token",
           {{"f32", c.bytes_per_token(DType::kF32)},
            {"f16", c.bytes_per_token(DType::kF16)},
            {"bf16", c.bytes_per_token(DType::kBF16)}}}};
}

std::string config_text(const ModelConfig& c, const Model* model, const std::string& folder) {
  std::string out = fmt::format("{}: {}\n", folder, c.architecture);
  const auto line = [&](const char* name, const std::string& value) {
    out += wrapped(fmt::format("  {:<15} {}", name, value), 18) + "\n";
  };
  const std::string count = human_count(parameter_count(c));
  line("parameters", model == nullptr
                         ? count + "; there are no weights here"
                         : fmt::format("{} in {} ({})", count,
                                       human_bytes(static_cast<double>(model->weight_bytes())),
                                       types_text(*model)));
  line("layers", fmt::format("{}, hidden {}, intermediate {}", c.layers, c.hidden, c.intermediate));
  line("attention", fmt::format("{} query heads, {} KV heads, head_dim {}", c.query_heads,
                                c.kv_heads, c.head_dim));
  const auto sliding = std::count_if(c.sliding_window.begin(), c.sliding_window.end(),
                                     [](int64_t w) { return w > 0; });
  if (sliding > 0) {
    line("sliding window",
         fmt::format("{} tokens in {} of {} layers",
                     *std::max_element(c.sliding_window.begin(), c.sliding_window.end()), sliding,
                     c.layers));
  }
  line("vocabulary",
       fmt::format("{}, embeddings {}", c.vocab, c.tied_embeddings ? "tied" : "not tied"));
  line("context", fmt::format("{} tokens, RoPE theta {}", c.context, c.rope_theta));
  line("extras", fmt::format("QKV bias: {}, QK norm: {}", c.qkv_bias ? "yes" : "no",
                             c.qk_norm ? "yes" : "no"));
  line("KV per token",
       fmt::format("{} in f32, {} in f16 or bf16",
                   human_bytes(static_cast<double>(c.bytes_per_token(DType::kF32))),
                   human_bytes(static_cast<double>(c.bytes_per_token(DType::kF16)))));
  return out;
}

// 1K, 4K, 16K, ... and the context itself.
std::vector<size_t> lengths_to(size_t context) {
  std::vector<size_t> lengths;
  for (size_t n = 1024; n < context; n *= 4) lengths.push_back(n);
  lengths.push_back(context);
  return lengths;
}

struct Cost {
  size_t tokens;
  Ledger ledger;
  size_t dense_bytes;  // of an uncompressed f16 cache
};

/// Working memory is known where an engine was made.
std::string cost_table(const std::vector<Cost>& costs, bool engine) {
  Table table({"tokens", "rows", "kept", "cache", engine ? "all memory" : "with slack", "bits",
               "f16 cache", "ratio"});
  for (const Cost& c : costs) {
    table.add({std::to_string(c.tokens), rows_per_head(c.ledger), share_kept(c.ledger),
               human_bytes(static_cast<double>(c.ledger.cache_bytes())),
               human_bytes(static_cast<double>(c.ledger.total_bytes())),
               fmt::format("{:.2f}", c.ledger.effective_bits()),
               human_bytes(static_cast<double>(c.dense_bytes)),
               fmt::format("{:.1f}x", static_cast<double>(c.dense_bytes) /
                                          static_cast<double>(c.ledger.cache_bytes()))});
  }
  return table.text();
}

/// False for a folder with a config.json and nothing else to load: sizes follow from that alone.
bool has_weights(const std::filesystem::path& model) {
  std::error_code ignored;
  if (!std::filesystem::exists(model / "config.json", ignored)) return true;
  const std::filesystem::directory_iterator files(model, ignored);
  return std::any_of(begin(files), end(files), [](const auto& file) {
    return file.path().string().find(".safetensors") != std::string::npos;
  });
}

int inspect(const InspectOptions& o) {
  if (o.policies) return print_policies(o.engine.json);
  if (o.engine.model.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "nothing to inspect: name a model folder with -m, or give --policies");
  }
  const StandaloneOptions options = session_options(o.engine);
  const bool whole = has_weights(o.engine.model);
  const auto model = whole ? load_model(o.engine, false) : nullptr;
  const ModelConfig config = whole ? model->config() : read_model_config(o.engine.model);
  Json json = config_json(config, model.get());
  std::string text = config_text(config, model.get(), o.engine.model);
  // Built to say what the policy became, and to refuse what cannot be with the reason.
  const auto session = whole ? std::make_unique<const Session>(model, options) : nullptr;
  const size_t context = whole                 ? session->context()
                         : options.context > 0 ? options.context
                                               : static_cast<size_t>(config.context);
  const std::string resolved = whole ? session->describe_policy() : "";
  std::vector<Cost> costs;
  for (size_t tokens : lengths_to(context)) {
    costs.push_back({tokens, estimate_ledger(config, options, tokens),
                     tokens * config.bytes_per_token(DType::kF16)});
    if (whole) costs.back().ledger.scratch += session->engine()->ledger().scratch;
  }
  if (o.engine.json) {
    Json list = Json::array();
    for (const Cost& c : costs) {
      Json row = to_json(c.ledger);
      row["tokens"] = c.tokens;
      row["f16_bytes"] = c.dense_bytes;
      list.push_back(std::move(row));
    }
    json["policy"] = {{"text", options.policy.to_string()},
                      {"resolved", whole ? Json(resolved) : Json()},
                      {"context", context},
                      {"costs", list}};
    print_json(json);
    return 0;
  }
  text += wrapped(fmt::format("\nPolicy {} at a context of {} tokens{}", options.policy.to_string(),
                              context, whole ? ", by layers:" : ""),
                  2, terminal_width()) +
          "\n";
  for (size_t at = 0; at < resolved.size();) {
    const size_t end = std::min(resolved.find('\n', at), resolved.size());
    text += wrapped("  " + resolved.substr(at, end - at), 6, terminal_width()) + "\n";
    at = end + 1;
  }
  text +=
      "\nWhat it will hold at most (rows per KV head; bits per number of the "
      "uncompressed\ncache):\n";
  write_out(text + cost_table(costs, whole));
  return 0;
}

}  // namespace

void add_inspect(CLI::App& root, Action& action) {
  auto o = std::make_shared<InspectOptions>();
  CLI::App* app = root.add_subcommand(
      "inspect", "Show a model's shapes and what a policy will cost at a context length");
  add_model_option(*app, o->engine);
  app->get_option("--model")->required(false);
  app->add_flag("--policies", o->policies, "List the compression methods and the grammar instead")
      ->group("Output");
  add_engine_options(*app, o->engine);
  add_policy_options(*app, o->engine.policy);
  app->footer(
      "Costs are worst cases, computed by the code that sizes a session; nothing is\n"
      "run.\n\n"
      "Examples:\n"
      "  pith inspect -m models/demo\n"
      "  pith inspect -m models/demo --kv-policy 'uniform(budget=25%)' -c 8192\n"
      "  pith inspect -m FOLDER_WITH_CONFIG_JSON -c 32768 --kv-policy exact+int4\n"
      "  pith inspect --policies\n");
  app->callback([o, &action] {
    action = [o] {
      settle_auto(o->engine, nullptr, {.screens = false});
      return inspect(*o);
    };
  });
}

}  // namespace pith::cli
