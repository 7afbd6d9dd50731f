#include "cache/cuda/step_spans.h"

#include <array>
#include <cstring>
#include <limits>

namespace pith::cuda {
namespace {

static_assert(sizeof(DeviceSpan) == Spread::kWords * sizeof(uint64_t));

using Addresses = std::array<uint64_t, Spread::kSteps>;

Addresses addresses_of(const DeviceSpan& span) {
  Addresses all;
  std::memcpy(all.data(), &span, sizeof all);
  return all;
}

}  // namespace

StepSpans::StepSpans(MemoryCounter& memory, size_t spans, cudaStream_t stream)
    : written_(spans), device_(memory, MemoryKind::kScratch, spans, stream) {
  check(cudaMemsetAsync(device_.data(), 0, spans * sizeof(DeviceSpan), stream), "spans of a step");
}

void StepSpans::mark_elsewhere(size_t at) {
  DeviceSpan span;
  span.rows = DeviceSpan::kElsewhere;
  write({at, 0, 1}, span, span);
  marked_ = count_;
}

bool StepSpans::fits(const DeviceSpan& first, const DeviceSpan& second) {
  const Addresses a = addresses_of(first), b = addresses_of(second);
  for (size_t i = 0; i < a.size(); ++i) {
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max() * uint64_t{Spread::kUnit};
    const uint64_t step = b[i] - a[i];  // one that goes back is too large
    if (step % Spread::kUnit != 0 || step > kMost) return false;
  }
  return true;
}

void StepSpans::write(const Place& place, const DeviceSpan& first, const DeviceSpan& second) {
  Spread& s = written_[count_++];
  std::memcpy(s.first, &first, sizeof first);
  const Addresses a = addresses_of(first), b = addresses_of(second);
  for (size_t i = 0; i < a.size(); ++i)
    s.step[i] = static_cast<uint32_t>((b[i] - a[i]) / Spread::kUnit);
  s.at = static_cast<uint32_t>(place.at);
  s.count = static_cast<uint16_t>(place.heads);
  s.apart = static_cast<uint16_t>(place.apart);
}

Upload StepSpans::upload() const {
  return {device_.data(), written_.data(), count_ * sizeof(Spread), true};
}

DeviceSpan StepSpans::span_of(const Spread& s, size_t head) {
  Spread moved = s;
  for (size_t i = 0; i < Spread::kSteps; ++i)
    moved.first[i] += head * s.step[i] * uint64_t{Spread::kUnit};
  DeviceSpan span;
  std::memcpy(&span, moved.first, sizeof span);
  return span;
}

std::vector<DeviceSpan> StepSpans::read(size_t first, size_t count) const {
  std::vector<DeviceSpan> all(count);
  for (size_t i = marked_; i < count_; ++i) {
    const Spread& s = written_.data()[i];
    if (s.at < first || s.at >= first + count) continue;
    for (size_t head = 0; head < s.count; ++head)
      all[s.at - first + head * s.apart] = span_of(s, head);
  }
  return all;
}

}  // namespace pith::cuda
