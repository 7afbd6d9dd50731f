#include "pith/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace pith {
namespace {

constexpr size_t kFarthest = 2;  // edits; what is farther is no suggestion

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t up = row[j];
      row[j] = std::min({up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = up;
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

}  // namespace pith
