#pragma once
// One layer's step of a token: what is written on the host before it, and what is given to the
// device.

#include "attend/cuda/decode.h"
#include "attend/cuda/mass.h"
#include "cache/cuda/step_spans.h"
#include "kernels/cuda/layer.h"
#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

/// The arguments of a rule's kernels beside rows and queries.
struct TokenNote {
  MassTarget mass;
  QueryNote queries;
  int64_t evicted = 0;  ///< rows that the sink moves up by, where positions are the cache's
};
/// The arguments of a token's kernels, as they are written on the host: one layer's, or those of
/// some heads of it.
struct TokenSlots {
  StepSpans* spans = nullptr;
  size_t first_span = 0;         ///< of the first head
  TokenNote* note = nullptr;     // [notes()]
  RowTarget* targets = nullptr;  // [G] of layers whose heads have several rules
  size_t spans_apart = 0;        ///< from a head's spans to the next one's
};
/// One layer's step of a token, or that of some heads of it.
struct TokenStep {
  DecodeCall call;  ///< lacks nothing; log_sum is there
  const DecodeScratch& scratch;
  const TokenNote* note = nullptr;     // [notes()], on the device
  const RowTarget* targets = nullptr;  // [G], likewise: see TokenSlots
  /// Each head of the call has a note of its own; else they have one.
  bool note_by_head = false;
  /// A query without a row of its own, that selectors do not see: spans are write_spans's.
  bool only_reads = false;

  /// The call is launched at once: work behind it needs its result, or it is at another place.
  DecodeCall alone() const {
    DecodeCall own = call;
    own.company.groups = nullptr;
    return own;
  }
};

}  // namespace pith::cuda
