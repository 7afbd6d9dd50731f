#include "cache/cuda/dense_parts.h"

#include <algorithm>

namespace pith::cuda {
namespace {

/// All dense rows have weight 1, and nothing lies between them.
bool one_run(const HeadStores& s) {
  return !s.zones().flows() && s.chooser->weights() == 0 && !s.codes;
}

// With a chunk's rows those of the sink are still in the run: there they are seen causally.
DenseParts parts_in_run(const HeadStores& s, const NewRows& fresh, const RowTarget& run) {
  const size_t all = s.rows.rows() + fresh.sink + fresh.run, most = most_parts(s);
  DenseParts parts;
  size_t first = 0;
  const auto add = [&](size_t rows, float log_weight = 0, bool apart = false) {
    parts.add({run + first, rows, log_weight, apart});
    first += rows;
  };
  if (!one_run(s)) add(s.in_sink() + fresh.sink);
  if (!s.zones().packs() && s.chooser->weighs_rows()) {
    add(s.run.selected, 0, true);
  } else if (!s.zones().packs()) {
    size_t gone = s.settled();
    for (const RowRun::Weighted& of : s.run.weighted) {
      add(of.rows - gone, s.log_weight(of));
      gone = 0;  // of one weight
    }
  }
  while (parts.count + 1 < most) add(0);
  add(all - first);
  return parts;
}

}  // namespace

size_t most_parts(const HeadStores& s) {
  if (s.zones().flows()) return s.layer.schedule.sink > 0 ? 2 : 1;
  return one_run(s) ? 1 : s.zones().packs() ? 2 : s.chooser->weights() + 2;
}

DenseParts parts_of(const HeadStores& s, const NewRows& fresh, const RowTarget& run) {
  if (!s.zones().flows()) return parts_in_run(s, fresh, run);
  DenseParts parts;
  RowTarget sink = s.sink.begin();
  if (s.layer.cache_positions) sink.k = s.turned.at();
  if (s.layer.schedule.sink > 0) parts.add({sink, s.sink.rows() + fresh.sink});
  parts.behind = parts.count;
  parts.add({run, s.rows.rows() + fresh.run});
  return parts;
}

DenseParts parts_of_chunk(const HeadStores& s, size_t tokens, const RowTarget& run) {
  DenseParts parts = parts_of(s, {.run = tokens}, run);
  const auto counts_once = [](const DensePart& part) {
    return part.rows == 0 || (part.log_weight == 0 && !part.apart);
  };
  if (!s.zones().flows() && s.coded() == 0 && std::ranges::all_of(parts.all(), counts_once)) {
    parts.part[0] = {run, s.rows.rows() + tokens};
    parts.count = 1;
  }
  return parts;
}

}  // namespace pith::cuda
