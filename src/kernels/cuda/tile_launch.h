#pragma once
// Between the host's and the device's halves of tile_matvec.h: how a product is cut.

#include "kernels/block_tiles.h"
#include "kernels/cuda/tile_matvec.h"

namespace pith::cuda {

inline constexpr int kTileWarpsLog = 4, kTileWarps = 1 << kTileWarpsLog;  // of a block

struct TileMatvecParams {
  TileMatvecCall call;
  uint32_t units = 0;      ///< tiles, or pairs of tiles if gated
  uint32_t steps = 0;      ///< of a tile
  uint32_t split_log = 0;  ///< 2^this warps share a tile
  uint32_t rounds = 1;     ///< units that a warp sees at most
  uint32_t blocks = 1;
  uint32_t groups = 1;  ///< of tokens, that a block sees, if they are coded
  size_t shared_bytes = 0;

  PITH_BOTH_SIDES uint32_t split() const { return 1u << split_log; }
  /// Units that a block's warps see together.
  PITH_BOTH_SIDES uint32_t together() const { return kTileWarps >> split_log; }
};

/// Of a group of kSub activations of a token.
struct alignas(16) InputSide {
  float scale, sum;  ///< sum: scale times the sum of its whole numbers
  int high, low;     ///< -kZero times the sums of their high and of their low bytes
};

/// Where a block's shared memory has what: bytes of activations and what goes with them, for each
/// group of tokens; then sums. Coded activations lie in global memory as a group's do here.
struct TileShared {
  uint32_t inputs, tokens, sub;  ///< inputs: padded to whole steps; tokens: of a group
  uint32_t groups = 1;

  /// Of a token's bytes. Tokens lie so that their columns of a product are in other banks.
  PITH_BOTH_SIDES uint32_t token() const { return 2 * inputs + (tokens > 1 ? 64 : 0); }
  PITH_BOTH_SIDES uint32_t sides() const { return tokens * token(); }
  PITH_BOTH_SIDES uint32_t group() const {
    return sides() + tokens * (inputs / sub) * static_cast<uint32_t>(sizeof(InputSide));
  }
  PITH_BOTH_SIDES uint32_t sums() const { return groups * group(); }
  /// [rounds, kTileWarps / split, parts, split, groups, 2, 32] f32: of rows r and r + 8, a lane
  /// each
  PITH_BOTH_SIDES uint32_t bytes(uint32_t rounds, uint32_t parts) const {
    return sums() +
           rounds * parts * groups * kTileWarps * 64 * static_cast<uint32_t>(sizeof(float));
  }
};

/// Both launch the kernel of p's type, for up to `tokens` (1, 2 or 4) tokens.
void launch_small_tiles(const TileMatvecParams& p, int tokens, cudaStream_t stream);
void launch_large_tiles(const TileMatvecParams& p, int tokens, cudaStream_t stream);
/// Both code p.call's tokens, and multiply them by p.groups (1, 2 or 4) groups a block.
void launch_small_groups(const TileMatvecParams& p, cudaStream_t stream);
void launch_large_groups(const TileMatvecParams& p, cudaStream_t stream);

}  // namespace pith::cuda
