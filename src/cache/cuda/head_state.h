#pragma once
// The contents of KV heads' stores, told: as state, as rows with their positions and weights, as
// bytes.

#include <span>
#include <vector>

#include "cache/cuda/head_stores.h"

namespace pith::cuda {

/// The stream that a saved layer has seen: its plan is replayed.
struct SeenStream {
  uint64_t tokens = 0;
  std::span<const uint64_t> prompt_ends;
};

/// All that is held between passes. Loading: into stores that have seen nothing, whose protected
/// rows are set.
void archive(Archive& a, HeadStores& stores, const SeenStream& seen);
/// Positions and weights of one head's rows, in any order.
void add_rows(HeadRows& out, const HeadStores& stores, size_t head);
/// Which of them are in codes.
void add_codes(std::vector<HeadCodes>& codes, const HeadStores& stores, size_t head);
/// The others, where they lie, in the order of add_rows().
void add_dense(std::vector<DeviceSpan>& dense, const HeadStores& stores, size_t head);
/// Bytes and rows of all heads; tokens and channels are the caller's business.
void add_to(Ledger& ledger, const HeadStores& stores);

}  // namespace pith::cuda
