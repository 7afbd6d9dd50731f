#include "tools/eval/layer_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "pith/error.h"
#include "pith/policy.h"

namespace pith {
namespace {

constexpr double kMostPower = 4;  // two small losses, half noise, would say any

/// Places in `forms` along a unit's lower convex hull, by rising bits: each loses less than the one
/// before, and a bit takes off less at each. The first is the form of least bits for every unit.
std::vector<size_t> hull(std::span<const LayerForm> forms, std::span<const double> losses) {
  std::vector<size_t> order(forms.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return forms[a].bits != forms[b].bits ? forms[a].bits < forms[b].bits : losses[a] < losses[b];
  });
  const auto gain = [&](size_t from, size_t to) {
    return (losses[from] - losses[to]) / (forms[to].bits - forms[from].bits);
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

std::string kind_of(const std::string& policy) {
  if (Policy::parse(policy).rules.front().selector.name == "exact") return "exact";
  std::string kind;
  for (size_t at = 0; at < policy.size(); ++at) {
    if (policy[at] == '%')
      while (!kind.empty() &&
             (std::isdigit(static_cast<unsigned char>(kind.back())) != 0 || kind.back() == '.'))
        kind.pop_back();
    kind += policy[at];
  }
  return kind;
}

double loss_alone(std::span<const KnownLoss> known, double alike) {
  const KnownLoss& first = known.front();
  if (first.alike <= 0 || first.alone <= 0 || alike <= 0) return 0;
  double power = 1;
  if (known.size() > 1 && known[1].alike > 0 && known[1].alike < first.alike)
    power = known[1].alone <= 0 ? kMostPower
                                : std::clamp(std::log(first.alone / known[1].alone) /
                                                 std::log(first.alike / known[1].alike),
                                             1 / kMostPower, kMostPower);
  return first.alone * std::pow(alike / first.alike, power);
}

std::vector<size_t> choose_forms(std::span<const LayerForm> forms, std::span<const FormUnit> units,
                                 double bits) {
  double least = std::numeric_limits<double>::infinity();
  for (const LayerForm& form : forms) least = std::min(least, form.bits);
  if (!(least <= bits))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{:.3g} bits per number are less than any of the forms takes, {:.3g}; "
                            "give more bits or smaller forms",
                            bits, least));
  std::vector<std::vector<size_t>> steps;  // [units]
  for (const FormUnit& unit : units) steps.push_back(hull(forms, unit.losses));
  std::vector<size_t> at(units.size(), 0);
  double left = 0;
  for (const FormUnit& unit : units) left += (bits - least) * static_cast<double>(unit.heads);
  const auto price = [&](size_t u) {
    return (forms[steps[u][at[u] + 1]].bits - forms[steps[u][at[u]]].bits) *
           static_cast<double>(units[u].heads);
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

std::string policy_of(std::span<const LayerForm> forms, std::span<const size_t> chosen,
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
  std::string text = forms[base].policy;
  for (const auto& [what, layers] : others) {
    const auto& [form, which] = what;
    text += ";layers=" + ranges(layers);
    if (which.size() < heads) text += "/heads=" + ranges(which);
    text += ":" + forms[form].policy;
  }
  return text;
}

}  // namespace pith
