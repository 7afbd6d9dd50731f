#pragma once
// BalanceKV ("Streaming Attention Approximation via Discrepancy Theory"): keys and values are
// halved by a self-balancing walk, merged and halved again, so that 2^-T of the rows stay, each
// with weight 2^T.
//
// mode=block is the authors' practical form: blocks of b rows, exactly half of each stays.
// mode=stream is the guaranteed form: one merge-and-reduce tree a bucket of value norms for the
// numerator of the softmax, and one on (k, 1) for its denominator.
// Cost per row: 2 b D multiply-adds a round for the kernel, twice that in mode=stream.

#include "methods/halving_options.h"
#include "methods/heavy.h"
#include "plan/balance_tree.h"
#include "policy/registry.h"

namespace pith {

struct BalanceOptions {
  enum class Mode : uint8_t { kBlock, kStream };
  enum class Decode : uint8_t { kHalved, kExact };
  Mode mode = Mode::kBlock;
  std::optional<double> rate;    ///< 2^-T; unset: 1/4, or what the budget asks for
  std::optional<Budget> budget;  ///< the most rows: the largest rate that fits
  std::optional<size_t> block;   ///< unset: 256, or fewer where a budget asks for it
  HalvingOptions halving;
  Walk walk = Walk::kPairs;
  double epsilon = 0.1;
  KeptSide side = KeptSide::kSmaller;
  bool endless = false, flush = false;
  Decode decode = Decode::kHalved;
  HeavyOptions heavy{.by_default = true};
  bool paper = false;

  Fields fields();
  void as_in_paper();
  /// With rate, block and heavy as they come out at a site. Without a word on heavy rows they are
  /// half of what stays. Throws kInvalidArgument.
  BalanceOptions at(const BudgetSite& site) const;
  /// Throws kInvalidArgument or kUnsupported.
  void check(const std::string& method) const;
};

struct BalanceRule {
  uint32_t rounds = 2;                ///< T
  uint32_t block = 256;               ///< b, the paper's batch size t
  float weight_exponent = 1;          ///< a row of weight w counts as w^exponent
  float epsilon = 0.1f;               ///< mode=stream: precision, for the erasure of buckets
  bool endless = false;               ///< mode=stream: level T is halved too, see BalanceTree
  bool flush = false, rests = false;  ///< mode=block: at prompts' ends, see BalanceShape
  HalvingRule halving;

  /// Of the trees of values, or of that of the denominator.
  BalanceShape shape(bool values = true) const {
    return {rounds, block, endless, flush, rests, values ? 0u : 128u, values ? 255u : 254u};
  }
  HalverRule halver(bool values = true) const {
    HalverRule rule{halving, weight_exponent};
    rule.halving.values = values;
    return rule;
  }
};

/// A selector of mode=stream, for those who want its state.
class BalanceStream : public Chooser {
 public:
  /// Steps at which a walk left the range of its guarantee (the paper's FAIL).
  virtual uint64_t failures() const = 0;
  /// Live buckets of one head.
  virtual size_t buckets(size_t head) const = 0;
};
std::unique_ptr<BalanceStream> make_balance_stream(const Context& context, const SelectorSite& site,
                                                   const BalanceRule& rule);

/// `rounds` from the rate or the budget. Throws kInvalidArgument.
BalanceRule balance_rule(const BalanceOptions& options, const BudgetSite& budget, float scale);

}  // namespace pith
