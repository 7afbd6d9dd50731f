#include "attend/cuda/causal_wgmma.cuh"
#include "kernels/cuda/launch.cuh"

namespace pith::cuda {
namespace {

template <class T, int D, ChunkKind kKind>
void launch_as(const CausalCall& call, cudaStream_t stream) {
  using Form = ChunkForm<D, kKind>;
  const LaunchShape shape{chunk_grid<Form>(call), Form::kThreads,
                          ChunkSpace<Form>::bytes(call.span)};
  launch_kernel(chunk_kernel<T, Form>, shape, stream, "prefill attention",
                chunk_params<Form>(call));
}

template <class T, int D>
void launch(const CausalCall& call, cudaStream_t stream) {
  if (call.bounded()) return launch_as<T, D, ChunkKind::kBounded>(call, stream);
  call.span.log_weights ? launch_as<T, D, ChunkKind::kWeighted>(call, stream)
                        : launch_as<T, D, ChunkKind::kPlain>(call, stream);
}

}  // namespace

void attend_chunk_wgmma(const CausalCall& call, cudaStream_t stream) {
  call.check();
  with_rows_of<256>(call.dtype, call.head_dim,
                    [&]<class T, int D>() { launch<T, D>(call, stream); });
}

}  // namespace pith::cuda
