#pragma once
// Which form the cache of each KV head takes, so that all together take no more bits than given and
// lose least. Losses are taken for a sum: true of small independent errors, whose divergence is
// quadratic. Then the best choice walks along each head's lower convex hull of (bits, loss), at
// each step where a bit takes the most off (Shoham & Gersho 1988). Cost: units squared times forms.

#include <limits>
#include <span>
#include <string>
#include <vector>

namespace pith {

/// The bits of a form that a head may not have.
inline constexpr double kNotThere = std::numeric_limits<double>::infinity();

/// A KV head and what each form is worth there.
struct FormUnit {
  std::vector<double> losses;  ///< nats per token, from 0
  std::vector<double> bits;    ///< a number of the head's cache, everything included
};

/// The bits of each unit's smallest form, on average.
double least_bits(std::span<const FormUnit> units);

/// The form of each unit, by its place: at most `bits` on average. Throws kInvalidArgument if no
/// form is within `bits`.
std::vector<size_t> choose_forms(std::span<const FormUnit> units, double bits);

/// The same with as few forms as are worth it: one goes as long as what is chosen without it loses
/// no more than 1 + `cost` times as much. Cost: forms squared choices.
std::vector<size_t> choose_few_forms(std::span<const FormUnit> units, double bits, double cost);

/// The loss of a choice, and its bits on average.
double loss_of(std::span<const FormUnit> units, std::span<const size_t> chosen);
double bits_of(std::span<const FormUnit> units, std::span<const size_t> chosen);

/// One policy that says so: the form of most heads first, then what others differ in. `chosen` is
/// [layers, heads].
std::string policy_of(std::span<const std::string> forms, std::span<const size_t> chosen,
                      size_t heads);

}  // namespace pith
