#include "cache/cuda/coded_body.h"

#include <algorithm>
#include <vector>

namespace pith::cuda {

namespace {

constexpr size_t kPieceRows = 8192;  // unpacked at a time

}  // namespace

CodedBody::CodedBody(std::shared_ptr<const DeviceCodec> codec, const BodySite& site)
    : codec_(std::move(codec)), site_(site) {
  const GroupedBytes bytes = codec_->block_bytes(static_cast<int>(site.dim));
  bytes_ = {bytes.key_codes, bytes.key_side, bytes.value_codes, bytes.value_side};
}

CodedBody::CodedBody(const CodedBody& other) : CodedBody(other.codec_, other.site_) {
  if (other.capacity_ > 0) move_to(other.capacity_, other);
}

void CodedBody::announce(size_t rows) {
  const size_t needed = blocks_ + rows / 32, most = (site_.context + 31) / 32;
  if (needed > capacity_) {
    size_t capacity = std::max({needed, capacity_ + capacity_ / 8, size_t{4}});
    if (needed <= most) capacity = std::min(capacity, most);
    move_to(capacity, *this);
  }
  blocks_ = needed;
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

void CodedBody::take(std::span<const BodyMove> moves) const {
  std::vector<CodeJob> keys, values;
  for (const BodyMove& move : moves) {
    const auto& body = static_cast<const CodedBody&>(*move.body);
    const auto offset = static_cast<size_t>(move.from.row) * site_.dim * 2;
    const size_t block = body.blocks_ - move.rows / 32;
    const auto job = [&](const void* rows, Part codes, Part side) {
      return CodeJob{static_cast<const std::byte*>(rows) + offset, move.from.head_stride,
                     body.at(codes, 0, block), body.at(side, 0, block), body.capacity_};
    };
    keys.push_back(job(move.from.k, kKeyCodes, kKeySide));
    values.push_back(job(move.from.v, kValueCodes, kValueSide));
  }
  const CodeBatch batch{site_.dtype, static_cast<int>(site_.heads),
                        static_cast<int>(moves.front().rows), static_cast<int>(site_.dim)};
  codec_->code(batch, keys, values, site_.stream);
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
  call.dtype = site_.dtype;
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

void CodedBody::attend_chunk(CausalCall& call, const std::function<RowTarget()>& piece) const {
  const float log_weight = call.span.log_weight;
  for (size_t first = 0; first < rows(); first += kPieceRows) {
    const size_t count = std::min(kPieceRows, rows() - first);
    const RowTarget to = piece();
    unpack(to, first / 32, count / 32);
    call.span = {to.k, to.v, to.head_stride, static_cast<int64_t>(count), -1, log_weight};
    cuda::attend_chunk(call, site_.stream);
    call.first = false;
  }
}

void CodedBody::add_rows(pith::HeadRows& out, size_t, int64_t first_position) const {
  for (size_t i = 0; i < rows(); ++i) {
    out.positions.push_back(first_position + static_cast<int64_t>(i));
    out.log_weights.push_back(0);
  }
}

void CodedBody::add_to(Ledger& ledger) const {
  for (size_t part = 0; part < kParts; ++part) {
    const size_t held = site_.heads * blocks_ * bytes_[part];
    (part % 2 == 0 ? ledger.payload : ledger.metadata) += held;
    ledger.slack += buffers_[part].size() - held;
  }
  ledger.shared += codec_->shared_bytes();
  ledger.rows_kept += rows() * site_.heads;
}

}  // namespace pith::cuda
