// Runs of many rows, halved by all blocks of the device. A walk is sequential, but most of a
// halving is the kernel between its rows: sums of rows that are still to come grow by a panel's
// part as soon as the panel has been walked through. Each number is added in the order in which one
// block would add it.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "select/cuda/halving_run.cuh"

namespace pith::cuda {
namespace {

constexpr int kPanelTiles = kWidePanel / kWalkTile;
constexpr int kTileSums = 2 * kWalkThreads;  // of a thread two rows
static_assert(WideRoom::kTile == kWalkTile && WideRoom::kTileSums == kTileSums);

/// A launch's parameters. The room of a run is WideRoom's; sums are [tiles, 2, threads].
struct WideCall {
  DeviceHalvingRule rule;
  HalvingCall call;
  float* room;
  int first, end;  // tiles of the panel
};

/// Known of a run between launches.
struct WideState {
  RunConstants constants;
  WalkState walk;
};
static_assert(sizeof(WideState) <= WideRoom::kKnown * sizeof(float));

/// The run of this block.
template <class T, int D>
struct WideRun {
  const WideCall& p;
  size_t head = blockIdx.z, group = blockIdx.y;
  RunRows rows = rows_of(p.call, head, group);
  float* room = p.room + (head * p.call.groups + group) * WideRoom::numbers_of_run(p.call.size);
  RunSpace<D, true> space = {launched_shared<char>(), RunSpace<D, true>::padded(p.call.size),
                             room + WideRoom::kKnown};

  __device__ WideState& state() const { return *reinterpret_cast<WideState*>(room); }
  /// This thread's share of a tile's sums.
  __device__ float* sums(int tile) const {
    return space.outside + 2 * space.rows + tile * kTileSums + threadIdx.x;
  }
  __device__ void load(float (&sum)[2], int tile) const {
    sum[0] = sums(tile)[0];
    sum[1] = sums(tile)[kWalkThreads];
  }
  __device__ void store(const float (&sum)[2], int tile) const {
    sums(tile)[0] = sum[0];
    sums(tile)[kWalkThreads] = sum[1];
  }
};

/// Blocks (1, group, head): the panel is walked through; behind the last the survivors are named.
template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads, 1)
    walk_panel_kernel(const __grid_constant__ WideCall p) {
  wait_for_predecessor();
  let_successor_start();
  const WideRun<T, D> run{p};
  const HalvingRandom random = random_of(p.call, run.head);
  const bool flip = random.coin(run.rows.position(0));
  HalvingBlock<T, D, true> block{p.rule, run.rows, run.space};
  WalkState walk;
  if (p.first == 0) {
    block.c = block.measure();
    walk = block.begin_walk();
  } else {
    block.c = run.state().constants;
    walk = run.state().walk;
  }
  for (int tile = p.first; tile < p.end; ++tile) {
    float sum[2] = {0, 0};
    if (p.first > 0) run.load(sum, tile);
    block.template add_tiles<true>(sum, tile, p.first, tile);
    block.walk_tile(walk, sum, tile, random, flip);
  }
  if (threadIdx.x == 0) run.state() = {block.c, walk};
  if (p.end * kWalkTile < p.call.size) return;
  const RunOutput out = output_of(p.call, run.head, run.group, p.call.size / 2);
  keep_pairs(out, run.rows, run.space.signs(), flip, threadIdx.x, kWalkThreads);
  if (out.failures && threadIdx.x == 0) *out.failures = walk.failures;
}

/// Blocks (tile behind the panel, group, head).
template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads, D > 128 ? 1 : 2)
    add_panel_kernel(const __grid_constant__ WideCall p) {
  wait_for_predecessor();
  let_successor_start();
  const WideRun<T, D> run{p};
  HalvingBlock<T, D, true> block{p.rule, run.rows, run.space};
  block.c = run.state().constants;
  const int tile = p.end + static_cast<int>(blockIdx.x);
  float sum[2] = {0, 0};
  if (p.first > 0) run.load(sum, tile);
  block.template add_tiles<false>(sum, tile, p.first, p.end);
  run.store(sum, tile);
}

template <class T, int D>
void launch(const DeviceHalvingRule& rule, const HalvingCall& call, float* room,
            cudaStream_t stream) {
  const int tiles = RunSpace<D, true>::padded(call.size) / kWalkTile;
  const size_t bytes = RunSpace<D, true>::bytes(call.size);
  for (int first = 0; first < tiles; first += kPanelTiles) {
    const WideCall p{rule, call, room, first, min(first + kPanelTiles, tiles)};
    const auto shape = [&](int blocks) {
      return LaunchShape{dim3(blocks, call.groups, call.heads), kWalkThreads, bytes};
    };
    launch_early(walk_panel_kernel<T, D>, shape(1), p, stream, "halving");
    if (p.end < tiles) {
      launch_early(add_panel_kernel<T, D>, shape(tiles - p.end), p, stream, "halving");
    }
  }
}

}  // namespace

size_t wide_numbers(const HalvingCall& call) {
  return static_cast<size_t>(call.heads) * call.groups * WideRoom::numbers_of_run(call.size);
}

void halve_wide(const DeviceHalvingRule& rule, const HalvingCall& call, float* room,
                cudaStream_t stream) {
  call.check(rule);
  with_rows_of<256>(call.dtype, call.dim,
                    [&]<class T, int D>() { launch<T, D>(rule, call, room, stream); });
}

}  // namespace pith::cuda
