#pragma once
// The measurements of `tune` over pieces of a text and over answers to questions, kept as JSON
// lines: the loss of each form in each head alone, and whole policies beside the exact cache.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "pith_tools/tune.h"
#include "tools/eval/head_losses.h"
#include "tools/eval/perplexity.h"
#include "tools/eval/records.h"

namespace pith {

/// One policy on one half of the pieces.
struct TuneMeasured {
  Estimate text, answers;
  double bits = 0;  ///< a number of the cache, after a piece of the text
};

/// Losses of forms in heads alone, on the half to choose on.
struct TuneLosses {
  std::vector<std::vector<TuneLoss>> alone;  // [L * G][forms]
  std::vector<std::vector<double>> bits;     // [L][forms] on the text
};

class TuneMeasure {
 public:
  /// Throws kInvalidArgument.
  TuneMeasure(std::shared_ptr<const Model> model, std::span<const int32_t> text,
              const TuneOptions& options, const Progress& progress);

  /// Tokens per piece of the text.
  size_t window() const { return window_; }
  /// Tokens of the shortest piece or sample.
  size_t shortest() const;
  /// Nothing if `progress` returned false. `check` sees the bits [L][forms] as soon as they are
  /// known.
  std::optional<TuneLosses> losses(
      const HeadLossOptions& options,
      const std::function<void(const std::vector<std::vector<double>>& bits)>& check);
  /// Each policy, on the text and samples to choose on, or on those of the report; nothing if
  /// `progress` returned false.
  std::optional<std::vector<TuneMeasured>> run(const std::vector<std::string>& policies,
                                               bool report);
  /// For progress: losses() of so many forms, and run() of so many policies.
  void expect(size_t forms, size_t policies);

 private:
  struct Source {
    std::vector<Passage> passages;
    std::unique_ptr<Perplexity> perplexity;
    size_t pieces = 0;    // to choose on
    std::string setting;  // all that a measurement depends on but piece and policy
  };
  void add_source(std::vector<Passage> passages, size_t pieces, const std::string& name);
  std::vector<Passage> pieces_of(std::span<const int32_t> text);
  std::vector<Passage> answers() const;
  std::optional<HeadLosses> losses_of(const Source& source, size_t piece,
                                      const HeadLossOptions& options);
  bool measure(Source& source, size_t piece, std::span<const std::string> policies);
  Estimate estimate(const Source& source, const std::string& policy, bool report) const;
  std::string key(const Source& source, size_t piece, const std::string& what) const;
  std::string key(const Source& source, size_t piece, const std::string& what, Device device) const;
  bool advance(size_t tokens);

  std::shared_ptr<const Model> model_;
  const TuneOptions& o_;
  const Progress& progress_;
  size_t window_ = 0;
  std::vector<Source> sources_;  // the text, then answers if any
  RecordFile records_;
  std::mutex mutex_;
  size_t done_ = 0, total_ = 0;
};

}  // namespace pith
