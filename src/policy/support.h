#pragma once
// Which selectors go with which codecs, as tables: behind docs/support.md, `pith
// policies NAME` and the contract tests' lists of refusals.

#include <string>
#include <vector>

#include "policy/resolved.h"

namespace pith {

/// The features required of a pair, beside its place.
enum class Feature : uint8_t {
  kNone,
  kSliding,  ///< layers that slide over a window of their own
  kProtect   ///< token ranges whose rows stay exact
};

/// A selector over a codec, both with defaults but for the size, which is `rows`.
PolicyRule pair_rule(const SelectorRow& selector, const CodecRow& codec, size_t rows);
/// Why the pair_rule() cannot be; empty if it can. Its size is as many rows as any tables are made
/// of.
std::vector<Difference> why_not(const SelectorRow& selector, const CodecRow& codec, Device device,
                                int head_dim, Feature feature = Feature::kNone);

/// A method's partner: a codec of a selector, a selector of a codec.
struct Partner {
  std::string name;
  std::vector<Difference> why_not;  ///< empty: they go together
};
/// Of the selector or codec of that name.
std::vector<Partner> partners(const std::string& method, Device device, int head_dim);
/// Parameters of which the GPU takes fewer values. Empty for selectors.
std::vector<Limit> limits_on_gpu(const std::string& codec);

}  // namespace pith
