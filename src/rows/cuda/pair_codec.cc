#include "rows/cuda/pair_codec.h"

#include "rows/cuda/level_codec.h"

namespace pith::cuda {

GroupedBytes PairCodec::block_bytes(int head_dim) const {
  const GroupedBytes k = keys_->block_bytes(head_dim), v = values_->block_bytes(head_dim);
  return {k.key_codes, k.key_side, v.value_codes, v.value_side};
}

void PairCodec::code(const CodeBatch& batch, std::span<const CodeJob> keys,
                     std::span<const CodeJob> values, cudaStream_t stream) const {
  keys_->code(batch, keys, {}, stream);
  values_->code(batch, {}, values, stream);
}

std::shared_ptr<const DeviceCodec> PairCodec::with_rows_alone(int head_dim) const {
  if (!keys_->with_rows_alone(head_dim)) return nullptr;
  return mix_levels(keys_->as_levels(), values_->as_levels())->with_rows_alone(head_dim);
}

}  // namespace pith::cuda
