#include "serve/costs.h"

#include <algorithm>

namespace pith::serve {

size_t Costs::bytes(const std::string& key, const SessionOptions& options, size_t tokens) {
  const auto context = options.context > 0
                           ? options.context
                           : static_cast<size_t>(engine_->model()->config().context);
  const size_t rounded = std::min((tokens + kStep - 1) / kStep * kStep, context);
  const std::lock_guard guard(lock_);
  const auto known = known_.find({key, rounded});
  if (known != known_.end()) return known->second;
  // Requests may name any policy: what is remembered has an end.
  if (known_.size() >= kMost) known_.clear();
  const Session session(engine_, options);
  const size_t bytes = session.room(rounded) + session.ledger().shared;
  known_[{key, rounded}] = bytes;
  return bytes;
}

}  // namespace pith::serve
