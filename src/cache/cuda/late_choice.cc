#include "cache/cuda/late_choice.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace pith::cuda {
namespace {

auto kind_of(const ChoiceWork& work) {
  const CandidateRows& rows = work.sides.rows;
  return std::tuple(work.codec, work.chooser->by_keys_alone(), rows.heads, rows.dim, rows.rows,
                    work.sides.keep);
}

/// Of one kind, as many as scratch memory takes.
void choose_at_once(std::span<const ChoiceWork> works, ChunkSpace& space, cudaStream_t stream) {
  const ChoiceWork& any = works.front();
  const CandidateRows& of_layer = any.sides.rows;
  const auto heads = static_cast<size_t>(of_layer.heads), dim = static_cast<size_t>(of_layer.dim);
  const auto blocks = static_cast<size_t>(any.keys.blocks), rows = kBlockRows * blocks;
  const auto [scratch, keys] = space.select_many(works.size() * heads, rows);
  std::vector<UnpackRowsCall> unpacked;
  for (size_t i = 0; i < works.size(); ++i) {
    UnpackRowsCall& call = unpacked.emplace_back(works[i].keys);
    call.out = keys + 2 * i * heads * rows * dim;
    call.head_stride = rows * dim;
  }
  any.codec->unpack_keys_of(unpacked, stream);

  CandidateRows candidates;
  candidates.dtype = any.keys.dtype;
  candidates.heads = static_cast<int>(works.size() * heads);
  candidates.dim = of_layer.dim;
  candidates.k = keys;
  candidates.head_stride = rows * dim;
  candidates.rows = of_layer.rows;
  any.chooser->choose(scratch, candidates, any.step, stream);

  std::vector<MoveCodesCall> moves;
  std::vector<KeepCall> sides;
  for (size_t i = 0; i < works.size(); ++i) {
    const int32_t* kept = scratch.kept + i * heads * scratch.stride;
    MoveCodesCall& move = moves.emplace_back(works[i].codes);
    move.kept = kept;
    move.kept_stride = scratch.stride;
    KeepCall& side = sides.emplace_back(works[i].sides);
    side.kept = kept;
    side.kept_stride = scratch.stride;
  }
  keep_through(space.codes(keep_bytes(*any.codec, moves)), *any.codec, moves, stream);
  move_sides(sides, stream);
}

}  // namespace

void choose_late(std::span<ChoiceWork> works, ChunkSpace& space, cudaStream_t stream) {
  std::ranges::stable_sort(works, {}, kind_of);
  for (auto first = works.begin(), end = first; first != works.end(); first = end) {
    const size_t rows = kBlockRows * static_cast<size_t>(first->keys.blocks);
    const size_t most = space.layers_at_once(static_cast<size_t>(first->keys.heads), rows);
    while (end != works.end() && static_cast<size_t>(end - first) < most &&
           kind_of(*end) == kind_of(*first)) {
      ++end;
    }
    choose_at_once({first, end}, space, stream);
  }
}

}  // namespace pith::cuda
