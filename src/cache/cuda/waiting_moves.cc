#include "cache/cuda/waiting_moves.h"

namespace pith::cuda {

void WaitingMoves::pass_layer(bool last) {
  // Scratch of a layer's own is needed only by one that waits: of a long prompt it is much.
  if (!one_by_one_ && ++layers_waiting_ < space_.layers_together() && !last)
    return space_.next_layer();
  work_.take_moves(space_, stream_);
  layers_waiting_ = 0;
}

void WaitingMoves::end_token(const CacheLayers& layers, LateWork& late) {
  // The caches of a pass share the places of staged rows: none is named again before its rows left.
  size_t waiting = 0;  // of this cache
  const auto named = [&] {
    if (work_.staged() == waiting) return;
    waiting = work_.staged();
    if (!one_by_one_ && late.staged() + waiting < space_.layers_together())
      return space_.next_layer();
    late.join(work_, space_, stream_);
    late.take_moves(space_, stream_);
    waiting = 0;
  };
  for (const auto& layer : layers.all()) layer->end_token(space_, work_, named);
  late.join(work_, space_, stream_);
}

}  // namespace pith::cuda
