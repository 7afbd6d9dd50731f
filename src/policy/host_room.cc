#include "policy/host_room.h"

#include <algorithm>
#include <cmath>

#include "core/allocation.h"

namespace pith {
namespace {

/// Bytes of `rows` rows of a body, without the room that growth takes.
struct BodyBytes {
  size_t keys = 0, values = 0, sides = 0;
  size_t total() const { return keys + values + sides; }
};

BodyBytes bytes_of(const CohortPolicy& c, const HeldRows& rows) {
  if (rows.body == 0) return {};
  const bool gaps = c.leaves_gaps(rows.body, rows.of.body);
  const auto side = [&](const SideChoice& s) {
    if (codec_row(s.codec.name).dense) return rows.body * c.site.head_dim * size_of(s.body);
    return static_cast<size_t>(std::ceil(s.sizes->most_bytes(rows.body, c.site.head_dim, gaps)));
  };
  const size_t mass = c.selector.rule->mass({}, 1).queries > 0 ? sizeof(float) : 0;
  const double beside =
      static_cast<double>(rows.body) * (rows.side_bytes + static_cast<double>(mass));
  return {side(c.keys), side(c.values), static_cast<size_t>(beside)};
}

size_t most_of_body(const CohortPolicy& c, const HeldRows& rows) {
  const BodyBytes bytes = bytes_of(c, rows);
  const size_t stores = c.selector.needs.stores;
  HeldRows most = rows;
  most.body = c.selector.rule->most_rows(rows.of.body);
  if (most.body > rows.body) {
    // Heads share their rows, or budgets fall: a store that held more keeps some of its room.
    const size_t buffers = stores * RowStore::buffers(*c.keys.sizes, *c.values.sizes);
    return std::min(most_kept_bytes(bytes.total(), buffers), most_of_body(c, most));
  }
  const auto grown = [stores](size_t of_side, size_t buffers) {
    if (of_side == 0) return size_t{0};
    return stores * buffers == 1 ? grown_bytes(of_side)
                                 : most_grown_bytes(of_side, stores * buffers);
  };
  return grown(bytes.keys, c.keys.sizes->buffers()) +
         grown(bytes.values, c.values.sizes->buffers()) + grown(bytes.sides, RowStore::kSides);
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
  if (c.state.bytes > 0)
    bytes += most_grown_bytes(static_cast<size_t>(c.state.bytes), c.state.buffers);
  return bytes + most_of_body(c, rows);
}

}  // namespace pith
