#include "kernels/cuda/tile_matvec.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/tile_launch.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

struct Sizes {
  uint32_t step = 0, sub = 0;  // inputs of a step and of a scale
};

Sizes sizes_of(WeightType type) {
  Sizes s;
  with_block_type(type, [&]<WeightType kType> {
    s = {TileFormat<kType>::kStep, TileFormat<kType>::kSub};
  });
  return s;
}

uint32_t divide_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/// A block's shared memory for groups of `tokens` tokens of w's inputs.
TileShared shared_of(const TiledMatrix& w, size_t tokens, uint32_t groups = 1) {
  const Sizes sizes = sizes_of(w.type);
  const uint32_t inputs = divide_up(static_cast<uint32_t>(w.in), sizes.step) * sizes.step;
  return {inputs, static_cast<uint32_t>(tokens), sizes.sub, groups};
}
size_t most_bytes() { return device_info().shared_per_block - 1024; }
bool fits(const TileShared& shared) { return shared.bytes(1, 2) <= most_bytes(); }

/// The largest number of tokens, of 1, 2 and 4, up to `wanted`, whose activations fit a block.
uint32_t tokens_that_fit(const TiledMatrix& w, size_t wanted) {
  for (uint32_t tokens : {4u, 2u, 1u}) {
    if (tokens > 1 && tokens / 2 >= wanted) continue;
    if (fits(shared_of(w, tokens))) return tokens;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("a weight matrix of {} x {} {} on the GPU: a multiprocessor has no room "
                          "for so many inputs; use --device cpu",
                          w.out, w.in, to_string(w.type)));
}

/// How the product is cut, so that the slowest block has least to do.
TileMatvecParams cut(const TileMatvecCall& call, const TileShared& shared) {
  TileMatvecParams p{.call = call};
  const auto parts = static_cast<uint32_t>(parts_of(call.end));
  const auto processors = static_cast<uint32_t>(device_info().multiprocessors);
  p.groups = shared.groups;
  p.steps = shared.inputs / sizes_of(call.w.type).step;
  p.units = divide_up(static_cast<uint32_t>(call.w.out) / parts, kTileRows);
  uint32_t least = ~0u;
  for (uint32_t log = 0; 1u << log <= std::min<uint32_t>(kTileWarps, p.steps); ++log) {
    const uint32_t rounds = divide_up(p.units, processors * (kTileWarps >> log));
    const uint32_t cost = rounds * divide_up(p.steps, 1u << log);
    if (cost > least) continue;
    least = cost;
    p.split_log = log;
  }
  const uint32_t all = divide_up(p.units, p.together());
  for (uint32_t waves = 1;; ++waves) {
    p.blocks = std::min(all, processors * waves);
    p.rounds = divide_up(all, p.blocks);
    p.shared_bytes = shared.bytes(p.rounds, parts);
    if (p.shared_bytes <= most_bytes()) return p;
  }
}

/// The most groups of coded tokens, of 1, 2 and 4, that a block has room for; no more than half of
/// them are empty.
uint32_t groups_that_fit(const TiledMatrix& w, size_t tokens) {
  for (uint32_t groups : {4u, 2u}) {
    if (groups / 2 * kTokensAtOnce >= tokens) continue;
    if (fits(shared_of(w, kTokensAtOnce, groups))) return groups;
  }
  return 1;
}

}  // namespace

size_t coded_inputs_bytes(const TiledMatrix& w, size_t tokens) {
  const size_t group = shared_of(w, kTokensAtOnce).group();
  return group * ((tokens + kTokensAtOnce - 1) / kTokensAtOnce);
}

bool gate_fits(const TiledMatrix& w) { return w.out % (2 * kTileRows) == 0; }

void tile_matvec(const TileMatvecCall& call, cudaStream_t stream) {
  if (call.w.out == 0 || call.w.in == 0 || sizes_of(call.w.type).step == 0 ||
      (parts_of(call.end) == 2 && !gate_fits(call.w))) {
    throw Error(ErrorCode::kInternal, fmt::format("a product of {} x {} {} in tiles", call.w.out,
                                                  call.w.in, to_string(call.w.type)));
  }
  const bool small = block_elements(call.w.type) == 32;
  if (call.coded && call.tokens > kTokensAtOnce && fits(shared_of(call.w, kTokensAtOnce))) {
    const uint32_t groups = groups_that_fit(call.w, call.tokens);
    const auto launch = small ? launch_small_groups : launch_large_groups;
    return launch(cut(call, shared_of(call.w, kTokensAtOnce, groups)), stream);
  }
  TileMatvecCall some = call;
  some.coded = nullptr;
  for (size_t done = 0; done < call.tokens; done += some.tokens) {
    const size_t wanted = call.together ? kTokensAtOnce : call.tokens - done;
    const uint32_t tokens = tokens_that_fit(call.w, wanted);
    some.tokens = std::min<size_t>(tokens, call.tokens - done);
    some.x = call.x + done * call.w.in;
    some.y = call.y + done * call.ld;
    const TileMatvecParams p = cut(some, shared_of(call.w, tokens));
    const auto launch = small ? launch_small_tiles : launch_large_tiles;
    launch(p, static_cast<int>(tokens), stream);
  }
}

}  // namespace pith::cuda
