#include "cache/cuda/token_numbers.h"

#include <algorithm>

#include "cache/cuda/head_attention.h"

namespace pith::cuda {

void TokenNumbers::make(const CacheLayers& layers, const CacheShape& shape, MemoryCounter& memory,
                        cudaStream_t stream) {
  first_.assign(1, {});
  for (const auto& layer : layers.all()) {
    First next = first_.back();
    next.spans += layer->forms().spans();
    next.notes += layer->forms().notes();
    next.targets += layer->has_targets() ? static_cast<size_t>(shape.kv_heads) : 0;
    first_.push_back(next);
  }
  const First& all = first_.back();
  spans_ = StepSpans(memory, all.spans, stream);
  notes_ = MirroredArray<TokenNote>(memory, MemoryKind::kScratch, all.notes, stream);
  targets_ = MirroredArray<RowTarget>(memory, MemoryKind::kScratch, all.targets, stream);
  for (size_t l = 0; l < layers.size(); ++l)
    layers.all()[l]->forms().mark_spans(spans_, first_[l].spans);
  std::fill_n(notes_.host(), all.notes, TokenNote{});
  reads_notes_ =
      layers.any_stores([](HeadStores& stores) { return HeadAttention(stores).reads_notes(); });
}

TokenSlots TokenNumbers::on_host(size_t i) {
  const First& first = first_[i];
  return {&spans_, first.spans, notes_.host() + first.notes, targets_.host() + first.targets};
}

std::vector<Upload> TokenNumbers::uploads() const {
  std::vector<Upload> all{spans_.upload()};
  if (reads_notes_) all.push_back(notes_.upload_of(notes_.size()));
  if (targets_.size() > 0) all.push_back(targets_.upload_of(targets_.size()));
  return all;
}

int TokenNumbers::blocks(int query_blocks) const {
  constexpr int32_t kDenseRows = 16;  // of a tile
  size_t most = 0, layer = 0, tiles = 0;
  spans_.for_each([&](const DeviceSpan& span, const StepSpans::Place& place) {
    while (layer + 2 < first_.size() && place.at >= first_[layer + 1].spans) ++layer, tiles = 0;
    const int32_t rows = span.coded ? static_cast<int32_t>(kBlockRows) : kDenseRows;
    tiles += place.heads * static_cast<size_t>((span.rows + rows - 1) / rows);
    most = std::max(most, tiles);
  });
  tiles = most * static_cast<size_t>(query_blocks);
  return static_cast<int>(std::max<size_t>(1, (tiles + kTilesABlock - 1) / kTilesABlock));
}

}  // namespace pith::cuda
