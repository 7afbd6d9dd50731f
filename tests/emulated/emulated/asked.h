#pragma once
// Counts of the host's requests to the emulated card, and its refusals, for tests.

#include <cstddef>
#include <optional>

namespace emulated {

/// Work of a graph counts once, when it is captured.
struct Asked {
  size_t launches = 0, copies = 0, clears = 0, allocations = 0, waits = 0, graphs = 0;

  Asked operator-(const Asked& o) const {
    return {launches - o.launches,       copies - o.copies, clears - o.clears,
            allocations - o.allocations, waits - o.waits,   graphs - o.graphs};
  }
  bool operator==(const Asked&) const = default;
};
Asked asked();
/// The next so many allocations on the device find no memory.
void refuse_memory(size_t times);
/// Of the device's memory all but so many bytes of what is free is another process's; none: none
/// is.
void leave_memory(std::optional<size_t> bytes);

}  // namespace emulated
