#include "attend/cuda/level_codec.h"

#include <fmt/format.h>

#include <algorithm>

namespace pith::cuda {

GroupedBytes LevelFormat::bytes(int dim) const {
  const auto of = [](int n) { return static_cast<size_t>(n); };
  return {of(keys.code_bytes(dim)), of(keys.side_bytes(dim)), of(values.code_bytes(dim)),
          of(values.side_bytes(dim))};
}

size_t LevelCodec::block_rows() const {
  return static_cast<size_t>(std::max(format_.keys.group_rows(), format_.values.group_rows()));
}

void LevelCodec::code(const CodeBatch& batch, std::span<const CodeJob> keys,
                      std::span<const CodeJob> values, cudaStream_t stream) const {
  code_levels(format_.keys, key_random_, batch, keys, stream);
  code_levels(format_.values, value_random_, batch, values, stream);
}

int level_group(const std::string& what, size_t rows) {
  for (const int blocks : {1, 2, 4, 8}) {
    if (rows == static_cast<size_t>(blocks * kBlockRows)) return blocks;
  }
  refuse_on_gpu(what, "groups there are 32, 64, 128 or 256 rows");
}

void centre_keys(LevelSide& keys, const std::string& what, size_t rows) {
  if (rows == 0) return;
  keys.group_blocks = level_group(fmt::format("{}(center={})", what, rows), rows);
  keys.centred = true;
  keys.rank = 1;
}

}  // namespace pith::cuda
