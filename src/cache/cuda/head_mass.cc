#include "cache/cuda/head_mass.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

MassTarget HeadMass::target(size_t rows, bool fresh) const {
  if (!s_.sides.has_mass()) return {};
  MassTarget target;
  target.keys = s_.rows.keys();
  target.head_stride = s_.rows.head_stride();
  target.rows = static_cast<int32_t>(rows);
  s_.sides.add_mass(target, fresh ? 0 : s_.beside_rows().with_mass);
  if (s_.packed() == 0) return target;
  s_.codes->blocks().calls().add_keys(target, s_.codes->rows());
  target.coded_from = static_cast<int32_t>(s_.layer.schedule.sink);
  return target;
}

void HeadMass::write(const TokenSlots& slots, const NewRows& fresh) const {
  const bool anew = s_.plan.mass(1).fresh;
  slots.note->mass = target(s_.rows.rows() + fresh.sink + fresh.run, anew);
  if (s_.ragged && s_.sides.has_mass()) slots.note[1].mass = s_.ragged->mass_target(anew);
}

void HeadMass::add_token(const TokenStep& step, const DecodeCall& call) const {
  const DecodeShape& shape = call.shape;
  TokenMass mass{{shape.query_heads, shape.kv_heads, shape.head_dim, call.dtype, shape.soft_cap},
                 call.q,
                 call.log_sum,
                 call.company};
  mass.targets_apart = step.note_by_head ? sizeof(TokenNote) : 0;
  for (size_t i = 0; i < notes(); ++i) {
    mass.target_at = i * sizeof(TokenNote) + offsetof(TokenNote, mass);
    if (s_.zones().packs()) {
      s_.codes->codec().add_token_mass(mass, &step.note[i].mass, s_.site.stream);
    } else {
      add_token_mass(mass, &step.note[i].mass, s_.site.stream);
    }
  }
}

void HeadMass::add_chunk(const CausalCall& call, ChunkSpace& space) const {
  const auto tokens = static_cast<size_t>(call.tokens);
  const MassRequest request = s_.plan.mass(tokens);
  ChunkMass of;
  of.shape = {call.query_heads, call.kv_heads, call.head_dim, call.dtype, call.soft_cap};
  of.q = call.q;
  of.log_sum = call.log_sum;
  of.tokens = call.tokens;
  of.queries = static_cast<int>(std::min(request.queries, tokens));
  of.before = static_cast<int>(s_.rows.rows());
  const MassTarget all = target(s_.rows.rows() + tokens, request.fresh);
  add_chunk_mass(of, all, s_.site.stream);
  if (s_.ragged) s_.ragged->add_chunk_mass(of, request.fresh);
  for (size_t first = 0; first < s_.packed(); first += ChunkSpace::kPieceRows) {
    const size_t count = std::min(ChunkSpace::kPieceRows, s_.packed() - first);
    RowTarget keys = space.piece();
    keys.v = nullptr;  // mass needs no values
    const size_t blocks = (count + kBlockRows - 1) / kBlockRows;
    s_.codes->blocks().calls().unpack(keys, {first / kBlockRows, blocks, s_.layer.dtype});
    MassTarget piece;
    piece.keys = keys.k;
    piece.mass = all.mass + all.coded_from + first;
    piece.head_stride = keys.head_stride;
    piece.stride = all.stride;
    piece.rows = static_cast<int32_t>(count);
    piece.known = request.fresh ? 0 : piece.rows;
    of.before = piece.rows;  // all queries see all of them
    add_chunk_mass(of, piece, s_.site.stream);
  }
}

}  // namespace pith::cuda
