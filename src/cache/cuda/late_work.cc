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

void code_in_place(std::span<const CodeWork> works, cudaStream_t stream) {
  std::vector<CodeJob> keys, values;
  for (const CodeWork& work : works) {
    keys.push_back(work.keys);
    values.push_back(work.values);
  }
  works.front().codec->code(works.front().batch, keys, values, stream);
}

void code_apart(std::span<CodeWork> works, ChunkSpace& space, cudaStream_t stream) {
  const CodeWork& any = works.front();
  const CodeRoom room(
      space,
      {any.codec->block_bytes(any.batch.head_dim), static_cast<size_t>(any.batch.heads),
       static_cast<size_t>(any.batch.rows) / kBlockRows},
      works.size());
  std::vector<MoveCodesCall> moves;
  for (size_t i = 0; i < works.size(); ++i) {
    CodeWork& work = works[i];
    const CodeBlocks apart = room.at(i);
    work.keys.codes = apart.key_codes;
    work.keys.side = apart.key_side;
    work.values.codes = apart.value_codes;
    work.values.side = apart.value_side;
    work.keys.block_stride = work.values.block_stride = apart.stride;
    moves.push_back(*work.move);
    moves.back().from = apart;
  }
  code_in_place(works, stream);
  any.codec->move_rows_of(moves, stream);
}

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
    first->move ? code_apart({first, end}, space, stream) : code_in_place({first, end}, stream);
  }
  codes.clear();
}

void LateWork::run(ChunkSpace& space, cudaStream_t stream) {
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
