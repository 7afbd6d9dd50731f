#include "tools/eval/tune_measure.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"
#include "tools/eval/answers.h"

namespace pith {
namespace {

constexpr size_t kRunsAtOnce = 8;  // sessions that are held beside the exact one

std::string fingerprint_of(std::span<const int32_t> ids) {
  return fingerprint({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
}

std::vector<double> divergences(const std::vector<Prediction>& predictions) {
  std::vector<double> all;
  for (const Prediction& p : predictions) all.push_back(p.divergence);
  return all;
}

}  // namespace

TuneMeasure::TuneMeasure(const std::shared_ptr<const Model>& model, std::span<const int32_t> text,
                         const TuneOptions& options, const Progress& progress)
    : o_(options), progress_(progress), records_(options.measured) {
  sources_.push_back(text_source(model, text));
  if (o_.samples > 0 && !o_.tasks.empty()) sources_.push_back(answer_source(model));
  for (const Source& s : sources_)
    for (size_t piece = 0; piece < s.pieces; ++piece) steps_ += s.perplexity->steps(piece);
}

TuneMeasure::Source TuneMeasure::text_source(const std::shared_ptr<const Model>& model,
                                             std::span<const int32_t> text) {
  PerplexityOptions p;
  p.mode = PerplexityMode::kContinue;
  p.window = o_.window, p.score = o_.score;
  p.session = o_.session;
  Source source;
  source.perplexity =
      std::make_unique<Perplexity>(model, std::vector<int32_t>(text.begin(), text.end()), p);
  source.pieces = o_.pieces;
  if (source.perplexity->pieces() < 2 * o_.pieces)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the text has {} pieces of {} tokens, {} are needed: {} to choose on "
                            "and as many others to report on; give a longer text, or fewer or "
                            "smaller pieces",
                            source.perplexity->pieces(), o_.window, 2 * o_.pieces, o_.pieces));
  source.setting = fmt::format("text {} {} {}", fingerprint_of(text), o_.window, o_.score);
  return source;
}

TuneMeasure::Source TuneMeasure::answer_source(const std::shared_ptr<const Model>& model) {
  const Tokenizer& tokenizer = model->tokenizer();
  SampleRequest request{.tokens = o_.length, .seed = o_.task_seed, .turns = 1};
  request.count_tokens = [&](const std::string& s) { return tokenizer.encode(s).size(); };
  std::vector<Passage> passages;
  std::string setting = "answers";
  for (; request.number < 2 * o_.samples; ++request.number)
    for (const std::string& task : o_.tasks) {
      passages.push_back(answer_passage(make_sample(task, request), tokenizer));
      setting += " " + fingerprint_of(passages.back().tokens);
    }
  return {std::make_unique<Perplexity>(model, std::move(passages), o_.session),
          o_.samples * o_.tasks.size(), setting};
}

std::string TuneMeasure::key(const Source& source, size_t piece, const std::string& policy) const {
  return fmt::format("{}|{}|{}|{}|{}|{}", o_.model_fingerprint,
                     o_.session.device == Device::kCuda ? "cuda" : "cpu",
                     fingerprint(source.setting), piece, o_.session.seed, policy);
}

bool TuneMeasure::advance(size_t tokens) {
  const std::lock_guard lock(mutex_);
  done_ = std::min(done_ + tokens, total_);
  return !progress_ || progress_(done_, total_);
}

bool TuneMeasure::measure(Source& source, size_t piece, std::span<const std::string> policies) {
  std::vector<PerplexityRun> runs;
  std::vector<std::string> open;
  for (const std::string& policy : policies) {
    if (records_.find(key(source, piece, policy)) != nullptr) continue;
    open.push_back(policy);
    runs.push_back({Policy::parse(policy), o_.session.seed});
  }
  const size_t n = runs.size(), found = policies.size() - n;
  if (!advance(found * source.perplexity->steps(piece))) return false;
  if (n == 0) return true;
  // The exact cache's tokens are not counted.
  const auto results = source.perplexity->run(
      piece, runs, [&](size_t tokens) { return advance(tokens * n / (n + 1)); });
  for (size_t i = 0; i < results.size(); ++i)
    records_.add(key(source, piece, open[i]),
                 {{"kind", "tune"},
                  {"source", &source == sources_.data() ? "text" : "answers"},
                  {"piece", piece},
                  {"policy", open[i]},
                  {"bits", results[i].ledger.effective_bits()},
                  {"kl", divergences(results[i].predictions)}});
  return !results.empty();
}

Estimate TuneMeasure::estimate(const Source& source, const std::string& policy, bool report) const {
  std::vector<Prediction> all;
  const size_t first = report ? source.pieces : 0;
  for (size_t piece = first; piece < first + source.pieces; ++piece)
    for (const double kl : records_.read(key(source, piece, policy), [](const Record& r) {
           return r.at("kl").get<std::vector<double>>();
         }))
      all.push_back({.divergence = static_cast<float>(kl)});
  return summarise(all).divergence;
}

std::optional<std::vector<TuneMeasured>> TuneMeasure::run(const std::vector<std::string>& policies,
                                                          bool report) {
  for (size_t from = 0; from < policies.size(); from += kRunsAtOnce) {
    const auto some =
        std::span(policies).subspan(from, std::min(kRunsAtOnce, policies.size() - from));
    for (Source& source : sources_) {
      const size_t first = report ? source.pieces : 0;
      for (size_t piece = first; piece < first + source.pieces; ++piece)
        if (!measure(source, piece, some)) return std::nullopt;
    }
  }
  std::vector<TuneMeasured> all;
  for (const std::string& policy : policies) {
    const Source& text = sources_.front();
    TuneMeasured m;
    m.text = estimate(text, policy, report);
    if (sources_.size() > 1) m.answers = estimate(sources_[1], policy, report);
    m.bits = records_.read(key(text, report ? text.pieces : 0, policy),
                           [](const Record& r) { return r.at("bits").get<double>(); });
    all.push_back(m);
  }
  return all;
}

}  // namespace pith
