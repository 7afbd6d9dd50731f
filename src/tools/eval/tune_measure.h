#pragma once
// The measurements of `tune`: policies over pieces of a text and over answers to
// questions, each against the exact cache once, kept as JSON lines.

#include <memory>
#include <mutex>
#include <optional>

#include "pith_tools/tune.h"
#include "tools/eval/perplexity.h"
#include "tools/eval/records.h"

namespace pith {

/// One policy on one half of the pieces.
struct TuneMeasured {
  Estimate text, answers;
  double bits = 0;  ///< a number of the cache, after a piece of the text
};

class TuneMeasure {
 public:
  /// Throws kInvalidArgument.
  TuneMeasure(const std::shared_ptr<const Model>& model, std::span<const int32_t> text,
              const TuneOptions& options, const Progress& progress);

  /// Each policy, on what is chosen on or on what is reported on; nothing if told to stop.
  std::optional<std::vector<TuneMeasured>> run(const std::vector<std::string>& policies,
                                               bool report);
  /// Tokens that one policy reads, for progress.
  size_t steps() const { return steps_; }
  void expect(size_t policies) { total_ = policies * steps_; }

 private:
  struct Source {
    std::unique_ptr<Perplexity> perplexity;
    size_t pieces = 0;    // to choose on
    std::string setting;  // all that a measurement depends on but piece and policy
  };
  Source text_source(const std::shared_ptr<const Model>& model, std::span<const int32_t> text);
  Source answer_source(const std::shared_ptr<const Model>& model);
  bool measure(Source& source, size_t piece, std::span<const std::string> policies);
  Estimate estimate(const Source& source, const std::string& policy, bool report) const;
  std::string key(const Source& source, size_t piece, const std::string& policy) const;
  bool advance(size_t tokens);

  const TuneOptions& o_;
  const Progress& progress_;
  std::vector<Source> sources_;  // the text, then answers if any
  RecordFile records_;
  std::mutex mutex_;
  size_t steps_ = 0, done_ = 0, total_ = 0;
};

}  // namespace pith
