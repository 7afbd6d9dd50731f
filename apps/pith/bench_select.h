#pragma once
// The cost of selectors: time of updates and of attention per token over streams of random rows.

#include <functional>
#include <string>
#include <vector>

#include "tools/bench/bandwidth.h"

namespace pith::cli {

/// A policy of the comparison; `size` is what stands for {s} in it, 0 if nothing does.
struct SelectPolicy {
  std::string text;
  size_t size = 0;
};

struct SelectShape {
  int kv_heads = 1, group = 4, head_dim = 64;
};

/// One policy after a stream of `tokens` tokens, which came one at a time. Seconds a token.
struct SelectPoint {
  SelectPolicy policy;
  size_t tokens = 0;
  Ledger ledger;
  Median update;  ///< append: mean over the stream, median of the repeats
  Median attend;  ///< one token's queries over the rows held then
  Median step;    ///< a whole decode step: attention (with mass, where asked for) and update
};

class SelectBench {
 public:
  SelectBench(const Context& context, const SelectShape& shape, std::vector<SelectPolicy> policies)
      : context_(context), shape_(shape), policies_(std::move(policies)) {}

  /// Largest relative error of exact attention against a softmax in double, over 1000 rows. Throws
  /// kInternal if that is more than rounding to f16: then nothing should be timed.
  double check_answer() const;
  /// Streams of `tokens` tokens, the policies in turn a block at a time; `progress` hears of
  /// tokens times policies times repeats.
  std::vector<SelectPoint> measure(size_t tokens, size_t repeats, const Progress& progress) const;

 private:
  struct Run;
  void fill(std::vector<Run>& runs, size_t tokens) const;
  void time_attention(std::vector<Run>& runs) const;

  Context context_;
  SelectShape shape_;
  std::vector<SelectPolicy> policies_;
};

/// Thrown by measure() when `progress` asks to stop.
struct SelectCancelled {};

}  // namespace pith::cli
