#pragma once
// Perplexity and divergence from the exact cache, three protocols:
//   chunks    llama.cpp's: the text in pieces of `window` tokens, each read at once, of which the
//             predictions of tokens first+1 .. window-1 count, first = window/2. If the tokenizer
//             begins texts with a token, it replaces the first of each piece.
//   decode    StreamingLLM's: one continuous sequence, a token at a time through the compressed
//             cache, every prediction counts; `window` is the most tokens (0 = the whole text).
//   continue  each piece is read as a prompt up to `first`, then goes on a token at a time:
//             predictions are made by a cache that was compressed before, as after a long prompt.
//             Passages that say themselves where their prompt ends are read so too.
// Each piece: the exact cache's logits once, then every run (policy, seed), runs in parallel, each
// on one thread. Cost: a forward pass per run and token, and (scored x V) floats: all scored tokens
// of a piece in `chunks`, kBlock in the others.

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "pith/session.h"
#include "tools/eval/statistics.h"

namespace pith {

enum class PerplexityMode : uint8_t { kChunks, kDecode, kContinue };
/// "chunks", "decode" or "continue"; throws kInvalidArgument for others.
PerplexityMode parse_perplexity_mode(std::string_view name);

struct PerplexityOptions {
  PerplexityMode mode = PerplexityMode::kChunks;
  size_t window = 512;  ///< tokens of a piece
  size_t score = 0;     ///< predictions that count in each, the last; 0 = window - 1 - window/2
  size_t pieces = 0;    ///< at most so many; 0 = all
  int32_t bos = -1;     ///< replaces each piece's first token; -1 = none
  StandaloneOptions session;  ///< context, policy and seed are the runs'
};

/// Tokens of which the first `prompt` are read at once, the others one at a time.
struct Passage {
  std::vector<int32_t> tokens;
  size_t prompt = 0;
  size_t scored_from = 0;  ///< predictions of tokens from this one on count; at least `prompt`
};

/// One policy with one seed over one piece.
struct PieceResult {
  std::vector<Prediction> predictions;
  Ledger ledger;                                 ///< after the piece
  std::string policy;                            ///< as the session spells it out
  std::vector<AttentionError> attention_errors;  ///< after the piece, if the session probes
  double seconds = 0;
};

struct PerplexityRun {
  Policy policy;
  uint64_t seed = 0;
};

class Perplexity {
 public:
  /// `base` is what runs are compared with. Throws kInvalidArgument if the text has fewer than two
  /// pieces' tokens in `chunks` (llama.cpp's rule), one piece's in `continue`, 2 in `decode`.
  Perplexity(std::shared_ptr<const Model> model, std::vector<int32_t> text,
             const PerplexityOptions& options, Policy base = Policy::parse("exact"));
  /// `continue` over passages, each a piece.
  Perplexity(std::shared_ptr<const Model> model, std::vector<Passage> passages,
             const StandaloneOptions& session, Policy base = Policy::parse("exact"));

  size_t pieces() const { return passages_.empty() ? pieces_ : passages_.size(); }
  /// Predictions of a piece of the text that count.
  size_t scored() const { return window_ - 1 - first_; }
  /// Tokens that a piece reads, for progress.
  size_t steps(size_t piece = 0) const {
    return (passages_.empty() ? window_ : passages_[piece].tokens.size()) - 1;
  }

  /// All runs over one piece. `advance(tokens)` is called from any thread and returns false to
  /// cancel: then nothing is returned.
  using Advance = std::function<bool(size_t tokens)>;
  std::vector<PieceResult> run(size_t piece, std::span<const PerplexityRun> runs,
                               const Advance& advance);

 private:
  struct Stream;
  Passage passage(size_t piece) const;
  Stream start(const PerplexityRun& run, size_t tokens, int threads, bool probe) const;
  bool at_once(std::span<const int32_t> ids, Stream& base, std::vector<Stream>& streams,
               const Advance& advance);
  bool by_steps(const Passage& passage, Stream& base, std::vector<Stream>& streams,
                const Advance& advance);
  bool read_prompt(std::span<const int32_t> prompt, Stream& base, std::vector<Stream>& streams,
                   const Advance& advance);

  std::shared_ptr<const Model> model_;
  std::vector<int32_t> text_;
  std::vector<Passage> passages_;  // instead of the text
  PerplexityOptions options_;
  Policy base_;
  ThreadPool pool_;
  size_t window_ = 0, first_ = 0, pieces_ = 0, vocab_;
};

}  // namespace pith
