#include "tools/eval/tune_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pith/error.h"
#include "tools/eval/answers.h"

namespace pith {
namespace {

constexpr size_t kRunsAtOnce = 8;     // sessions that are held beside the exact one
constexpr size_t kMostTokens = 4096;  // of a piece whose size nobody gave
constexpr size_t kLeastTokens = 32;   // the same: of fewer all rows are the newest

std::string fingerprint_of(std::span<const int32_t> ids) {
  return fingerprint({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
}

std::vector<double> divergences(const std::vector<Prediction>& predictions) {
  std::vector<double> all;
  for (const Prediction& p : predictions) all.push_back(p.divergence);
  return all;
}

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

}  // namespace

TuneMeasure::TuneMeasure(std::shared_ptr<const Model> model, std::span<const int32_t> text,
                         const TuneOptions& options, const Progress& progress)
    : model_(std::move(model)), o_(options), progress_(progress), records_(options.measured) {
  add_source(pieces_of(text), o_.pieces, "text");
  if (o_.samples > 0 && !o_.tasks.empty())
    add_source(answers(), o_.samples * o_.tasks.size(), "answers");
}

void TuneMeasure::add_source(std::vector<Passage> passages, size_t pieces,
                             const std::string& name) {
  Source source{passages, std::make_unique<Perplexity>(model_, std::move(passages), o_.session),
                pieces, name};
  for (const Passage& p : source.passages)
    source.setting += fmt::format(" {} {} {}", fingerprint_of(p.tokens), p.prompt, p.scored_from);
  sources_.push_back(std::move(source));
}

size_t TuneMeasure::shortest() const {
  size_t least = window_;
  for (const Source& source : sources_)
    for (const Passage& p : source.passages) least = std::min(least, p.tokens.size());
  return least;
}

std::vector<Passage> TuneMeasure::pieces_of(std::span<const int32_t> text) {
  const auto context = static_cast<size_t>(model_->config().context);
  window_ = o_.window;
  size_t score = o_.score;
  if (window_ == 0) {
    window_ =
        std::max(std::min({kMostTokens, context, text.size() / (2 * o_.pieces)}), kLeastTokens);
    score = std::min(score, window_ / 4);
  }
  if (window_ > context)
    refuse(fmt::format("pieces of {} tokens; the model's context is {}", window_, context));
  // One prediction is the prompt's own, and two read the cache.
  if (score < 3 || score + 4 > window_)
    refuse(fmt::format("{} scored tokens in a piece of {}; score 3 to {}, or give larger pieces",
                       score, window_, window_ < 7 ? 3 : window_ - 4));
  const size_t pieces = text.size() / window_, wanted = 2 * o_.pieces;
  if (pieces < wanted)
    refuse(
        fmt::format("the text has {} pieces of {} tokens, {} are needed: {} to choose on and "
                    "as many others to report on; give a longer text, or fewer or smaller "
                    "pieces",
                    pieces, window_, wanted, o_.pieces));
  std::vector<Passage> passages;
  const Tokenizer& tokenizer = model_->tokenizer();
  for (size_t i = 0; i < wanted; ++i) {
    const auto ids = text.subspan(i * window_, window_);
    passages.push_back({{ids.begin(), ids.end()}, window_ - score, window_ - score});
    if (tokenizer.add_bos()) passages.back().tokens.front() = tokenizer.bos();
  }
  return passages;
}

std::vector<Passage> TuneMeasure::answers() const {
  const Tokenizer& tokenizer = model_->tokenizer();
  SampleRequest request{.tokens = o_.length, .seed = o_.task_seed, .turns = 1};
  request.count_tokens = [&](const std::string& s) { return tokenizer.encode(s).size(); };
  std::vector<Passage> passages;
  for (; request.number < 2 * o_.samples; ++request.number)
    for (const std::string& task : o_.tasks)
      passages.push_back(answer_passage(make_sample(task, request), tokenizer));
  return passages;
}

std::string TuneMeasure::key(const Source& source, size_t piece, const std::string& what) const {
  return key(source, piece, what, o_.session.device);
}

std::string TuneMeasure::key(const Source& source, size_t piece, const std::string& what,
                             Device device) const {
  return fmt::format("{}|{}|{}|{}|{}|{}", o_.model_fingerprint,
                     device == Device::kCuda ? "cuda" : "cpu", fingerprint(source.setting), piece,
                     o_.session.seed, what);
}

void TuneMeasure::expect(size_t forms, size_t policies) {
  for (const Source& s : sources_)
    for (size_t piece = 0; piece < s.pieces; ++piece)
      total_ += s.perplexity->steps(piece) * (forms + 2 * policies);
}

bool TuneMeasure::advance(size_t tokens) {
  const std::lock_guard lock(mutex_);
  done_ = std::min(done_ + tokens, total_);
  return !progress_ || progress_(done_, total_);
}

std::optional<HeadLosses> TuneMeasure::losses_of(const Source& source, size_t piece,
                                                 const HeadLossOptions& options) {
  std::string what = fmt::format("losses {}", options.reference);
  for (const Policy& form : options.forms) what += "|" + form.to_string();
  // Of the CPU: head_losses() runs there.
  const std::string name = key(source, piece, "losses " + fingerprint(what), Device::kCpu);
  const size_t steps = source.perplexity->steps(piece) * options.forms.size();
  if (records_.find(name) == nullptr) {
    ThreadPool pool(o_.threads);
    MemoryCounter memory(o_.session.memory_limit);
    const Context context{pool, memory, kernels_for(o_.session.isa)};
    size_t seen = 0;
    const auto found = head_losses(context, *model_, source.passages[piece], options,
                                   [&](size_t done, size_t total) {
                                     const size_t now = done * steps / total;
                                     return advance(now - std::exchange(seen, now));
                                   });
    if (!found) return std::nullopt;
    records_.add(name,
                 {{"kind", "losses"}, {"piece", piece}, {"bits", found->bits}, {"kl", found->kl}});
  } else if (!advance(steps)) {
    return std::nullopt;
  }
  using Table = std::vector<std::vector<double>>;
  return records_.read(name, [](const Record& r) {
    return HeadLosses{r.at("kl").get<Table>(), r.at("bits").get<Table>()};
  });
}

std::optional<TuneLosses> TuneMeasure::losses(
    const HeadLossOptions& options,
    const std::function<void(const std::vector<std::vector<double>>& bits)>& check) {
  TuneLosses all;
  for (const Source& source : sources_)
    for (size_t piece = 0; piece < source.pieces; ++piece) {
      const auto found = losses_of(source, piece, options);
      if (!found) return std::nullopt;
      if (all.bits.empty()) {
        all.bits = found->bits;
        check(all.bits);
        all.alone.assign(found->kl.size(), std::vector<TuneLoss>(options.forms.size()));
      }
      for (size_t h = 0; h < all.alone.size(); ++h)
        for (size_t f = 0; f < options.forms.size(); ++f) {
          TuneLoss& loss = all.alone[h][f];
          (&source == sources_.data() ? loss.text : loss.answers) +=
              found->kl[h][f] / static_cast<double>(source.pieces);
        }
    }
  return all;
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
  std::vector<size_t> pieces;
  const size_t first = report ? source.pieces : 0;
  for (size_t piece = first; piece < first + source.pieces; ++piece) {
    const size_t before = all.size();
    for (const double kl : records_.read(key(source, piece, policy), [](const Record& r) {
           return r.at("kl").get<std::vector<double>>();
         }))
      all.push_back({.divergence = static_cast<float>(kl)});
    pieces.push_back(all.size() - before);
  }
  return summarise(all, pieces).divergence;
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
