#pragma once
// The options that every subcommand with a model shares, and what they become.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "pith/generate.h"
#include "pith/session.h"

namespace pith::cli {

/// --kv-policy and the options that change it.
struct PolicyOptions {
  std::string policy = "exact";
  std::string cache_type_k, cache_type_v;  ///< "" = not given
  std::string budget;                      ///< "" = not given
  int64_t sink = -1, window = -1;          ///< -1 = not given
  uint64_t seed = 0;
  std::string goal;     ///< of auto: text, facts or both; "" = not given
  std::string presets;  ///< file that auto chooses from; "" = the built-in table
  std::string protect;  ///< token ranges, "" = none
  std::string memory;   ///< --kv: one word for auto and its budget; "" = not given
  bool policy_given = false, verbose = false, no_screen = false;
};

inline constexpr int64_t kMeasuredChunk = 0;

struct ModelOptions {
  std::string model;
  int64_t context = 0;
  int threads = 0;
  int64_t chunk = 512;  ///< kMeasuredChunk: `serve` measures one
  double memory_limit_mib = 0;
  std::string isa;
  Device device = Device::kCpu;
  bool no_check = false;
  bool json = false;
  PolicyOptions policy;
  ErrorProbeOptions error_probe;
};

/// -m; required unless a default is given.
void add_model_option(CLI::App& app, ModelOptions& options, const std::string& standard = "");
/// -c, -t, -ub, --memory-limit, --isa, --no-check-weights and --json. With `measures_chunk`, -ub
/// takes "auto" too, which is kMeasuredChunk.
void add_engine_options(CLI::App& app, ModelOptions& options, bool measures_chunk = false);
/// --device, for subcommands that run sessions and nothing but sessions.
void add_device_option(CLI::App& app, ModelOptions& options);
/// -t, --isa: what programs without a session need of them.
void add_compute_options(CLI::App& app, ModelOptions& options);
/// --kv-policy and its companions. With `many`, --kv-policy may be repeated and fills it.
void add_policy_options(CLI::App& app, PolicyOptions& options,
                        std::vector<std::string>* many = nullptr);
/// --attn-error-probe, --attn-error-every and --max-attn-error.
void add_error_probe_options(CLI::App& app, ModelOptions& options);
/// --protect.
void add_protect_option(CLI::App& app, PolicyOptions& options);
void add_json_option(CLI::App& app, bool& json);
void add_sampling_options(CLI::App& app, SamplingOptions& options);

/// Where auto chooses, and with what.
struct AutoPlace {
  int64_t context = 0;  ///< where options.context is 0; both 0: the model's
  bool screens = true;  ///< a model without figures is measured; else what is safe on others
  std::shared_ptr<const Model> model = {};  ///< to measure, if it is loaded already
};
/// Where the policy is `auto`, in `options` or `many`, or --kv or a budget is given alone: replaces
/// it by the best for that budget, and prints its bytes and expected loss on standard error. The
/// budget is auto's alone, and is cleared.
void settle_auto(ModelOptions& options, std::vector<std::string>* many = nullptr,
                 const AutoPlace& place = {});
/// The file's or folder's own name.
std::string model_name(const std::string& model);

/// The policy with what -ctk, -ctv, --kv-budget, --kv-sink-tokens and --kv-window add to it. Throws
/// kInvalidArgument where they contradict it.
Policy resolve_policy(const PolicyOptions& options);
StandaloneOptions session_options(const ModelOptions& options);
/// Loads with a progress bar; checks for NaN if `check_weights`.
std::shared_ptr<const Model> load_model(const ModelOptions& options, bool check_weights = true);
/// On the GPU a session that keeps the weights there while others come and go; on the CPU none.
std::optional<Session> keep_weights(const std::shared_ptr<const Model>& model,
                                    const ModelOptions& options);
/// Sessions at once: on the GPU one, which fills it.
int worker_threads(const ModelOptions& options);

}  // namespace pith::cli
