#pragma once
// Which form the cache of each layer, or of a single KV head of it, takes, so that all together
// take no more bits than given and lose least. Losses of units are taken for a sum: true of small
// independent errors, whose divergence is quadratic. Then the best choice walks along each unit's
// lower convex hull of (bits, loss), at each step where a bit takes the most off (Shoham & Gersho
// 1988). Cost: units squared times forms.

#include <span>
#include <string>
#include <vector>

namespace pith {

/// A policy of all layers alike, and what it costs there.
struct LayerForm {
  std::string policy;
  double bits = 0;  ///< a number of the cache, everything included
};

/// A unit that has one form: all KV heads of a layer, or one.
struct FormUnit {
  std::vector<double> losses;  ///< in each form, nats per token, from 0
  size_t heads = 1;
};

/// Forms that differ in shares (per cent) alone are sizes of one kind, and so are codecs over all
/// rows: what a unit loses in one of them says what it loses in the others.
std::string kind_of(const std::string& policy);

/// Losses of forms in all layers alike, and of one unit in them alone.
struct KnownLoss {
  double alike = 0, alone = 0;
};

/// The loss of the unit of `known` (one or two forms of a kind, the one of fewer bits first) in the
/// form of their kind that loses `alike` in all layers: `alone` grows with a power of `alike`, 1 if
/// one form is known, from 1/4 to 4 if two say it.
double loss_alone(std::span<const KnownLoss> known, double alike);

/// The form of each unit, by its place in `forms`: at most `bits` on average over all heads. Throws
/// kInvalidArgument if no form is within `bits`.
std::vector<size_t> choose_forms(std::span<const LayerForm> forms, std::span<const FormUnit> units,
                                 double bits);

/// One policy that says so: the form of most heads first, then what others differ in. `chosen` is
/// [layers, heads].
std::string policy_of(std::span<const LayerForm> forms, std::span<const size_t> chosen,
                      size_t heads);

}  // namespace pith
