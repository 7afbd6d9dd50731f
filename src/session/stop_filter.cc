#include "session/stop_filter.h"

#include <algorithm>

#include "pith/error.h"

namespace pith {

StopFilter::StopFilter(std::span<const std::string> stops) : stops_(stops.begin(), stops.end()) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a stop string is empty, which would end every answer before it starts; leave it "
                  "out");
    }
  }
}

std::string_view StopFilter::push(std::string_view text) {
  certain_.clear();
  for (char c : text) {
    if (stopped_) break;
    pending_ += c;
    size_t longest = 0;  // of the stop strings that end here: the one that starts first
    for (const std::string& stop : stops_) {
      if (pending_.ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) {
      stopped_ = true;
      certain_.append(pending_, 0, pending_.size() - longest);
      pending_.clear();
      break;
    }
    const size_t free = pending_.size() - held_back();
    certain_.append(pending_, 0, free);
    pending_.erase(0, free);
  }
  return certain_;
}

std::string_view StopFilter::finish() {
  certain_ = std::move(pending_);
  pending_.clear();
  return certain_;
}

// Bytes at the end of pending_ that a stop string may begin with.
size_t StopFilter::held_back() const {
  for (size_t length = pending_.size(); length > 0; --length) {
    const std::string_view tail(pending_.data() + pending_.size() - length, length);
    for (const std::string& stop : stops_) {
      if (stop.starts_with(tail)) return length;
    }
  }
  return 0;
}

}  // namespace pith
