#include "cache/cuda/late_split.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "cache/cuda/run_codes.h"
#include "rows/cuda/code_room.h"

namespace pith::cuda {
namespace {

/// Bytes of the keys, or values, that codes give back.
size_t side_bytes(const SplitWork& work) {
  const CandidateRows& rows = work.heavy.choice.rows;
  return 2 * static_cast<size_t>(rows.heads * rows.dim) *
         whole_blocks(static_cast<size_t>(rows.rows));
}

DType given_back(const SplitWork& work) { return work.stores->body->given_back(); }

/// Rows of all heads in scratch memory, from `at` on.
void give_back(std::span<SplitWork> works, std::byte* at, cudaStream_t stream) {
  std::vector<UnpackRowsCall> keys, values;
  for (SplitWork& work : works) {
    CandidateRows& rows = work.heavy.choice.rows;
    const size_t blocks = whole_blocks(static_cast<size_t>(rows.rows)) / kBlockRows;
    rows.dtype = given_back(work);
    rows.k = at;
    rows.v = at + side_bytes(work);
    rows.head_stride = kBlockRows * blocks * static_cast<size_t>(rows.dim);
    at += 2 * side_bytes(work);
    const RowTarget to{rows.k, rows.v, rows.head_stride, 0};
    const auto [k, v] =
        work.stores->codes->blocks().calls().unpack_calls(to, {0, blocks, rows.dtype});
    keys.push_back(k);
    values.push_back(v);
    work.heavy.gather.rows = rows;
  }
  works.front().codec->unpack_keys_of(keys, stream);
  works.front().codec->unpack_values_of(values, stream);
}

/// Codes of rows that stay move up, those of later rows behind them.
void close_up(std::span<SplitWork> works, ChunkSpace& space, cudaStream_t stream) {
  std::vector<OrderCall> orders;
  for (const SplitWork& work : works) {
    const CandidateRows& rows = work.heavy.choice.rows;
    const auto behind = work.stores->packed_behind(static_cast<size_t>(rows.rows));
    orders.push_back(
        {work.heavy.choice.space,
         {rows.heads, 0, rows.rows, 0, work.heavy.keep.keep, static_cast<int>(behind)}});
  }
  order_rows(orders, stream);
  std::vector<MoveCodesCall> moves;
  std::vector<KeepCall> sides;
  for (size_t i = 0; i < works.size(); ++i) {
    const SelectSpace& chosen = orders[i].space;
    const auto* numbers = reinterpret_cast<const int32_t*>(chosen.keys);  // order_rows
    const auto count = static_cast<size_t>(orders[i].order.named + orders[i].order.behind);
    HeadStores& stores = *works[i].stores;
    const size_t most = stores.layer.selector.heavy->most() + kBlockRows - 1;  // between passes
    sides.push_back(works[i].heavy.keep);
    if (!stores.codes->blocks().keeps_in_place(most)) {
      stores.codes->blocks().keep(numbers, chosen.stride, count, most);
      continue;
    }
    MoveCodesCall& move = moves.emplace_back(stores.codes->blocks().keep_later(count));
    move.kept = numbers;
    move.kept_stride = chosen.stride;
  }
  const DeviceCodec& codec = *works.front().codec;
  keep_through(space.codes(keep_bytes(codec, moves)), codec, moves, stream);
  move_sides(sides, stream);
}

void split_at_once(std::span<SplitWork> works, size_t bytes, ChunkSpace& space,
                   cudaStream_t stream) {
  give_back(works, space.many(bytes), stream);
  std::vector<HeavyCall> choices;
  std::vector<GatherCall> gathers;
  for (const SplitWork& work : works) {
    choices.push_back(work.heavy.choice);
    gathers.push_back(work.heavy.gather);
  }
  choose_heavy(choices, stream);
  gather_rows(gathers, stream);
  close_up(works, space, stream);
  for (const SplitWork& work : works) {
    RunCodes(*work.stores).pack_blocks(work.later ? &work.later->after : nullptr);
  }
}

}  // namespace

void split_codes(std::span<SplitWork> works, ChunkSpace& space, cudaStream_t stream) {
  const auto less = [](const SplitWork& a, const SplitWork& b) {
    if (a.codec != b.codec) return std::less<>()(a.codec, b.codec);
    return std::pair(a.heavy.choice.rows.dim, given_back(a)) <
           std::pair(b.heavy.choice.rows.dim, given_back(b));
  };
  std::ranges::stable_sort(works, less);
  // Each place of a batch has scratch memory as the batch's largest does (keep_through).
  for (auto first = works.begin(), end = first; first != works.end(); first = end) {
    size_t largest = 0, places = 0;
    for (; end != works.end() && !less(*first, *end); ++end) {
      const size_t bytes = std::max(largest, 2 * side_bytes(*end));
      if (places > 0 && places >= space.many_at_once(bytes)) break;
      largest = bytes;
      ++places;
    }
    split_at_once({first, end}, places * largest, space, stream);
  }
}

}  // namespace pith::cuda
