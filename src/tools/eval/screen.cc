// One piece of a text, `continue`: cost, a forward pass per policy and token, and one for exact.

#include "pith_tools/screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string_view>

#include "pith/error.h"
#include "pith/tokenizer.h"
#include "pith_tools/catalogue.h"
#include "tools/eval/perplexity.h"
#include "tools/eval/records.h"

namespace pith {

extern const std::vector<std::string_view> kScreenText;  // screen.txt (cmake/embed.cmake)

namespace {

namespace fs = std::filesystem;

// On two cores 0.5B reads 4 x 1024 tokens in a minute. Shorter texts do not tell shares of rows
// apart, of which a tenth is then fewer than sink and window.
constexpr size_t kTokens = 1024, kScored = 64;
constexpr double kTold = 0.1;  // share of the work after which its time is known well enough

/// The text's pieces, each read once.
Perplexity pieces_of(const std::shared_ptr<const Model>& model, const ScreenOptions& o) {
  PerplexityOptions p;
  p.mode = PerplexityMode::kContinue;
  p.window = std::min(kTokens, static_cast<size_t>(model->config().context));
  p.score = std::min(kScored, p.window / 4);
  p.pieces = 1;
  p.session = o.session;
  p.session.f32_arithmetic = o.session.device == Device::kCpu;  // as `pith eval ppl`
  const Tokenizer& tokenizer = model->tokenizer();
  if (tokenizer.add_bos()) p.bos = tokenizer.bos();
  return {model, tokenizer.encode(std::string(screen_text())), p};
}

}  // namespace

std::string_view screen_text() { return kScreenText.front(); }

fs::path screen_file(const std::string& fingerprint) {
  const std::string name =
      fmt::format("{}-{}-{}.jsonl", fingerprint, pith::fingerprint(screen_text()), PITH_VERSION);
  return models_folder().parent_path() / "screens" / name;
}

std::vector<Preset> screened(const std::string& fingerprint) {
  try {
    const Presets kept = Presets::read(screen_file(fingerprint));
    if (kept.model_fingerprint() == fingerprint) return kept.all();
  } catch (const Error& e) {  // measured again
    if (e.code() != ErrorCode::kNotFound && e.code() != ErrorCode::kCorrupt &&
        e.code() != ErrorCode::kIo)
      throw;
  }
  return {};
}

std::optional<std::vector<Preset>> screen(const std::shared_ptr<const Model>& model,
                                          std::span<const std::string> policies,
                                          const ScreenOptions& options, const Progress& progress) {
  Perplexity perplexity = pieces_of(model, options);
  std::vector<PerplexityRun> runs;
  for (const std::string& policy : policies)
    runs.push_back({Policy::parse(policy), options.session.seed});
  const size_t total = perplexity.steps() * (runs.size() + 1);
  size_t done = 0;
  std::mutex mutex;
  const auto start = std::chrono::steady_clock::now();
  const auto advance = [&](size_t tokens) {
    const std::lock_guard lock(mutex);
    const size_t now = done += tokens;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double share = static_cast<double>(now) / static_cast<double>(total);
    if (share > kTold && took.count() / share > options.most_seconds) return false;
    return !progress || progress(std::min(now, total), total);
  };
  const std::vector<PieceResult> results = perplexity.run(0, runs, advance);
  if (results.empty()) return std::nullopt;
  std::vector<Preset> all = screened(options.fingerprint);
  for (size_t i = 0; i < results.size(); ++i) {
    const Estimate kl = summarise(results[i].predictions).divergence;
    std::erase_if(all, [&](const Preset& p) { return p.policy == policies[i]; });
    all.push_back({.policy = policies[i],
                   .model = options.model,
                   .context = perplexity.steps() + 1,
                   .seeds = 1,
                   .divergence = kl.mean,
                   .divergence_error = kl.error,
                   .bits = results[i].ledger.effective_bits(),
                   .model_fingerprint = options.fingerprint});
  }
  try {
    const fs::path file = screen_file(options.fingerprint);
    fs::create_directories(file.parent_path());
    Presets::write(file, all, options.fingerprint);
  } catch (const std::exception&) {  // the figures hold for this run all the same
  }
  return all;
}

}  // namespace pith
