#include "pith/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace pith {
namespace {

constexpr size_t kFarthest = 2;  // edits; what is farther is no suggestion

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool differ = a[i - 1] != b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + differ});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + differ);
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<size_t> nearest_name(std::string_view word, std::span<const std::string> names) {
  std::optional<size_t> nearest;
  size_t best = std::min(kFarthest, word.size() / 2) + 1;
  for (size_t i = 0; i < names.size(); ++i)
    if (const size_t d = edit_distance(word, names[i]); d < best) best = d, nearest = i;
  return nearest;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> names) {
  const auto near = nearest_name(word, names);
  return near ? fmt::format(" (did you mean '{}'?)", names[*near]) : std::string();
}

}  // namespace pith
