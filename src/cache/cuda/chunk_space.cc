#include "cache/cuda/chunk_space.h"

#include <algorithm>

#include "kernels/cuda/grouped_layout.h"
#include "rows/cuda/dense_store.h"

namespace pith::cuda {

template <class F>
void SpaceAsked::each(const F& f) {
  using S = SpaceAsked;
  for (size_t S::*what :
       {&S::staging, &S::positions, &S::pieces, &S::apart, &S::unpacked, &S::queries, &S::partials,
        &S::select, &S::sums, &S::logits, &S::codecs, &S::layers})
    f(what);
}

void SpaceAsked::join(const SpaceAsked& o) {
  each([&](auto what) { this->*what = std::max(this->*what, o.*what); });
}

bool SpaceAsked::covers(const SpaceAsked& o) const {
  bool all = true;
  each([&](auto what) { all = all && this->*what >= o.*what; });
  return all;
}

ChunkSpace::ChunkSpace(const LayerSite& site)
    : site_(site),
      piece_(*site.memory, MemoryKind::kScratch),
      apart_(*site.memory, MemoryKind::kStaging),
      unpacked_(*site.memory, MemoryKind::kScratch),
      queries_(*site.memory, MemoryKind::kScratch),
      out_(*site.memory, MemoryKind::kScratch),
      log_sum_(*site.memory, MemoryKind::kScratch),
      sums_(*site.memory, MemoryKind::kScratch),
      logits_(*site.memory, MemoryKind::kScratch) {
  set_layers_together(1);
}

void ChunkSpace::set_layers_together(size_t layers) {
  while (staging_.size() < layers) {
    staging_.emplace_back(*site_.memory, MemoryKind::kStaging);
    positions_.emplace_back(*site_.memory, MemoryKind::kStaging);
    keys_.emplace_back(*site_.memory, MemoryKind::kScratch);
    kept_.emplace_back(*site_.memory, MemoryKind::kScratch);
  }
}

// Memory is given back before more of it is asked for.
size_t ChunkSpace::more_for(const SpaceAsked& asked) const {
  const auto beyond = [](size_t held, size_t bytes) { return std::max(held, bytes) - held; };
  const auto each = [&](const auto& buffers, size_t unit, size_t bytes) {
    size_t more = 0;
    for (size_t i = 0; i < std::min(buffers.size(), std::max<size_t>(asked.layers, 1)); ++i)
      more += beyond(buffers[i].size() * unit, bytes);
    return more;
  };
  constexpr size_t kNumber = sizeof(float);
  const size_t query = site_.query_heads * site_.dim;  // numbers
  return each(staging_, 1, 4 * site_.heads * asked.staging * site_.dim) +
         each(positions_, kNumber, asked.positions * kNumber) +
         2 * each(keys_, kNumber, site_.heads * asked.select * kNumber) +
         beyond(piece_.size(), asked.pieces) + beyond(apart_.size(), asked.apart) +
         beyond(unpacked_.size(), asked.unpacked) +
         beyond(queries_.size(), 2 * asked.queries * query) +
         beyond(out_.size() * kNumber, asked.partials * query * kNumber) +
         beyond(log_sum_.size() * kNumber, asked.partials * site_.query_heads * kNumber) +
         beyond(sums_.size() * kNumber, asked.sums * kNumber) +
         beyond(logits_.size() * kNumber, asked.logits * kNumber) + asked.codecs;
}

void ChunkSpace::clear() {
  const size_t layers = staging_.size();
  *this = ChunkSpace(site_);
  set_layers_together(layers);
}

int32_t* ChunkSpace::staged_positions(size_t count) {
  DeviceArray<int32_t>& array = positions_[at_];
  if (array.size() < count) array.allocate(count, site_.stream);
  return array.data();
}

RowTarget ChunkSpace::target_of(const DeviceBuffer& buffer, const LayerSite& site) {
  return rows_in(buffer, buffer.size() / (4 * site.heads * site.dim), site.dim);
}

RowTarget ChunkSpace::staging(size_t rows) {
  const size_t bytes = 4 * site_.heads * rows * site_.dim;
  DeviceBuffer& buffer = staging_[at_];
  if (buffer.size() < bytes) buffer.allocate(bytes, site_.stream);
  return target_of(buffer, site_);
}

size_t ChunkSpace::piece_bytes() const { return 4 * site_.heads * kPieceRows * site_.dim; }

RowTarget ChunkSpace::piece() {
  many(piece_bytes());
  return target_of(piece_, site_);
}

std::byte* ChunkSpace::many(size_t bytes) {
  if (piece_.size() < bytes) piece_.allocate(bytes, site_.stream);
  return static_cast<std::byte*>(piece_.data());
}

size_t ChunkSpace::many_bytes() const {
  constexpr size_t kLeast = size_t{128} << 20;  // a selection is a few blocks of each layer
  return std::max(piece_bytes(), kLeast);
}

std::byte* ChunkSpace::apart(size_t bytes) {
  if (apart_.size() < bytes) apart_.allocate(bytes, site_.stream);
  return static_cast<std::byte*>(apart_.data());
}

size_t ChunkSpace::unpacked_bytes(size_t rows) const {
  const size_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  return 4 * site_.heads * blocks * kBlockRows * site_.dim;
}

RowTarget ChunkSpace::unpacked(size_t rows) {
  const size_t bytes = unpacked_bytes(rows);
  if (unpacked_.size() < bytes) unpacked_.allocate(bytes, site_.stream);
  return target_of(unpacked_, site_);
}

std::byte* ChunkSpace::codes(size_t bytes) {
  constexpr size_t kWhole = 512;  // halves and rows of it stay aligned
  bytes = (bytes + kWhole - 1) / kWhole * kWhole;
  if (unpacked_.size() < bytes) unpacked_.allocate(bytes, site_.stream);
  return static_cast<std::byte*>(unpacked_.data());
}

size_t ChunkSpace::layers_at_once(size_t heads, size_t rows) const {
  return std::max<size_t>(1, 2 * site_.heads * kPieceRows / (heads * rows));
}

ChunkSpace::ManyLayers ChunkSpace::select_many(size_t heads, size_t rows) {
  const size_t bytes = 2 * heads * rows * site_.dim, sums = select_sums(heads, site_.dim);
  if (sums_.size() < sums) sums_.allocate(sums, site_.stream);
  SelectSpace scratch = select((heads * rows + site_.heads - 1) / site_.heads);
  scratch.stride = rows;
  return {scratch, many(bytes)};
}

void* ChunkSpace::queries(size_t tokens) {
  const size_t bytes = 2 * tokens * site_.query_heads * site_.dim;
  if (queries_.size() < bytes) queries_.allocate(bytes, site_.stream);
  return queries_.data();
}

void ChunkSpace::give_partials(CausalCall& call) {
  const auto rows = static_cast<size_t>(call.tokens) * site_.query_heads;
  if (log_sum_.size() < rows) {
    out_.allocate(rows * site_.dim, site_.stream);
    log_sum_.allocate(rows, site_.stream);
  }
  call.out = out_.data();
  call.log_sum = log_sum_.data();
}

SelectSpace ChunkSpace::select(size_t rows, bool logits) {
  DeviceArray<uint32_t>& keys = keys_[at_];
  DeviceArray<int32_t>& kept = kept_[at_];
  if (keys.size() < site_.heads * rows) {
    keys.allocate(site_.heads * rows, site_.stream);
    kept.allocate(site_.heads * rows, site_.stream);
  }
  if (sums_.size() == 0) sums_.allocate(select_sums(site_.heads, site_.dim), site_.stream);
  const size_t numbers = logits ? site_.query_heads * rows : 0;
  if (logits_.size() < numbers) logits_.allocate(numbers, site_.stream);
  return {keys.data(), kept.data(), sums_.data(), logits ? logits_.data() : nullptr, rows};
}

}  // namespace pith::cuda
