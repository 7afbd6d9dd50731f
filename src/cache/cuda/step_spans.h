#pragma once
// Where the rows that a token attends to lie: the spans of all layers' KV heads, on the device.
// Heads whose spans differ in their addresses alone, equally far apart, are written once on the
// host: 104 bytes, however many heads. The upload's kernel writes each head's.

#include <vector>

#include "attend/cuda/decode.h"
#include "kernels/cuda/uploads.h"

namespace pith::cuda {

class StepSpans {
 public:
  StepSpans() = default;
  /// Spans are empty until they are written.
  StepSpans(MemoryCounter& memory, size_t spans, cudaStream_t stream);

  /// Of `heads` heads one span each, from `at` on, `apart` from one to the next.
  struct Place {
    size_t at = 0, apart = 0, heads = 0;
  };
  /// Span `at` is the first of a head of another call, in all steps.
  void mark_elsewhere(size_t at);
  /// All spans of a step follow.
  void begin() { count_ = marked_; }
  /// `even`: span_of(head)'s first five addresses are equally far apart, and nothing else differs.
  template <class F>
  void add(const Place& place, bool even, const F& span_of) {
    const DeviceSpan first = span_of(size_t{0});
    if (place.heads == 1) return write({place.at, place.apart, 1}, first, first);
    const DeviceSpan second = span_of(size_t{1});
    if (even && fits(first, second)) return write(place, first, second);
    for (size_t head = 0; head < place.heads; ++head) {
      const DeviceSpan span = head == 0 ? first : head == 1 ? second : span_of(head);
      write({place.at + head * place.apart, place.apart, 1}, span, span);
    }
  }

  const DeviceSpan* device() const { return device_.data(); }
  Upload upload() const;
  /// `count` of them as the upload writes them; marked ones are left out.
  std::vector<DeviceSpan> read(size_t first, size_t count) const;
  /// f(the first head's span, place) for all that a step has, in the order in which they came.
  template <class F>
  void for_each(const F& f) const {
    for (size_t i = marked_; i < count_; ++i) {
      const Spread& s = written_.data()[i];
      f(span_of(s), Place{s.at, s.apart, s.count});
    }
  }

 private:
  static bool fits(const DeviceSpan& first, const DeviceSpan& second);
  static DeviceSpan span_of(const Spread& spread, size_t head = 0);
  void write(const Place& place, const DeviceSpan& first, const DeviceSpan& second);

  PinnedArray<Spread> written_;
  size_t count_ = 0, marked_ = 0;  // of written_
  DeviceArray<DeviceSpan> device_;
};

}  // namespace pith::cuda
