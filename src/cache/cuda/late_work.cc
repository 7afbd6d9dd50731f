#include "cache/cuda/late_work.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace pith::cuda {

void LateWork::add(LateWork& of_cache) {
  std::map<std::string, const DeviceCodec*> one;  // of a name: caches of one policy have the same
  for (CodeWork work : of_cache.codes) {
    work.codec = one.try_emplace(work.codec->name(), work.codec).first->second;
    codes.push_back(work);
  }
  behind.insert(behind.end(), of_cache.behind.begin(), of_cache.behind.end());
  of_cache.codes.clear();
  of_cache.behind.clear();
}

void LateWork::judge(cudaStream_t stream) {
  const auto shape = [](const HeavyWork& work) {
    const JudgedRows& rows = work.choice.rows;
    return std::tuple(rows.dtype, rows.heads, rows.dim, static_cast<bool>(work.rest));
  };
  std::ranges::stable_sort(heavy, {}, shape);
  for (auto first = heavy.begin(), end = first; first != heavy.end(); first = end) {
    while (end != heavy.end() && shape(*end) == shape(*first)) ++end;
    judge_heavy(std::span<const HeavyWork>(first, end), stream);
  }
  heavy.clear();
}

void LateWork::run(cudaStream_t stream) {
  const auto less = [](const CodeWork& a, const CodeWork& b) {
    if (a.codec != b.codec) return std::less<>()(a.codec, b.codec);
    const auto numbers = [](const CodeBatch& x) {
      return std::tie(x.dtype, x.heads, x.rows, x.head_dim);
    };
    return numbers(a.batch) < numbers(b.batch);
  };
  std::ranges::stable_sort(codes, less);
  for (auto first = codes.begin(), end = first; first != codes.end(); first = end) {
    std::vector<CodeJob> keys, values;
    for (; end != codes.end() && !less(*first, *end); ++end) {
      keys.push_back(end->keys);
      values.push_back(end->values);
    }
    first->codec->code(first->batch, keys, values, stream);
  }
  const auto shape = [](const KeepCall& c) { return std::pair(c.rows.heads, c.rows.dim); };
  std::ranges::stable_sort(behind, {}, shape);
  for (auto first = behind.begin(), end = first; first != behind.end(); first = end) {
    while (end != behind.end() && shape(*end) == shape(*first)) ++end;
    move_rows(std::span<const KeepCall>(first, end), stream);
  }
  codes.clear();
  behind.clear();
}

}  // namespace pith::cuda
