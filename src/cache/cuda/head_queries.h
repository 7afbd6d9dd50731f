#pragma once
// The queries of KV heads under one rule: the factor that they attend times, where a chooser has
// one, and the numbers that it keeps of them (DeviceChooser::state_numbers). A query's own row
// comes with it: where it stands is how many tokens came before.

#include <memory>

#include "cache/cuda/chunk_space.h"
#include "cache/cuda/layer_plan.h"
#include "cache/cuda/token_step.h"
#include "core/archive.h"
#include "kernels/cuda/slab.h"
#include "pith/ledger.h"
#include "select/cuda/device_chooser.h"

namespace pith::cuda {

class HeadQueries {
 public:
  HeadQueries(const LayerPlan& layer, const LayerSite& site,
              std::shared_ptr<const DeviceChooser> chooser);

  /// Whether the chooser keeps numbers of queries.
  bool kept() const { return state_.capacity() > 0; }
  /// Whether they attend times a factor.
  bool scales() const { return chooser_->scales_queries(); }
  /// Whether anything here is of these heads' queries alone.
  bool own() const { return kept() || scales(); }
  /// Of the next `tokens` queries, behind `seen`.
  QueryNote note(size_t seen, size_t tokens) const;
  /// As a selection reads them, after `tokens`.
  SeenQueries seen(size_t tokens) const;

  /// A token's query, as attention takes it. The chooser sees it, unless the step only reads.
  DecodeCall begin_token(const TokenStep& step) const;
  /// The chooser sees a chunk's, before attention writes to the call's `out`.
  void observe_chunk(const CausalCall& call, const QueryNote& note) const;
  /// The call's queries as attention takes them.
  void scale_chunk(CausalCall& call, const QueryNote& note, ChunkSpace& space) const;

  void archive(Archive& a);
  void add_to(Ledger& ledger) const { ledger.metadata += state_.allocated_bytes(); }

 private:
  StepQueries step_of(const void* q, size_t tokens) const;

  DType dtype_;
  size_t sink_;  // rows
  LayerSite site_;
  std::shared_ptr<const DeviceChooser> chooser_;
  Slab scaled_;  // [H, D] a token's, where they are scaled
  Slab state_;   // [state_numbers] of float
};

}  // namespace pith::cuda
