#pragma once
// Attention mass of KV heads under one rule: queries leave it beside the rows of the run and the
// codes in it, and in a ragged store.

#include "cache/cuda/dense_parts.h"

namespace pith::cuda {

class HeadMass {
 public:
  explicit HeadMass(const HeadStores& stores) : s_(stores) {}

  /// Mass over two stores is two notes.
  size_t notes() const { return s_.ragged ? 2 : 1; }
  /// Where the token's mass goes, its own rows too.
  void write(const TokenSlots& slots, const NewRows& fresh) const;
  /// The mass of a query that has attended as `call`.
  void add_token(const TokenStep& step, const DecodeCall& call) const;
  /// The mass of a chunk's last queries.
  void add_chunk(const CausalCall& call, ChunkSpace& space) const;

 private:
  /// `rows`: with the step's own.
  MassTarget target(size_t rows, bool fresh) const;

  const HeadStores& s_;
};

}  // namespace pith::cuda
