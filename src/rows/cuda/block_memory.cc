#include "rows/cuda/block_memory.h"

#include "rows/device_growth.h"

namespace pith::cuda {
namespace {

std::array<Slab, BlockMemory::kParts> parts_of(const DeviceCodec& codec, const StoreSite& site,
                                               bool saved) {
  const auto part = [&](MemoryKind kind, size_t bytes) {
    return Slab(*site.memory, kind, {site.heads, bytes, saved}, site.stream);
  };
  const GroupedBytes bytes = codec.block_bytes(static_cast<int>(site.dim));
  return {part(MemoryKind::kPayload, bytes.key_codes), part(MemoryKind::kMetadata, bytes.key_side),
          part(MemoryKind::kPayload, bytes.value_codes),
          part(MemoryKind::kMetadata, bytes.value_side)};
}

}  // namespace

size_t codes_bytes(const DeviceCodec& codec, const StoreSite& site, size_t rows) {
  const GroupedBytes block = codec.block_bytes(static_cast<int>(site.dim));
  const size_t blocks = device_codes().most_for(device_blocks(rows));
  return site.heads * blocks *
         (block.key_codes + block.key_side + block.value_codes + block.value_side);
}

BlockMemory::BlockMemory(const DeviceCodec& codec, const StoreSite& site, bool saved)
    : parts_(parts_of(codec, site, saved)) {}

void BlockMemory::renew(size_t capacity, const BlockMemory& from, const Slab::Part& blocks) {
  for (size_t i = 0; i < kParts; ++i) parts_[i].renew(capacity, from.parts_[i], blocks);
}

void BlockMemory::swap(BlockMemory& other) noexcept {
  for (size_t i = 0; i < kParts; ++i) parts_[i].swap(other.parts_[i]);
}

StoreRoom BlockMemory::growth(size_t capacity) const {
  StoreRoom room;
  for (const Slab& part : parts_) room += StoreRoom::growth(part, capacity);
  return room;
}

size_t BlockMemory::bytes_of(size_t capacity) const {
  size_t all = 0;
  for (const Slab& part : parts_) all += part.bytes_of(capacity);
  return all;
}

void BlockMemory::add_to(Ledger& ledger, size_t heads, size_t rows) const {
  for (size_t part = 0; part < kParts; ++part) {
    const size_t held = heads * rows * parts_[part].unit() / 32;
    (part % 2 == 0 ? ledger.payload : ledger.metadata) += held;
    ledger.slack += parts_[part].allocated_bytes() - held;
  }
}

size_t BlockMemory::row_bytes() const {
  size_t bytes = 0;
  for (const Slab& part : parts_) bytes += part.unit() / 32;
  return bytes;
}

}  // namespace pith::cuda
