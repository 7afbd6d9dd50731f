#include "cache/cuda/late_work.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace pith::cuda {
namespace {

constexpr ptrdiff_t kMostApart = 64;  // places whose codes are in scratch memory at once

}  // namespace

void LateWork::add(LateWork& of_cache) {
  std::map<std::string, const DeviceCodec*> one;  // of a name: caches of one policy have the same
  const auto come = [&one](auto& from, auto& to) {
    for (auto& work : from) {
      work.codec = one.try_emplace(work.codec->name(), work.codec).first->second;
      to.push_back(work);
    }
    from.clear();
  };
  come(of_cache.codes, codes);
  come(of_cache.choices, choices);
  behind.insert(behind.end(), of_cache.behind.begin(), of_cache.behind.end());
  of_cache.behind.clear();
}

void LateWork::join(LateWork& of_cache, cudaStream_t stream) {
  const auto joins = [](const BodyMove& move) { return move.body->joins_caches(); };
  if (!std::ranges::all_of(of_cache.moves, joins)) of_cache.take_moves(stream);
  heavy.insert(heavy.end(), of_cache.heavy.begin(), of_cache.heavy.end());
  moves.insert(moves.end(), of_cache.moves.begin(), of_cache.moves.end());
  of_cache.heavy.clear();
  of_cache.moves.clear();
  joined_.push_back(&of_cache);
}

size_t LateWork::staged() const {
  return static_cast<size_t>(std::ranges::count_if(moves, &BodyMove::staged));
}

void LateWork::take_moves(cudaStream_t stream) {
  select_heavy(stream);
  std::map<std::pair<std::string, size_t>, std::vector<BodyMove>> alike;
  for (const BodyMove& move : moves) {
    const size_t rows = move.body->numbers_may_differ() ? 0 : move.rows;
    alike[{move.body->kind(), rows}].push_back(move);
  }
  for (const auto& entry : alike) entry.second.front().body->take(entry.second);
  moves.clear();
}

void LateWork::select_heavy(cudaStream_t stream) {
  const auto shape = [](const HeavyWork& work) {
    const JudgedRows& rows = work.choice.rows;
    const bool in_codes = static_cast<bool>(work.rest);
    return std::tuple(rows.dtype, in_codes ? 0 : rows.heads, rows.dim, in_codes);
  };
  std::ranges::stable_sort(heavy, {}, shape);
  for (auto first = heavy.begin(), end = first; first != heavy.end(); first = end) {
    while (end != heavy.end() && shape(*end) == shape(*first)) ++end;
    judge_heavy(std::span<const HeavyWork>(first, end), stream);
  }
  heavy.clear();
}

void LateWork::code(ChunkSpace& space, cudaStream_t stream) {
  const auto less = [](const CodeWork& a, const CodeWork& b) {
    if (a.codec != b.codec) return std::less<>()(a.codec, b.codec);
    const auto kind = [](const CodeWork& x) {
      const CodeBatch& batch = x.batch;
      return std::tuple(batch.dtype, batch.heads, batch.rows, batch.head_dim, x.move.has_value());
    };
    return kind(a) < kind(b);
  };
  std::ranges::stable_sort(codes, less);
  for (auto first = codes.begin(), end = first; first != codes.end(); first = end) {
    const auto is_other = [&](const CodeWork& work) { return less(*first, work); };
    end = std::find_if(first, codes.end(), is_other);
    if (first->move) end = std::min(end, first + kMostApart);
    const auto places = static_cast<size_t>(end - first);
    const CodeRoom::Shape shape = room_of(*first);
    const CodeRoom room(first->move ? space.codes(CodeRoom::bytes(shape, places)) : nullptr, shape,
                        places);
    code_works({first, end}, &room, stream);
  }
  codes.clear();
}

void LateWork::run(ChunkSpace& space, cudaStream_t stream) {
  take_moves(stream);
  for (LateWork* of_cache : joined_) add(*of_cache);
  joined_.clear();
  code(space, stream);
  const auto shape = [](const KeepCall& c) { return std::pair(c.rows.heads, c.rows.dim); };
  std::ranges::stable_sort(behind, {}, shape);
  for (auto first = behind.begin(), end = first; first != behind.end(); first = end) {
    while (end != behind.end() && shape(*end) == shape(*first)) ++end;
    move_rows(std::span<const KeepCall>(first, end), stream);
  }
  behind.clear();
  choose_late(choices, space, stream);
  choices.clear();
}

}  // namespace pith::cuda
