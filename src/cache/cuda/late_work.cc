#include "cache/cuda/late_work.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace pith::cuda {
namespace {

template <class Work>
void come(std::vector<Work>& from, std::vector<Work>& to) {
  to.insert(to.end(), from.begin(), from.end());
  from.clear();
}

}  // namespace

void LateCodes::clear() {
  works.clear();
  behind.clear();
}

void LateWork::add(LateWork& of_cache) {
  come(of_cache.after.works, after.works);
  come(of_cache.after.behind, after.behind);
  come(of_cache.choices, choices);
}

void LateWork::join(LateWork& of_cache, ChunkSpace& space, cudaStream_t stream) {
  const auto joins = [](const BodyMove& move) { return move.body->joins_caches(); };
  if (!std::ranges::all_of(of_cache.moves, joins)) of_cache.take_moves(space, stream);
  come(of_cache.before.works, before.works);
  come(of_cache.before.behind, before.behind);
  come(of_cache.heavy, heavy);
  come(of_cache.splits, splits);
  come(of_cache.moves, moves);
  joined_.push_back(&of_cache);
}

size_t LateWork::staged() const {
  return static_cast<size_t>(std::ranges::count_if(moves, &BodyMove::staged));
}

void LateWork::take_moves(ChunkSpace& space, cudaStream_t stream) {
  select_heavy(space, stream);
  std::map<std::pair<std::string, size_t>, std::vector<BodyMove>> alike;
  for (const BodyMove& move : moves) {
    const size_t rows = move.body->numbers_may_differ() ? 0 : move.rows;
    alike[{move.body->kind(), rows}].push_back(move);
  }
  for (const auto& entry : alike) entry.second.front().body->take(entry.second);
  moves.clear();
}

void LateWork::select_heavy(ChunkSpace& space, cudaStream_t stream) {
  before.run(space, stream);
  const auto shape = [](const HeavyWork& work) {
    const CandidateRows& rows = work.choice.rows;
    return std::tuple(rows.dtype, rows.heads, rows.dim);
  };
  std::ranges::stable_sort(heavy, {}, shape);
  for (auto first = heavy.begin(), end = first; first != heavy.end(); first = end) {
    while (end != heavy.end() && shape(*end) == shape(*first)) ++end;
    split_heavy(std::span<const HeavyWork>(first, end), stream);
  }
  heavy.clear();
  split_codes(splits, space, stream);
  splits.clear();
}

void LateCodes::run(ChunkSpace& space, cudaStream_t stream) {
  const auto less = [](const CodeWork& a, const CodeWork& b) {
    if (a.codec != b.codec) return std::less<>()(a.codec, b.codec);
    const auto kind = [](const CodeWork& x) {
      const CodeBatch& batch = x.batch;
      return std::tuple(batch.dtype, batch.heads, batch.rows, batch.head_dim, x.move.has_value());
    };
    return kind(a) < kind(b);
  };
  std::ranges::stable_sort(works, less);
  for (auto first = works.begin(), end = first; first != works.end(); first = end) {
    const auto is_other = [&](const CodeWork& work) { return less(*first, work); };
    end = std::find_if(first, works.end(), is_other);
    if (first->move) end = std::min(end, first + ptrdiff_t{kMostCodesApart});
    const auto places = static_cast<size_t>(end - first);
    const CodeRoom::Shape shape = room_of(*first);
    const CodeRoom room(first->move ? space.codes(CodeRoom::bytes(shape, places)) : nullptr, shape,
                        places);
    code_works({first, end}, &room, stream);
  }
  const auto shape = [](const KeepCall& c) { return std::pair(c.rows.heads, c.rows.dim); };
  std::ranges::stable_sort(behind, {}, shape);
  for (auto first = behind.begin(), end = first; first != behind.end(); first = end) {
    while (end != behind.end() && shape(*end) == shape(*first)) ++end;
    move_rows(std::span<const KeepCall>(first, end), stream);
  }
  clear();
}

void LateWork::run(ChunkSpace& space, cudaStream_t stream) {
  take_moves(space, stream);
  for (LateWork* of_cache : joined_) add(*of_cache);
  joined_.clear();
  after.run(space, stream);
  choose_late(choices, space, stream);
  choices.clear();
}

}  // namespace pith::cuda
