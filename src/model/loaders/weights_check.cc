// Finds NaN and infinity in weights. Of block types only the scales can hold any.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/finite.h"
#include "core/thread_pool.h"
#include "model/loaders/weights.h"
#include "pith/error.h"

namespace pith {
namespace {

/// A number's exponent is all ones in f16 too.
bool has_non_finite_scale(const std::byte* blocks, WeightType type, size_t count) {
  const size_t stride = block_bytes(type);
  for (const uint8_t offset : scale_offsets(type)) {
    bool found = false;
    for (size_t i = 0; i < count; ++i) {
      uint16_t scale = 0;
      std::memcpy(&scale, blocks + i * stride + offset, sizeof(scale));
      found |= (scale & 0x7C00) == 0x7C00;
    }
    if (found) return true;
  }
  return false;
}

}  // namespace

void check_finite_weights(const ModelTensors& tensors, const Progress& progress) {
  constexpr size_t kPiece = size_t{1} << 22;  // bytes a task looks at, about
  struct Piece {
    const ModelTensor* tensor;
    const std::byte* data;
    size_t blocks;
  };
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : tensors.tensors()) {
    if (name.ends_with(".rotary_emb.inv_freq")) continue;
    const size_t block = block_bytes(tensor.weights());
    const size_t blocks = tensor.bytes / block, piece = kPiece / block;
    for (size_t first = 0; first < blocks; first += piece) {
      pieces.push_back({&tensor, tensor.data + first * block, std::min(piece, blocks - first)});
    }
  }
  ThreadPool pool;
  const size_t batch = 32 * static_cast<size_t>(pool.size());
  for (size_t done = 0; done < pieces.size(); done += batch) {
    if (progress && !progress(done, pieces.size())) {
      throw Error(ErrorCode::kIo, "loading was stopped on request");
    }
    pool.parallel_for(std::min(batch, pieces.size() - done), [&](size_t i, int) {
      const auto [tensor, data, blocks] = pieces[done + i];
      const WeightType type = tensor->weights();
      const std::optional<DType> dense = dense_type(type);
      if (dense ? !has_non_finite(data, *dense, blocks)
                : !has_non_finite_scale(data, type, blocks)) {
        return;
      }
      throw Error(ErrorCode::kNonFinite,
                  fmt::format("{}: tensor '{}' contains NaN or infinity; the file is damaged or "
                              "its training diverged",
                              tensor->file, tensor->name));
    });
  }
  if (progress) progress(pieces.size(), pieces.size());
}

}  // namespace pith
