#pragma once
// Bytes that the stores of a head allocate on the CPU: its rows, and the room that growth takes
// ahead of them (core/allocation.h).

#include "plan/schedule.h"
#include "policy/resolved.h"

namespace pith {

/// Rows of one head, by store.
struct HeldRows {
  Occupancy of;
  size_t protected_rows = 0;  ///< beside those of the sink
  size_t body = 0;            ///< of of.body, those that stay
  double side_bytes = 0;      ///< beside each body row
};

/// The most that such rows of one head come to allocate, however they came.
size_t most_on_host(const CohortPolicy& policy, const HeldRows& rows);

}  // namespace pith
