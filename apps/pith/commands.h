#pragma once
// Each subcommand adds itself to the command line, with the function to run when it is chosen.

#include <functional>

#include <CLI/CLI.hpp>

namespace pith::cli {

/// The chosen subcommand; returns the exit status.
using Action = std::function<int()>;

void add_run(CLI::App& root, Action& action);
void add_inspect(CLI::App& root, Action& action);
void add_policies(CLI::App& root, Action& action);
void add_bench(CLI::App& root, Action& action);
void add_bench_select(CLI::App& bench, Action& action);
void add_quantize(CLI::App& root, Action& action);
void add_session(CLI::App& root, Action& action);
void add_tokenize(CLI::App& root, Action& action);
void add_logits(CLI::App& root, Action& action);
void add_attend(CLI::App& root, Action& action);
void add_demo(CLI::App& root, Action& action);
void add_probe(CLI::App& root, Action& action);
void add_eval(CLI::App& root, Action& action);
void add_train_dict(CLI::App& root, Action& action);
void add_tune(CLI::App& root, Action& action);
void add_report(CLI::App& root, Action& action);
void add_reproduce(CLI::App& root, Action& action);
void add_completion(CLI::App& root, Action& action);

inline constexpr int kExitUsage = 2;
inline constexpr int kExitError = 10;          ///< + ErrorCode
inline constexpr int kExitAttentionError = 9;  ///< --max-attn-error ended the answer
inline constexpr int kExitInterrupted = 130;
inline constexpr int kExitReaderGone = 141;  ///< as a shell reports SIGPIPE
inline constexpr int kExitTerminated = 143;  ///< and of SIGTERM

}  // namespace pith::cli
