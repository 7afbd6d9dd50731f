#pragma once
// One layer's step of a token: what is written on the host before it, and what is given to the
// device.

#include "attend/cuda/decode.h"
#include "attend/cuda/mass.h"
#include "kernels/cuda/layer.h"
#include "select/cuda/judged_rows.h"

namespace pith::cuda {

/// The arguments of a rule's kernels beside rows and queries.
struct TokenNote {
  MassTarget mass;
  QueryNote queries;
  int64_t evicted = 0;  ///< rows that the sink moves up by, where positions are the cache's
  RowTarget target;     ///< of a run of heads: see HeadRuns
};
/// The arguments of a token's kernels, as they are written on the host: one layer's.
struct TokenSlots {
  DeviceSpan* spans = nullptr;  // [G, spans()]
  TokenNote* note = nullptr;    // [notes()]
};
/// One layer's step of a token.
struct TokenStep {
  DecodeCall call;  ///< lacks nothing; log_sum is there
  const DecodeScratch& scratch;
  const TokenNote* note = nullptr;  // [notes()], on the device
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
