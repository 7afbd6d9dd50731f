#pragma once
// The ranges of a layer's KV heads by forms: those whose rows one kernel reads are one call of a
// token's attention, over all heads from the first of them to the last, to which heads between that
// are another form's say so. Where each form's spans and notes lie among the layer's.

#include <algorithm>
#include <span>
#include <vector>

#include "cache/cuda/layer_plan.h"
#include "cache/cuda/token_step.h"
#include "core/copied.h"

namespace pith::cuda {

struct HeadStores;

/// Neighbouring KV heads with one rule.
struct HeadRun {
  size_t first = 0;  ///< KV head
  Copied<HeadStores> stores;
  bool joins = true;  ///< its late work may wait for others'
};

/// Ranges of one form: a call of a token's attention.
struct HeadForm {
  struct Range {
    size_t run = 0;  ///< of the layer's
    size_t first = 0, heads = 0;
  };
  std::vector<Range> ranges;
  size_t first = 0, heads = 0;            ///< KV heads, from the first range's to the last's
  size_t spans = 0;                       ///< of each
  size_t first_span = 0, first_note = 0;  ///< of the layer's
  size_t notes = 1;
  bool by_head() const { return ranges.size() > 1; }
};

class HeadForms {
 public:
  /// `runs` have all heads of `site`, ascending.
  HeadForms(std::span<const HeadRun> runs, const LayerSite& site);

  std::span<const HeadForm> all() const { return forms_; }
  size_t size() const { return forms_.size(); }
  /// Of all heads: room for each form's, one behind the other.
  size_t spans() const;
  size_t notes() const { return forms_.back().first_note + forms_.back().notes; }
  /// Heads that are another form's are marked so, in the layer's spans, `first` of them and so on.
  void mark_spans(StepSpans& spans, size_t first) const;
  /// One head's of the layer's spans.
  std::span<const DeviceSpan> spans_of(const DeviceSpan* spans, size_t head) const;
  /// A form's part of the layer's numbers, and of a step of all heads.
  DecodePlace place_of(size_t form, const DecodePlace& whole) const;
  TokenStep step_of(size_t form, const TokenStep& whole) const;
  /// Calls f(run, slots) for each range, with its part of the layer's slots.
  template <class F>
  void for_slots(const TokenSlots& slots, const F& f) const;

 private:
  size_t group_, dim_;  // query heads a KV head, D
  std::vector<HeadForm> forms_;
};

template <class F>
void HeadForms::for_slots(const TokenSlots& slots, const F& f) const {
  for (const HeadForm& form : forms_) {
    for (const HeadForm::Range& range : form.ranges) {
      const size_t ahead = range.first - form.first;
      TokenSlots mine = slots;
      mine.spans_apart = form.spans;
      mine.first_span += form.first_span + ahead * form.spans;
      mine.note += form.first_note + (form.by_head() ? ahead : 0);
      f(range.run, mine);
      if (!form.by_head()) continue;
      mine.note->mass.first_head = static_cast<int32_t>(ahead);
      std::fill_n(mine.note + 1, range.heads - 1, *mine.note);
    }
  }
}

}  // namespace pith::cuda
