#pragma once
// Moves that the layers of a cache have named and nobody has taken yet: those of several layers are
// taken together, as many as the scratch memory has places for.

#include "cache/cuda/cache_layers.h"

namespace pith::cuda {

class WaitingMoves {
 public:
  WaitingMoves(ChunkSpace& space, cudaStream_t stream) : space_(space), stream_(stream) {}

  /// Where layers name them.
  LateWork& named() { return work_; }
  /// Layers' moves are taken one by one from now on, or together.
  void set_one_by_one(bool is) { one_by_one_ = is; }
  /// A layer of a chunk, or a range of its heads, has named its moves; unless it is the last they
  /// may wait for those of others.
  void pass_layer(bool last);
  /// Ends a token in all layers. Work that may wait for other caches' is left in `late`.
  void end_token(const CacheLayers& layers, LateWork& late);

 private:
  ChunkSpace& space_;
  cudaStream_t stream_;
  LateWork work_;
  size_t layers_waiting_ = 0;  // of a chunk
  bool one_by_one_ = false;
};

}  // namespace pith::cuda
