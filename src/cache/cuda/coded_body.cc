#include "cache/cuda/coded_body.h"

#include <algorithm>

namespace pith::cuda {

CodedBody::CodedBody(std::shared_ptr<const DeviceCodec> codec, DType dtype, const LayerSite& site)
    : codec_(std::move(codec)), dtype_(dtype), site_(site) {
  const GroupedBytes bytes = codec_->block_bytes(static_cast<int>(site.dim));
  bytes_ = {bytes.key_codes, bytes.key_side, bytes.value_codes, bytes.value_side};
}

CodedBody::CodedBody(const CodedBody& other) : CodedBody(other.codec_, other.dtype_, other.site_) {
  if (other.capacity_ > 0) move_to(other.capacity_, other);
}

void CodedBody::reserve_more(size_t blocks) {
  const size_t needed = blocks_ + blocks, most = (site_.context + 31) / 32;
  if (needed <= capacity_) return;
  size_t capacity = std::max({needed, capacity_ + capacity_ / 8, size_t{4}});
  if (needed <= most) capacity = std::min(capacity, most);
  move_to(capacity, *this);
}

void CodedBody::move_to(size_t capacity, const CodedBody& from) {
  for (size_t part = 0; part < kParts; ++part) {
    const MemoryKind kind = part % 2 == 0 ? MemoryKind::kPayload : MemoryKind::kMetadata;
    DeviceBuffer fresh(*site_.memory, kind);
    fresh.allocate(site_.heads * capacity * bytes_[part], site_.stream);
    if (from.blocks_ > 0) {
      check(cudaMemcpy2DAsync(fresh.data(), capacity * bytes_[part], from.buffers_[part].data(),
                              from.capacity_ * bytes_[part], from.blocks_ * bytes_[part],
                              site_.heads, cudaMemcpyDeviceToDevice, site_.stream),
            "the growth of the cache");
    }
    buffers_[part] = std::move(fresh);
  }
  blocks_ = from.blocks_;
  capacity_ = capacity;
}

CodeMove CodedBody::begin_append(const RowTarget& from, size_t blocks) {
  reserve_more(blocks);
  const auto offset = static_cast<size_t>(from.row) * site_.dim * 2;
  const auto job = [&](const void* rows, Part codes, Part side) {
    return CodeJob{static_cast<const std::byte*>(rows) + offset, from.head_stride,
                   at(codes, 0, blocks_), at(side, 0, blocks_), capacity_};
  };
  const CodeMove move{codec_.get(), job(from.k, kKeyCodes, kKeySide),
                      job(from.v, kValueCodes, kValueSide)};
  blocks_ += blocks;
  return move;
}

void CodedBody::append(const RowTarget& from, size_t blocks) {
  if (blocks == 0) return;
  const CodeMove move = begin_append(from, blocks);
  const CodeBatch batch{dtype_, static_cast<int>(site_.heads), static_cast<int>(blocks * 32),
                        static_cast<int>(site_.dim)};
  codec_->code(batch, {&move.keys, 1}, {&move.values, 1}, site_.stream);
}

DeviceSpan CodedBody::span(size_t head) const {
  DeviceSpan span;
  span.coded = 1;
  span.rows = static_cast<int32_t>(rows());
  if (blocks_ == 0) return span;
  span.keys = at(kKeyCodes, head, 0);
  span.key_side = at(kKeySide, head, 0);
  span.values = at(kValueCodes, head, 0);
  span.value_side = at(kValueSide, head, 0);
  return span;
}

void CodedBody::unpack(const RowTarget& to, size_t first, size_t blocks) const {
  UnpackRowsCall call;
  call.block_stride = capacity_;
  call.heads = static_cast<int>(site_.heads);
  call.blocks = static_cast<int>(blocks);
  call.head_dim = static_cast<int>(site_.dim);
  call.dtype = dtype_;
  call.head_stride = to.head_stride;
  call.codes = at(kKeyCodes, 0, first);
  call.side = at(kKeySide, 0, first);
  call.out = to.k;
  codec_->unpack_keys(call, site_.stream);
  call.codes = at(kValueCodes, 0, first);
  call.side = at(kValueSide, 0, first);
  call.out = to.v;
  codec_->unpack_values(call, site_.stream);
}

void CodedBody::add_to(Ledger& ledger) const {
  for (size_t part = 0; part < kParts; ++part) {
    const size_t held = site_.heads * blocks_ * bytes_[part];
    (part % 2 == 0 ? ledger.payload : ledger.metadata) += held;
    ledger.slack += buffers_[part].size() - held;
  }
  ledger.rows_kept += rows() * site_.heads;
}

}  // namespace pith::cuda
