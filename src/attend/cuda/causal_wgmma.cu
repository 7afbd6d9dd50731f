#include <algorithm>

#include "attend/cuda/causal_wgmma.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"

namespace pith::cuda {
namespace {

/// Over several spans a block a multiprocessor, whose shared memory and registers are for one.
template <class T, int D, ChunkKind kKind, bool kOne>
void launch_as(const CausalCall& call, std::span<const CausalSpan> spans, cudaStream_t stream) {
  using Form = ChunkForm<D, kKind, kOne>;
  const ChunkParams params = chunk_params<Form>(call, spans);
  const int items = call.query_heads * params.blocks;
  const int blocks = kOne ? items : std::min(items, device_info().multiprocessors);
  launch_kernel(chunk_kernel<T, Form>, {blocks, Form::kThreads, ChunkSpace<Form>::kBytes}, stream,
                "prefill attention", params);
}

template <class T, int D, ChunkKind kKind>
void launch_of(const CausalCall& call, std::span<const CausalSpan> spans, cudaStream_t stream) {
  spans.size() == 1 ? launch_as<T, D, kKind, true>(call, spans, stream)
                    : launch_as<T, D, kKind, false>(call, spans, stream);
}

template <class T, int D>
void launch(const CausalCall& call, std::span<const CausalSpan> spans, cudaStream_t stream) {
  const auto slides = [&](const CausalSpan& span) { return span.bounded(call.tokens); };
  const auto weighted = [](const CausalSpan& span) { return span.log_weights != nullptr; };
  if (call.soft_cap != 0)
    launch_as<T, D, ChunkKind::kCapped, false>(call, spans, stream);
  else if (std::ranges::any_of(spans, slides))
    launch_of<T, D, ChunkKind::kBounded>(call, spans, stream);
  else if (std::ranges::any_of(spans, weighted))
    launch_of<T, D, ChunkKind::kWeighted>(call, spans, stream);
  else
    launch_of<T, D, ChunkKind::kPlain>(call, spans, stream);
}

}  // namespace

void launch_chunk_wgmma(const CausalCall& call, std::span<const CausalSpan> spans,
                        cudaStream_t stream) {
  with_rows_of<256>(call.dtype, call.head_dim,
                    [&]<class T, int D>() { launch<T, D>(call, spans, stream); });
}

}  // namespace pith::cuda
