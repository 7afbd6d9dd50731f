#include "kernels/cuda/mixed_matrix.h"

#include <algorithm>

#include "kernels/block_tiles.h"
#include "pith/error.h"

namespace pith::cuda {

namespace {

// About what the card reads between one product's last weights and the next one's first.
constexpr size_t kNextBytes = size_t{16} << 20;

NextWeights next_weights(const MixedMatrix* w) {
  if (!w || !w->parts[0].tiled()) return {};
  const MatrixPart& part = w->parts[0];
  const size_t bytes = tile_counts(part.type, part.out, w->in).bytes();
  if (!w->halves) return {{part.data, nullptr}, std::min(kNextBytes, bytes)};
  return {{part.data, part.data + bytes / 2}, std::min(kNextBytes, bytes) / 2};
}

}  // namespace

bool MixedMatrix::tiled() const {
  return std::all_of(parts.begin(), parts.end(), [](const MatrixPart& p) { return p.tiled(); });
}

bool MixedMatrix::gate_fuses() const {
  return parts.size() == 1 && (!parts[0].tiled() || gate_fits(tiles(parts[0])));
}

size_t coded_inputs_bytes(const MixedMatrix& w, size_t tokens) {
  size_t most = 0;
  for (const MatrixPart& part : w.parts) {
    if (part.tiled()) most = std::max(most, coded_inputs_bytes(w.tiles(part), tokens));
  }
  return most;
}

void few_tokens(const FewTokensCall& call, cudaStream_t stream) {
  const MixedMatrix& w = *call.w;
  if (parts_of(call.end) == 2 && !w.gate_fuses())
    throw Error(ErrorCode::kInternal, "a gate over a matrix of several types");
  const size_t ld = w.out / static_cast<size_t>(parts_of(call.end));
  size_t first = 0;
  for (const MatrixPart& part : w.parts) {
    const float* bias = call.bias ? call.bias + first : nullptr;
    if (part.tiled()) {
      tile_matvec({call.y + first, ld, w.tiles(part), call.x, call.norm, call.eps, bias, call.end,
                   call.tokens, call.together, next_weights(call.next), call.coded},
                  stream);
    } else {
      matvec({call.y + first, ld, w.dense(part), call.x, call.norm, call.eps, bias, call.end,
              call.tokens, call.together},
             stream);
    }
    first += part.out;
  }
}

}  // namespace pith::cuda
