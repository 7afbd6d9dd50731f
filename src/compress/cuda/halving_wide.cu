// Kernel halving of few long runs by the whole card: row terms (one block a run), differences of
// the kernel over pairs (a block a tile of 32 x 32), then the walk over them (one block a run). 0.1
// ms for 2048 rows, where a block alone takes 1 ms; (S/2)^2 floats a run are written and read once.

#include "compress/cuda/halving_run.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"

namespace pith::cuda {
namespace {

constexpr int kPairs = kWalkTile / 2;  // of a tile
constexpr int kWalkers = 1024;

/// A run's scratch.
struct WideRun {
  float* differences;  // [P, P], D(a, b) for tiles of a up to b's
  float* offsets;      // [S]
  float* constants;    // [2] RunConstants' constant, bound

  static __device__ WideRun at(const HalvingCall& call, size_t run) {
    const size_t pairs = call.size / 2;
    float* base = call.scratch + run * (pairs * pairs + call.size + 64);
    return {base, base + pairs * pairs, base + pairs * pairs + call.size};
  }
};

template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads)
    measure_kernel(const __grid_constant__ DeviceHalvingRule rule,
                   const __grid_constant__ HalvingCall call) {
  auto* shared = launched_shared<char>();
  const RunRows rows = rows_of(call, blockIdx.y, blockIdx.x);
  const RunSpace<D> space{shared, call.size};
  const RunConstants c = HalvingBlock<T, D>{rule, rows, space}.measure();
  const WideRun run = WideRun::at(call, blockIdx.y * call.groups + blockIdx.x);
  for (int i = threadIdx.x; i < call.size; i += kWalkThreads) run.offsets[i] = space.offsets()[i];
  if (threadIdx.x == 0) run.constants[0] = c.constant;
}

/// Block (x, run): tile x of the upper triangle, column by column.
template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads, 2)
    differences_kernel(const __grid_constant__ DeviceHalvingRule rule,
                       const __grid_constant__ HalvingCall call) {
  auto* shared = launched_shared<char>();
  int later = 0;
  while ((later + 1) * (later + 2) / 2 <= static_cast<int>(blockIdx.x)) ++later;
  const int earlier = static_cast<int>(blockIdx.x) - later * (later + 1) / 2;
  const size_t run_number = blockIdx.y;
  const RunRows rows = rows_of(call, run_number / call.groups, run_number % call.groups);
  const WideRun run = WideRun::at(call, run_number);
  const RunSpace<D> space{shared, 2 * kWalkTile};
  HalvingBlock<T, D> block{rule, rows, space};
  block.fetch(0, earlier * kWalkTile);
  block.fetch(1, later * kWalkTile);
  if (threadIdx.x < 2 * kWalkTile) {
    const int tile = threadIdx.x < kWalkTile ? earlier : later;
    space.offsets()[threadIdx.x] = run.offsets[tile * kWalkTile + threadIdx.x % kWalkTile];
  }
  block.c = {rule.scale * 1.4426950408889634f, run.constants[0], 0};
  wait_for_copies<0>();
  __syncthreads();
  typename HalvingBlock<T, D>::Fragments a;
  block.load_fragments(a);
  float unused[2];
  block.template multiply_tile<true>(unused, a, 0, 1, 1);
  __syncthreads();
  const int pairs = call.size / 2, column = threadIdx.x % kPairs;
  for (int row = threadIdx.x / kPairs; row < kPairs; row += kWalkThreads / kPairs) {
    const float* one = space.diagonal() + 2 * row * kDiagonal + 2 * column;
    const float* two = one + kDiagonal;
    run.differences[static_cast<size_t>(earlier * kPairs + row) * pairs + later * kPairs + column] =
        (one[0] - one[1]) - (two[0] - two[1]);
  }
}

__global__ void __launch_bounds__(kWalkers, 1)
    walk_kernel(const __grid_constant__ DeviceHalvingRule rule,
                const __grid_constant__ HalvingCall call, int kept_size) {
  auto* signs = launched_shared<float>();  // [S], of pairs in the first half until the walk is over
  __shared__ float inside[kPairs][kPairs + 1], parts[kWalkers / kPairs][kPairs];
  const size_t head = blockIdx.y, group = blockIdx.x;
  const RunRows rows = rows_of(call, head, group);
  const WideRun run = WideRun::at(call, head * call.groups + group);
  const HalvingRandom random = random_of(call, head);
  const bool flip = random.coin(rows.position(0));
  const float log_size = logf(2.0f * static_cast<float>(rows.count) / rule.delta);
  WalkState state{rule.balance * (0.5f + log_size), 0, 0};
  const int pairs = call.size / 2, column = threadIdx.x % kPairs, lane = threadIdx.x / kPairs;
  for (int first = 0; first < pairs; first += kPairs) {
    const float* d = run.differences + first + column;
    float sum = 0;
#pragma unroll 16
    for (int a = lane; a < first; a += kWalkers / kPairs) {
      sum += signs[a] * __ldg(d + static_cast<size_t>(a) * pairs);
    }
    parts[lane][column] = sum;
    inside[lane][column] = __ldg(d + static_cast<size_t>(first + lane) * pairs);
    __syncthreads();
    if (threadIdx.x < kWarp) {
      float acc = 0;
#pragma unroll
      for (int i = 0; i < kWalkers / kPairs; ++i) acc += parts[i][column];
      const bool swapped = walk_differences(
          state, acc, kPairs, first == 0,
          [&](int b) { return inside[min(b, column)][max(b, column)]; },
          [&] { return random.walk(rows.position(2 * (first + column))); });
      signs[first + column] = swapped ? -1.0f : 1.0f;
    }
    __syncthreads();
  }
  const RunOutput out = output_of(call, head, group, kept_size);
  for (int b = threadIdx.x; b < pairs; b += kWalkers) {
    out.kept[b] = rows.number(2 * b + ((signs[b] < 0) != flip));
  }
  if (threadIdx.x != 0) return;
  if (out.count) *out.count = pairs;
  if (out.failures) *out.failures = state.failures;
}

template <class T, int D>
void launch(const DeviceHalvingRule& rule, const HalvingCall& call, cudaStream_t stream) {
  const dim3 runs(call.groups, call.heads);
  const size_t run_bytes = RunSpace<D>::bytes(call.size), bytes = RunSpace<D>::bytes(2 * kWalkTile);
  launch_kernel(measure_kernel<T, D>, {runs, kWalkThreads, run_bytes}, stream, "halving", rule,
                call);
  const int tiles = call.size / kWalkTile;
  const dim3 grid(tiles * (tiles + 1) / 2, call.heads * call.groups);
  launch_kernel(differences_kernel<T, D>, {grid, kWalkThreads, bytes}, stream, "halving", rule,
                call);
  launch_kernel(walk_kernel, {runs, kWalkers, size_t{2} * call.size}, stream, "halving", rule, call,
                call.kept_size(rule));
}

}  // namespace

void halve_wide(const DeviceHalvingRule& rule, const HalvingCall& call, cudaStream_t stream) {
  const bool bf16 = call.dtype == DType::kBF16;
  if (call.dim == 64) {
    bf16 ? launch<__nv_bfloat16, 64>(rule, call, stream) : launch<__half, 64>(rule, call, stream);
  } else {
    bf16 ? launch<__nv_bfloat16, 128>(rule, call, stream) : launch<__half, 128>(rule, call, stream);
  }
}

}  // namespace pith::cuda
