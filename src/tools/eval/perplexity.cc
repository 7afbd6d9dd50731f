#include "tools/eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "pith/error.h"

namespace pith {
namespace {

// Steps whose exact logits are held before the runs follow: enough work for every thread, and at a
// vocabulary of 128K still 64 MiB.
constexpr size_t kBlock = 128;
// Most numbers of exact logits held at once in `chunks` (4 GiB).
constexpr size_t kMostLogits = size_t{1} << 30;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

size_t first_scored(const PerplexityOptions& o, size_t window) {
  if (o.mode == PerplexityMode::kDecode) return 0;
  if (o.score == 0) return window / 2;
  if (o.score >= window - 1)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} scored tokens in a piece of {}; score at most {}", o.score, window,
                            window - 2));
  return window - 1 - o.score;
}

}  // namespace

PerplexityMode parse_perplexity_mode(std::string_view name) {
  if (name == "chunks") return PerplexityMode::kChunks;
  if (name == "decode") return PerplexityMode::kDecode;
  if (name == "continue") return PerplexityMode::kContinue;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is no mode; use chunks, decode or continue", name));
}

/// A session with what it has predicted so far.
struct Perplexity::Stream {
  Session session;
  std::vector<float> next;  // [V] logits after the last token read, for the steps
  PieceResult result;

  void keep(std::span<const float> logits) { next.assign(logits.begin(), logits.end()); }
};

Perplexity::Perplexity(std::shared_ptr<const Model> model, std::vector<int32_t> text,
                       const PerplexityOptions& options, Policy base)
    : model_(std::move(model)),
      text_(std::move(text)),
      options_(options),
      base_(std::move(base)),
      pool_(options.session.threads),
      window_(options.window),
      vocab_(static_cast<size_t>(model_->config().vocab)) {
  const bool decode = options_.mode == PerplexityMode::kDecode;
  if (decode && (window_ == 0 || window_ > text_.size())) window_ = text_.size();
  const size_t wanted = decode                                     ? 2
                        : options_.mode == PerplexityMode::kChunks ? 2 * window_
                                                                   : window_;
  if (!decode && window_ < 4)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("pieces of {} tokens; use at least 4", window_));
  if (text_.size() < wanted)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the text has {} tokens, {} are needed; give a longer text or smaller "
                            "pieces (-c)",
                            text_.size(), wanted));
  first_ = first_scored(options_, window_);
  pieces_ = decode ? 1 : text_.size() / window_;
  if (options_.pieces > 0) pieces_ = std::min(pieces_, options_.pieces);
  if (options_.mode == PerplexityMode::kChunks && scored() * vocab_ > kMostLogits)
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("{} scored tokens of {} logits would take {:.1f} GiB; use smaller "
                            "pieces (-c), fewer scored tokens, or another mode",
                            scored(), vocab_, static_cast<double>(scored() * vocab_) / (1 << 28)));
}

Perplexity::Perplexity(std::shared_ptr<const Model> model, std::vector<Passage> passages,
                       const StandaloneOptions& session, Policy base)
    : model_(std::move(model)),
      passages_(std::move(passages)),
      base_(std::move(base)),
      pool_(session.threads),
      vocab_(static_cast<size_t>(model_->config().vocab)) {
  options_.mode = PerplexityMode::kContinue, options_.session = session;
  for (const Passage& p : passages_)
    if (p.prompt == 0 || p.scored_from < p.prompt || p.scored_from >= p.tokens.size())
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("a passage of {} tokens with a prompt of {} that is scored from {} on; "
                      "something must be read before, and something scored",
                      p.tokens.size(), p.prompt, p.scored_from));
}

Passage Perplexity::passage(size_t piece) const {
  if (!passages_.empty()) return passages_[piece];
  const auto begin = text_.begin() + static_cast<std::ptrdiff_t>(piece * window_);
  std::vector<int32_t> ids(begin, begin + static_cast<std::ptrdiff_t>(window_));
  if (options_.bos >= 0) ids[0] = options_.bos;
  return {std::move(ids), first_ + 1, first_ + 1};
}

Perplexity::Stream Perplexity::start(const PerplexityRun& run, size_t tokens, int threads,
                                     bool probe) const {
  StandaloneOptions o = options_.session;
  o.policy = run.policy, o.seed = run.seed, o.threads = threads, o.context = tokens;
  if (!probe) o.error_probe = {};
  Stream stream{Session(model_, o), {}, {}};
  stream.result.policy = stream.session.describe_policy();
  return stream;
}

