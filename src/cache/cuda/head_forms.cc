#include "cache/cuda/head_forms.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "cache/cuda/head_attention.h"

namespace pith::cuda {
namespace {

bool has(const HeadForm& form, size_t head) {
  return std::ranges::any_of(form.ranges, [&](const HeadForm::Range& range) {
    return head >= range.first && head < range.first + range.heads;
  });
}

}  // namespace

HeadForms::HeadForms(std::span<const HeadRun> runs, const LayerSite& site)
    : group_(site.query_heads / site.heads), dim_(site.dim) {
  std::map<std::string, size_t> named;
  for (size_t i = 0; i < runs.size(); ++i) {
    const HeadRun& run = runs[i];
    const HeadAttention attention(*run.stores);
    const std::string name = attention.form();
    const auto found = named.find(name);
    if (found == named.end() || name.empty()) {
      named[name] = forms_.size();
      forms_.push_back({{}, run.first});
    }
    HeadForm& form = name.empty() ? forms_.back() : forms_[named[name]];
    const size_t heads = run.stores->heads();
    form.ranges.push_back({i, run.first, heads});
    form.heads = run.first + heads - form.first;
    form.spans = std::max(form.spans, attention.spans());
    form.notes = form.by_head() ? form.heads : attention.notes();
  }
  size_t spans = 0, notes = 0;
  for (HeadForm& form : forms_) {
    form.first_span = std::exchange(spans, spans + form.heads * form.spans);
    form.first_note = std::exchange(notes, notes + form.notes);
  }
}

size_t HeadForms::spans() const {
  const HeadForm& last = forms_.back();
  return last.first_span + last.heads * last.spans;
}

void HeadForms::mark_spans(StepSpans& spans, size_t first) const {
  for (const HeadForm& form : forms_) {
    for (size_t head = form.first; head < form.first + form.heads; ++head) {
      if (!has(form, head))
        spans.mark_elsewhere(first + form.first_span + (head - form.first) * form.spans);
    }
  }
}

std::span<const DeviceSpan> HeadForms::spans_of(const DeviceSpan* spans, size_t head) const {
  const HeadForm& form =
      *std::ranges::find_if(forms_, [&](const HeadForm& f) { return has(f, head); });
  return {spans + form.first_span + (head - form.first) * form.spans, form.spans};
}

DecodePlace HeadForms::place_of(size_t i, const DecodePlace& whole) const {
  const HeadForm& form = forms_[i];
  const size_t query = form.first * group_;
  DecodePlace place = whole;
  place.q = static_cast<const std::byte*>(whole.q) + query * dim_ * 2;
  place.spans += form.first_span;
  place.out += query * dim_;
  place.log_sum += query;
  place.note = static_cast<const TokenNote*>(whole.note) + form.first_note;
  if (place.sinks) place.sinks += query;
  return place;
}

TokenStep HeadForms::step_of(size_t i, const TokenStep& whole) const {
  const HeadForm& form = forms_[i];
  TokenStep step = whole;
  DecodeCall& call = step.call;
  static_cast<DecodePlace&>(call) = place_of(i, whole.call);
  call.shape.query_heads = static_cast<int>(form.heads * group_);
  call.shape.kv_heads = static_cast<int>(form.heads);
  call.shape.spans = static_cast<int>(form.spans);
  call.company.place += i * call.company.places_apart;
  step.note = whole.note + form.first_note;
  step.note_by_head = form.by_head();
  return step;
}

}  // namespace pith::cuda
