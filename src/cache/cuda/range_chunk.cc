#include "cache/cuda/range_chunk.h"

#include "cache/cuda/head_stores.h"

namespace pith::cuda {
namespace {

/// Columns [offset, offset + width) of `rows` rows, bytes.
struct Columns {
  const void* from = nullptr;
  size_t from_pitch = 0, width = 0, rows = 0;
};
void copy(void* to, size_t to_pitch, const Columns& c, cudaStream_t stream) {
  check(cudaMemcpy2DAsync(to, to_pitch, c.from, c.from_pitch, c.width, c.rows,
                          cudaMemcpyDeviceToDevice, stream),
        "rows and queries of single heads");
}

}  // namespace

RangeChunk::RangeChunk(const LayerSite& site, size_t tokens, ChunkSpace& space)
    : site_(site), tokens_(tokens) {
  const size_t rows = 2 * site.heads * tokens * site.dim;           // bytes of one side
  const size_t queries = 2 * tokens * site.query_heads * site.dim;  // bytes
  std::byte* bytes = space.apart(RangeChunk::bytes(site, tokens));  // results: up to 4 bytes each
  rows_ = {bytes, bytes + rows, tokens * site.dim, 0};
  queries_ = bytes + 2 * rows;
  result_ = queries_ + queries;
}

size_t RangeChunk::first_query(const HeadRun& run) const {
  return run.first * (site_.query_heads / site_.heads);
}

void RangeChunk::copy_rows(const RowTarget& to, const HeadRun& run) const {
  const size_t at = static_cast<size_t>(to.row) * site_.dim * 2;
  const auto side = [&](void* target, const void* source) {
    copy(static_cast<std::byte*>(target) + at, to.head_stride * 2,
         {static_cast<const std::byte*>(source) + run.first * rows_.head_stride * 2,
          rows_.head_stride * 2, tokens_ * site_.dim * 2, run.stores->heads()},
         site_.stream);
  };
  side(to.k, rows_.k);
  side(to.v, rows_.v);
}

CausalCall RangeChunk::call_of(const HeadRun& run, const CausalCall& all) const {
  CausalCall call = all;
  const size_t width = run.stores->query_heads() * site_.dim * 2;
  const auto* queries = static_cast<const std::byte*>(all.q) + first_query(run) * site_.dim * 2;
  copy(queries_, width, {queries, site_.query_heads * site_.dim * 2, width, tokens_}, site_.stream);
  call.query_heads = static_cast<int>(run.stores->query_heads());
  call.kv_heads = static_cast<int>(run.stores->heads());
  call.q = queries_;
  if (call.sinks) call.sinks += first_query(run);
  call.result = result_;
  return call;
}

void RangeChunk::put(void* all, const void* of_range, const HeadRun& run, size_t number) const {
  const size_t width = run.stores->query_heads() * site_.dim * number;
  copy(static_cast<std::byte*>(all) + first_query(run) * site_.dim * number,
       site_.query_heads * site_.dim * number, {of_range, width, width, tokens_}, site_.stream);
}

void RangeChunk::put_zeros(float* all, const HeadRun& run) const {
  check(cudaMemset2DAsync(
            all + first_query(run) * site_.dim, site_.query_heads * site_.dim * sizeof(float), 0,
            run.stores->query_heads() * site_.dim * sizeof(float), tokens_, site_.stream),
        "no rows");
}

}  // namespace pith::cuda
