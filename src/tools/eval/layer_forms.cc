#include "tools/eval/layer_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "pith/error.h"

namespace pith {
namespace {

/// Forms along a unit's lower convex hull, by rising bits: each loses less than the one before, and
/// a bit takes off less at each. The first is the form of least bits.
std::vector<size_t> hull(const FormUnit& unit) {
  const auto &bits = unit.bits, &losses = unit.losses;
  std::vector<size_t> order;
  for (size_t i = 0; i < bits.size(); ++i)
    if (bits[i] != kNotThere) order.push_back(i);
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return std::tuple(bits[a], losses[a], a) < std::tuple(bits[b], losses[b], b);
  });
  const auto gain = [&](size_t from, size_t to) {
    return (losses[from] - losses[to]) / (bits[to] - bits[from]);
  };
  std::vector<size_t> kept;
  for (size_t i : order) {
    if (!kept.empty() && losses[i] >= losses[kept.back()]) continue;
    while (kept.size() > 1 &&
           gain(kept[kept.size() - 2], kept.back()) <= gain(kept[kept.size() - 2], i))
      kept.pop_back();
    kept.push_back(i);
  }
  return kept;
}

/// "3,7-9"
std::string ranges(const std::vector<size_t>& ascending) {
  std::string text;
  for (size_t i = 0; i < ascending.size();) {
    size_t end = i + 1;
    while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += end - i == 1 ? fmt::format("{}", ascending[i])
                         : fmt::format("{}-{}", ascending[i], ascending[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

double least_bits(std::span<const FormUnit> units) {
  double least = 0;
  for (const FormUnit& unit : units) least += std::ranges::min(unit.bits);
  return least / static_cast<double>(units.size());
}

std::vector<size_t> choose_forms(std::span<const FormUnit> units, double bits) {
  const double least = least_bits(units);
  if (!(least <= bits))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{:.3g} bits per number are less than any of the forms takes, {:.3g}; "
                            "give more bits or smaller forms",
                            bits, least));
  double left = (bits - least) * static_cast<double>(units.size());
  std::vector<std::vector<size_t>> steps;  // [units]
  for (const FormUnit& unit : units) steps.push_back(hull(unit));
  std::vector<size_t> at(units.size(), 0);
  const auto price = [&](size_t u) {
    return units[u].bits[steps[u][at[u] + 1]] - units[u].bits[steps[u][at[u]]];
  };
  const auto gain = [&](size_t u) {
    const auto& losses = units[u].losses;
    return (losses[steps[u][at[u]]] - losses[steps[u][at[u] + 1]]) / price(u);
  };
  for (;;) {
    size_t best = SIZE_MAX;
    for (size_t u = 0; u < units.size(); ++u) {
      if (at[u] + 1 == steps[u].size() || price(u) > left) continue;
      if (best == SIZE_MAX || gain(u) > gain(best)) best = u;
    }
    if (best == SIZE_MAX) break;
    left -= price(best);
    ++at[best];
  }
  for (size_t u = 0; u < units.size(); ++u) at[u] = steps[u][at[u]];
  return at;
}

double loss_of(std::span<const FormUnit> units, std::span<const size_t> chosen) {
  double loss = 0;
  for (size_t u = 0; u < units.size(); ++u) loss += units[u].losses[chosen[u]];
  return loss;
}

double bits_of(std::span<const FormUnit> units, std::span<const size_t> chosen) {
  double bits = 0;
  for (size_t u = 0; u < units.size(); ++u) bits += units[u].bits[chosen[u]];
  return bits / static_cast<double>(units.size());
}

std::vector<size_t> choose_few_forms(std::span<const FormUnit> units, double bits, double cost) {
  std::vector<size_t> places;  // of the forms that are left
  for (size_t f = 0; f < units.front().bits.size(); ++f) places.push_back(f);
  std::vector<size_t> chosen = choose_forms(units, bits);
  for (;;) {
    std::vector<size_t> best, best_places;
    std::erase_if(places, [&](size_t f) { return std::ranges::count(chosen, f) == 0; });
    for (size_t dropped = 0; dropped < places.size() && places.size() > 1; ++dropped) {
      std::vector<size_t> others = places;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(dropped));
      std::vector<FormUnit> fewer;
      for (const FormUnit& unit : units) {
        FormUnit& u = fewer.emplace_back();
        for (const size_t f : others) {
          u.losses.push_back(unit.losses[f]);
          u.bits.push_back(unit.bits[f]);
        }
      }
      if (least_bits(fewer) > bits) continue;
      std::vector<size_t> choice = choose_forms(fewer, bits);
      for (size_t& f : choice) f = others[f];
      if (best.empty() || loss_of(units, choice) < loss_of(units, best))
        best = std::move(choice), best_places = std::move(others);
    }
    if (best.empty() || loss_of(units, best) > (1 + cost) * loss_of(units, chosen)) return chosen;
    chosen = std::move(best), places = std::move(best_places);
  }
}

std::string policy_of(std::span<const std::string> forms, std::span<const size_t> chosen,
                      size_t heads) {
  std::vector<size_t> counts(forms.size());
  for (size_t f : chosen) ++counts[f];
  const auto base = static_cast<size_t>(std::ranges::max_element(counts) - counts.begin());
  // Layers by form and heads of theirs that have it.
  std::map<std::pair<size_t, std::vector<size_t>>, std::vector<size_t>> others;
  for (size_t l = 0; l < chosen.size() / heads; ++l) {
    std::map<size_t, std::vector<size_t>> of_form;
    for (size_t h = 0; h < heads; ++h) of_form[chosen[l * heads + h]].push_back(h);
    for (const auto& [form, which] : of_form)
      if (form != base) others[{form, which}].push_back(l);
  }
  std::string text = forms[base];
  for (const auto& [what, layers] : others) {
    const auto& [form, which] = what;
    text += ";layers=" + ranges(layers);
    if (which.size() < heads) text += "/heads=" + ranges(which);
    text += ":" + forms[form];
  }
  return text;
}

}  // namespace pith
