// Express, one block per KV head and job: a job's rows in one launch.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "methods/selectors/express/express_stream.cuh"

namespace pith::cuda {
namespace {

/// A block per head and job.
template <class T, int D>
__global__ void __launch_bounds__(kWalkThreads, 1)
    take_kernel(const __grid_constant__ ExpressJobs jobs) {
  auto* shared = launched_shared<char>();
  const int head = static_cast<int>(blockIdx.x);
  const ExpressJob& job = jobs.job[blockIdx.y];
  if (head >= job.site.heads) return;
  HeadStream<T, D>(job, head, shared).take(job.rows, head, {});
}

template <class T, int D>
void launch(const ExpressJobs& jobs, cudaStream_t stream) {
  size_t bytes = sizeof(BucketSpace);
  int heads = 0;
  for (int i = 0; i < jobs.count; ++i) {
    const ExpressJob& job = jobs.job[i];
    bytes = max(bytes, RunSpace<D>::bytes(static_cast<int>(job.rule.shape.target)));
    heads = max(heads, job.site.heads);
  }
  launch_kernel(take_kernel<T, D>, {dim3(heads, jobs.count), kWalkThreads, bytes}, stream,
                "express", jobs);
}

}  // namespace

void express_take(const ExpressJobs& jobs, cudaStream_t stream) {
  const ExpressSite& any = jobs.job[0].site;
  with_rows_of<256>(any.dtype, any.dim, [&]<class T, int D>() { launch<T, D>(jobs, stream); });
}

}  // namespace pith::cuda
