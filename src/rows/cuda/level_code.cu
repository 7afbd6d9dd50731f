// Coding of rows of levels (level_format.h): a thread block per group of rows that share something,
// a warp per row. The steps are the CPU's, each where the format has it: the group's mean is taken
// off, rows are transformed, numbers that stand out are taken away, codes are chosen, and what they
// miss becomes a product of rank r.
//
// Cost a group of n rows: n D numbers read, 4 n D bytes of shared memory; a product 24 r n D
// multiply-adds in f64.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "rows/cuda/level_coder.cuh"

namespace pith::cuda {
namespace {

struct CoderParams {
  PlacedSide side;
  uint64_t seed;
  uint32_t layer, stream;  // see LevelRandom
};

template <class T, int D, LevelForm kForm>
__global__ void __launch_bounds__(kCoderThreads)
    code_kernel(const __grid_constant__ LevelJobs jobs, const __grid_constant__ CoderParams p) {
  auto* shared = launched_shared<char>();
  const CodeJob& job = jobs.of[blockIdx.z];
  const PlacedSide& f = p.side;
  const int n = kBlockRows * f.group_blocks, head = blockIdx.y;
  const int first = blockIdx.x * n;  // row
  const GroupSpace<D> space{shared, n, f.bits, f.apart, f.group_blocks};
  const T* from = static_cast<const T*>(job.x) + head * job.head_stride;
  const Coder<D, kForm> coder{f, space, target_of<D>(job, f, first / kBlockRows), head};
  if (f.turns) {
    for (int i = threadIdx.x; i < n * D; i += kCoderThreads) {
      const int row = first + i / D;
      const float x = turned_back(from + static_cast<size_t>(row) * D, i % D, D, f.turns,
                                  job.positions.of(head, row));
      space.rows()[i] = f.means ? x - head_mean<D>(f, head, i % D) : x;
    }
  } else {  // several are on their way together
    const T* group = from + static_cast<size_t>(first) * D;
#pragma unroll 8
    for (int i = threadIdx.x; i < n * D; i += kCoderThreads) space.rows()[i] = to_float(group[i]);
  }
  for (int i = threadIdx.x; i < n * (D * f.bits / 32) + 4; i += kCoderThreads) space.codes()[i] = 0;
  if constexpr (is_named(kForm)) coder.write_names(job.positions, first);
  __syncthreads();
  if (f.centred) coder.take_mean();
  if (f.rotated) coder.rotate();
  if (f.missed) coder.take_apart(f.scale == LevelScale::kBlockChannel);
  if (f.scale == LevelScale::kBlockChannel) coder.find_channel_ranges();
  coder.for_rows([&](int row) { coder.code_row(row); });
  __syncthreads();
  coder.write_codes();
  if (!f.missed) return;
  if (f.rank > 0) {
    coder.write_product(Philox(p.seed, p.layer, p.stream + 2 * head));
    __syncthreads();
  }
  coder.write_missed();
}

/// Rows of 16 bits: a block 32 of them.
template <class T, class Row, int D>
__global__ void __launch_bounds__(kCoderThreads)
    copy_kernel(const __grid_constant__ LevelJobs jobs) {
  const CodeJob& job = jobs.of[blockIdx.z];
  const int head = blockIdx.y, block = blockIdx.x;
  const T* from = static_cast<const T*>(job.x) + head * job.head_stride +
                  static_cast<size_t>(block) * kBlockRows * D;
  Row* to = static_cast<Row*>(job.codes) +
            (head * job.block_stride + block) * static_cast<size_t>(kBlockRows * D);
  for (int i = threadIdx.x; i < kBlockRows * D; i += kCoderThreads) {
    to[i] = from_float<Row>(to_float(from[i]));
  }
}

template <class T, int D>
void launch(const CoderParams& p, const CodeBatch& batch, std::span<const CodeJob> all,
            cudaStream_t stream) {
  const bool coded = p.side.bits < 16;
  const size_t bytes = coded ? GroupSpace<D>::bytes(p.side) : 0;
  check_level_room("coding a group of rows", bytes);
  const auto kernel =
      for_level_form<D>(p.side.form(), [&]<LevelForm kForm>() { return code_kernel<T, D, kForm>; });
  const auto copy = p.side.bf16 ? copy_kernel<T, __nv_bfloat16, D> : copy_kernel<T, __half, D>;
  for_jobs(all, [&](const LevelJobs& jobs, size_t count) {
    const dim3 grid(batch.rows / p.side.group_rows(), batch.heads, count);
    if (coded) {
      launch_kernel(kernel, {grid, kCoderThreads, bytes}, stream, "coding of rows of levels", jobs,
                    p);
    } else {
      launch_kernel(copy, {grid, kCoderThreads}, stream, "coding of rows of levels", jobs);
    }
  });
}

}  // namespace

void code_levels(const LevelSide& side, const LevelRandom& random, const CodeBatch& batch,
                 std::span<const CodeJob> jobs, cudaStream_t stream) {
  if (batch.rows == 0 || jobs.empty()) return;
  with_rows_of<256>(batch.dtype, batch.head_dim, [&]<class T, int D>() {
    launch<T, D>({{side, D}, random.seed, random.layer, random.first}, batch, jobs, stream);
  });
}

}  // namespace pith::cuda
