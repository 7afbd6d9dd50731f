#pragma once
// A cache's work on its rows, as integers: where rows of one KV head can be (zones), one thing
// that happens to them (a step), and all that a plan remembers of a stream (its state). Devices
// execute steps; the rows that a step names are theirs to find, how many and when is settled here.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pith {

/// Where a row of a KV head is, in the order of attention.
enum class Zone : uint8_t {
  kSink,
  kProtected,
  kBody,   ///< the rule's own, in the rule's order
  kHeavy,  ///< kept for their recent attention mass, before they go to the rule
  kWindow,
  kLeaving,  ///< on the way from the window, until a step takes them: nothing stays here
  kEvicted,  ///< likewise, from the heavy rows
};
inline constexpr size_t kZones = 7;

enum class Op : uint8_t {
  kAppend,  ///< the next `rows` tokens of a pass go to `to`
  kMove,    ///< the oldest `rows` of `from` go to the end of `to`
  kForget,  ///< the oldest `rows` of `from` go
  kSelect,  ///< of `held` rows of the body and the oldest `rows` of `from` `keep` stay, in the body
  kPick,    ///< of each stratum of `size` rows of `from` one goes to the body, see below
  kHalve,   ///< of body rows [first, first + rows) half stay, see below
  kSplit,   ///< of `held` rows of kHeavy `keep` stay, the other `rows` go to kEvicted
  kWeigh,   ///< every body row now stands for weight / of rows
  kTake,    ///< `rows` of `from` go through a machine that looks at what is in them
};

/// A number of rows that depends on what is in them: only the device knows.
inline constexpr uint32_t kByContents = UINT32_MAX;

/// One thing that happens to the rows of each KV head.
///
/// kPick: `first` rows of the stratum at hand were counted before, and if that is not 0 its pick so
/// far is the body's last row; `rows` more are counted. A pick stands for the rows counted.
/// kHalve: a survivor stands for `weight` rows; `behind` rows of weight 1 lie behind them, to the
/// body's end. Random numbers of both are those of `tag`.
struct Step {
  Op op = Op::kMove;
  Zone from = Zone::kLeaving, to = Zone::kBody;
  /// kSelect: heads keep `keep` rows on average: each its `least` best, and of all their other rows
  /// together the best.
  bool shared = false;
  uint32_t rows = 0;
  uint32_t held = 0;    ///< kSelect, kSplit
  uint32_t keep = 0;    ///< kSelect, kSplit; kSelect: kByContents if the chooser decides how many
  uint32_t old = 0;     ///< kSelect: the first of `held`, which a selection left
  uint32_t first = 0;   ///< kPick, kHalve; kSelect: where cells begin, rows before them stay
  uint32_t behind = 0;  ///< kHalve; kSelect: so many rows behind the cells stay
  uint32_t tag = 0;     ///< kPick, kHalve
  uint32_t least = 0;   ///< kSelect, if shared; kSplit: of `keep` those that stay for their keys
  uint64_t size =
      0;  ///< kPick; kSelect: rows of a cell, where the choice goes by cells of one size
  int64_t hidden = 0;   ///< kSelect: rows at positions below this are never seen again
  uint64_t weight = 1;  ///< kHalve, kWeigh
  uint64_t of = 1;      ///< kWeigh

  bool operator==(const Step&) const = default;
};
using Steps = std::vector<Step>;

/// Where a stream stands. Trivially copyable: what a saved session needs of its plan.
struct PlanState {
  uint64_t tokens = 0;  ///< seen
  uint64_t open = 0;    ///< of these, not protected
  uint64_t fed = 0;     ///< of these, given to the rule that keeps the body
  /// Rows come of a prompt at whose end they are selected, and not before.
  bool gathers = false;
  /// Of a head. A body that is selected by contents: the most it can have; where heads share their
  /// rows: what they have on average.
  std::array<uint32_t, kZones> rows{};
  std::array<uint64_t, 24> own{};  ///< the rule's

  uint32_t& at(Zone zone) { return rows[static_cast<size_t>(zone)]; }
  uint32_t at(Zone zone) const { return rows[static_cast<size_t>(zone)]; }
  uint32_t& body() { return at(Zone::kBody); }
  uint32_t body() const { return at(Zone::kBody); }
  /// Rows of one head that are nowhere any more, where none are kept by contents.
  uint64_t gone() const {
    uint64_t held = 0;
    for (const Zone zone : {Zone::kSink, Zone::kBody, Zone::kHeavy, Zone::kWindow})
      held += at(zone);
    return open - held;
  }
  bool operator==(const PlanState&) const = default;
};

/// Attention mass that a rule requests before a pass: probabilities of the pass's last `queries`
/// queries are added to the mass of every row (sink, body, window and the pass's own). With `fresh`
/// the mass of all rows held is set to 0 first.
struct MassRequest {
  size_t queries = 0;  ///< 0 = none
  bool fresh = false;

  bool operator==(const MassRequest&) const = default;
};

}  // namespace pith
