#include "serve/books.h"

#include <algorithm>

namespace pith::serve {

size_t Costs::bytes(const std::string& key, const SessionOptions& options, size_t tokens) {
  const size_t context =
      options.context > 0
          ? options.context
          : static_cast<size_t>(std::max<int64_t>(config_.context, static_cast<int64_t>(tokens)));
  const size_t rounded = std::min((tokens + kStep - 1) / kStep * kStep, context);
  const auto known = known_.find({key, rounded});
  if (known != known_.end()) return known->second;
  // Requests may name any policy: what is remembered has an end.
  if (known_.size() >= kMost) known_.clear();
  const size_t bytes = estimate_ledger(config_, options, rounded, device_).total_bytes();
  known_[{key, rounded}] = bytes;
  return bytes;
}

size_t Books::lacking(size_t bytes, size_t in_use, size_t live) const {
  // What is allocated beside the sessions with reservations (snapshots, idle ones, scratch), what
  // these may grow to, and the new one.
  const size_t others = in_use - std::min(live, in_use);
  const size_t total = others + std::max(reserved_, live) + bytes;
  return total > budget_ ? total - budget_ : 0;
}

}  // namespace pith::serve
