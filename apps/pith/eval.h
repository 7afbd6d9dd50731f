#pragma once
// Shared by the kinds of `pith eval`: policies with seeds, and results that a later run can
// continue.

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "commands.h"
#include "console.h"
#include "engine.h"
#include "tools/eval/records.h"

namespace pith::cli {

struct EvalOptions {
  ModelOptions engine;
  std::vector<std::string> policies;
  int64_t seeds = 3;
  std::string out;  ///< JSON lines; "" = none
};

/// --kv-policy (repeated), --kv-budget ..., --seeds, --out and the engine's options but -c.
void add_eval_options(CLI::App& app, EvalOptions& options);

/// --fast: unless it is given, prompts are computed in f32, but on a GPU.
void add_fast_option(CLI::App& app, bool& fast, const char* group);

/// A policy with one seed. Its first run is named; the null control is the first of all.
struct EvalRun {
  std::string name;  ///< as in tables: the policy's text, or "exact (null control)"
  Policy policy;
  uint64_t seed = 0;
  bool null_control = false;
};
/// The null control (unless left out), then each policy with each seed.
std::vector<EvalRun> eval_runs(const EvalOptions& options, bool null_control);

/// The fields of every record: version, model, fingerprint, settings that do not depend on threads.
Record describe_setting(const EvalOptions& options, const Model& model);

/// Counts work from many threads into one bar.
class SharedProgress {
 public:
  SharedProgress(const std::string& label, const std::string& unit, bool quiet, size_t total)
      : bar_(label, unit, quiet), total_(total) {}
  /// Returns false once Ctrl-C was pressed.
  bool advance(size_t count);
  void finish() { bar_.finish(); }

 private:
  std::mutex mutex_;
  ProgressBar bar_;
  size_t done_ = 0, total_;
};

void add_eval_ppl(CLI::App& eval, Action& action);
void add_eval_tasks(CLI::App& eval, Action& action);
void add_eval_calibrate(CLI::App& eval, Action& action);

}  // namespace pith::cli