std::vector<PieceResult> Perplexity::run(size_t piece, std::span<const PerplexityRun> runs,
                                         const Advance& advance) {
  const Passage read = passage(piece);
  const size_t tokens = read.tokens.size();
  Stream base = start({base_, 0}, tokens, options_.session.threads, /*probe=*/false);
  std::vector<Stream> streams;
  for (const PerplexityRun& r : runs) streams.push_back(start(r, tokens, 1, /*probe=*/true));
  for (Stream& s : streams) s.result.predictions.reserve(tokens - read.scored_from);
  const bool done = options_.mode == PerplexityMode::kChunks
                        ? at_once(read.tokens, base, streams, advance)
                        : by_steps(read, base, streams, advance);
  std::vector<PieceResult> results;
  if (!done) return results;
  for (Stream& s : streams) {
    s.result.ledger = s.session.ledger();
    s.result.attention_errors = s.session.attention_errors();
    results.push_back(std::move(s.result));
  }
  return results;
}

bool Perplexity::at_once(std::span<const int32_t> ids, Stream& base, std::vector<Stream>& streams,
                         const Advance& advance) {
  const auto read = ids.first(window_ - 1);
  std::vector<float> exact(scored() * vocab_);  // [scored, V]
  base.session.prefill_logits(read, [&](size_t at, size_t count, const float* logits) {
    for (size_t i = at < first_ ? std::min(first_ - at, count) : 0; i < count; ++i)
      std::copy_n(logits + i * vocab_, vocab_, exact.data() + (at + i - first_) * vocab_);
  });
  std::atomic<bool> go{advance(read.size())};
  pool_.parallel_for(streams.size(), [&](size_t r, int) {
    if (!go) return;
    Stream& s = streams[r];
    const auto started = Clock::now();
    s.session.prefill_logits(read, [&](size_t at, size_t count, const float* logits) {
      for (size_t i = at < first_ ? std::min(first_ - at, count) : 0; i < count; ++i) {
        const std::span<const float> expected(exact.data() + (at + i - first_) * vocab_, vocab_);
        s.result.predictions.push_back(
            score_prediction(expected, {logits + i * vocab_, vocab_}, ids[at + i + 1]));
      }
    });
    s.result.seconds = seconds_since(started);
    if (!advance(read.size())) go = false;
  });
  return go;
}

bool Perplexity::read_prompt(std::span<const int32_t> prompt, Stream& base,
                             std::vector<Stream>& streams, const Advance& advance) {
  base.keep(base.session.prefill(prompt));
  std::atomic<bool> go{advance(prompt.size())};
  pool_.parallel_for(streams.size(), [&](size_t r, int) {
    if (!go) return;
    const auto started = Clock::now();
    streams[r].keep(streams[r].session.prefill(prompt));
    streams[r].result.seconds += seconds_since(started);
    if (!advance(prompt.size())) go = false;
  });
  return go;
}

bool Perplexity::by_steps(const Passage& passage, Stream& base, std::vector<Stream>& streams,
                          const Advance& advance) {
  const std::span<const int32_t> ids = passage.tokens;
  const size_t size = ids.size();
  if (!read_prompt(ids.first(passage.prompt), base, streams, advance)) return false;
  std::vector<float> exact(std::min(kBlock, size - passage.prompt) * vocab_);  // [kBlock, V]
  std::atomic<bool> go{true};
  // Token t is predicted by the logits in `next`, then read; the last one is only predicted.
  const auto follow = [&](Stream& s, size_t begin, size_t end, auto&& use) {
    for (size_t t = begin; t < end; ++t) {
      if (t >= passage.scored_from) use(t, std::span<const float>(s.next));
      if (t + 1 < size) s.keep(s.session.decode(ids[t]));
    }
  };
  for (size_t begin = passage.prompt; begin < size && go; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, size);
    follow(base, begin, end, [&](size_t t, std::span<const float> logits) {
      std::copy(logits.begin(), logits.end(), exact.data() + (t - begin) * vocab_);
    });
    if (!advance(end - begin)) go = false;
    pool_.parallel_for(streams.size(), [&](size_t r, int) {
      if (!go) return;
      const auto started = Clock::now();
      follow(streams[r], begin, end, [&](size_t t, std::span<const float> logits) {
        const std::span<const float> expected(exact.data() + (t - begin) * vocab_, vocab_);
        streams[r].result.predictions.push_back(score_prediction(expected, logits, ids[t]));
      });
      streams[r].result.seconds += seconds_since(started);
      if (!advance(end - begin)) go = false;
    });
  }
  return go;
}

}  // namespace pith
