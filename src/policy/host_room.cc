#include "policy/host_room.h"

#include <algorithm>
#include <cmath>

#include "core/allocation.h"

namespace pith {
namespace {

/// Of one side of a body.
size_t most_of_body(const SideChoice& side, const CohortPolicy& c, const HeldRows& rows) {
  if (codec_row(side.codec.name).dense)
    return grown_bytes(rows.body * c.site.head_dim * size_of(side.body));
  constexpr size_t kBuffers = 8;  // no codec has more
  const double codes =
      side.sizes->most_bytes(rows.body, c.site.head_dim, c.leaves_gaps(rows.body, rows.of.body));
  return most_grown_bytes(static_cast<size_t>(std::ceil(codes)), kBuffers);
}

}  // namespace

size_t most_on_host(const CohortPolicy& c, const HeldRows& rows) {
  const Rule& rule = *c.selector.rule;
  const size_t mass = rule.mass({}, 1).queries > 0 ? sizeof(float) : 0;
  const size_t ring = c.schedule.ring_capacity();
  const size_t places = std::min(rows.of.window + rows.of.body, ring);
  size_t bytes = 0;
  // Buffers of exact rows and of mass, by their bytes per row.
  for (const size_t row :
       {c.site.head_dim * size_of(c.keys.exact), c.site.head_dim * size_of(c.values.exact), mass})
    bytes += grown_bytes(rows.of.sink * row, c.schedule.sink * row) +
             grown_bytes(places * row, ring * row) + grown_bytes(rows.protected_rows * row);
  bytes += grown_bytes(rows.protected_rows * sizeof(uint32_t));
  if (rows.body > 0) {
    const auto side =
        static_cast<double>(rows.body) * (rows.side_bytes + static_cast<double>(mass));
    bytes += most_of_body(c.keys, c, rows) + most_of_body(c.values, c, rows) +
             most_grown_bytes(static_cast<size_t>(side), 3);
  }
  if (c.state_bytes > 0) bytes += most_grown_bytes(static_cast<size_t>(c.state_bytes), 2);
  // Where heads share their rows, a store that held more keeps up to a page beyond an eighth of
  // each buffer (keep_records).
  const size_t most = rule.most_rows(rows.of.body);
  if (most <= rows.body) return bytes;
  constexpr size_t kPages = size_t{12} * 4096;
  HeldRows more = rows;
  more.body = most;
  return std::min(bytes + kPages, most_on_host(c, more));
}

}  // namespace pith
