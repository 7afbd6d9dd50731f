#pragma once
// Which form the cache of each layer and KV head of one model takes, found on a text: measured, for
// a number of bits (docs/decisions/0200).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pith/presets.h"

namespace pith {

struct TuneOptions {
  std::vector<std::string> forms;  ///< policies that a layer may have; empty: standard_forms()
  double bits = 2;                 ///< a number of the cache, everything included
  size_t window = 4096;            ///< tokens of a piece of the text
  size_t score = 128;              ///< predictions that count in each, the last
  size_t pieces = 2;               ///< to choose on; as many others are reported on
  StandaloneOptions session;       ///< context and policy are the runs'

  /// Mixtures of heavy rows and coresets, from few bits on, and all rows in int4.
  static const std::vector<std::string>& standard_forms();
};

/// A layer, or a KV head of it.
struct TunedUnit {
  size_t layer = 0;
  std::optional<size_t> head;
  double divergence = 0;  ///< of it alone in the form `weighed_in`, all others exact
  std::string form;       ///< chosen
};

struct TuneResult {
  std::string weighed_in;
  std::vector<TunedUnit> units;  ///< layers that lose more than an equal share come by head
  /// The forms in all layers alike, then what was found, on pieces that nothing was chosen on.
  /// Names of models are left to the caller.
  std::vector<Preset> measured;
};

/// Nothing if `progress` returned false. It counts tokens; heads come on top of its total. Throws
/// kInvalidArgument if the text has fewer than 2 pieces' tokens, for forms that say themselves
/// which layers they are for, and if no form takes as few bits.
std::optional<TuneResult> tune(const std::shared_ptr<const Model>& model,
                               std::span<const int32_t> text, const TuneOptions& options,
                               const Progress& progress = {});

}  // namespace pith
