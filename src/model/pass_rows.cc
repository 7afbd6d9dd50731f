#include "model/pass_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"

namespace pith {

PassRows::PassRows(const Context& context, const ModelConfig& config, size_t most)
    : context_(context),
      config_(config),
      most_(most),
      cos_(context.memory, MemoryKind::kScratch),
      sin_(context.memory, MemoryKind::kScratch) {
  const size_t one = most * static_cast<size_t>(config.head_dim) / 2;
  for (Array<float>* of : {&cos_, &sin_}) of->reserve(one);
  prepare(1);
}

void PassRows::prepare(size_t ropes) {
  const size_t all = ropes * most_ * static_cast<size_t>(config_.head_dim) / 2;
  for (Array<float>* of : {&cos_, &sin_})
    if (of->size() < all) of->resize(all);
}

void PassRows::check(std::span<const int32_t> tokens) const {
  for (int32_t token : tokens) {
    if (token >= 0 && token < config_.vocab) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("token id {}; the model's vocabulary is 0 to {}", token, config_.vocab - 1));
  }
}

void PassRows::check_count(size_t tokens) const {
  if (tokens == 0 || tokens > most_)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a chunk of {} tokens; expected 1 to {}", tokens, most_));
}

void PassRows::add(std::span<const int32_t> tokens, int64_t first_position,
                   const LayerRopes& ropes) {
  for (size_t t = 0; t < tokens.size(); ++t)
    rows_.push_back({tokens[t], first_position + static_cast<int64_t>(t), &ropes});
}

void PassRows::list(std::span<const Sequence> sequences) {
  size_t count = 0;
  for (const Sequence& s : sequences) {
    if (sequences.size() > 1 && s.tokens.size() != 1)
      throw Error(ErrorCode::kInternal,
                  "a pass over several sequences with other than one token each");
    check(s.tokens);
    if (s.cache->ropes().distinct().empty())
      throw Error(ErrorCode::kInternal, "a forward pass over a cache without RoPE");
    count += s.tokens.size();
  }
  check_count(count);
  rows_.clear();
  for (const Sequence& s : sequences) add(s.tokens, s.first_position, s.cache->ropes());
  many_ = sequences.size() > 1;
  find_angles();
}

void PassRows::list(std::span<const int32_t> tokens, int64_t first_position,
                    const LayerRopes& ropes) {
  check(tokens);
  check_count(tokens.size());
  rows_.clear();
  add(tokens, first_position, ropes);
  many_ = false;
  find_angles();
}

void PassRows::find_angles() {
  const size_t half = static_cast<size_t>(config_.head_dim) / 2;
  size_t ropes = 0;
  for (const Row& row : rows_) ropes = std::max(ropes, row.ropes->distinct().size());
  prepare(ropes);
  context_.pool.parallel_for(ropes * count(), [&](size_t i, int) {
    const size_t rope = i / count(), t = i % count(), at = (rope * most_ + t) * half;
    const auto& distinct = rows_[t].ropes->distinct();
    if (rope >= distinct.size()) return;
    distinct[rope]->angles(cos_.data() + at, sin_.data() + at, rows_[t].position);
  });
}

PassRows::Angles PassRows::angles(int layer, size_t t) const {
  const size_t half = static_cast<size_t>(config_.head_dim) / 2;
  const size_t at = (rows_[t].ropes->index(layer) * most_ + t) * half;
  return {cos_.data() + at, sin_.data() + at};
}

}  // namespace pith
