// Decode attention straight from CSR codes of rows as they are attended to. A block makes the table
// <q, atom> of its KV head on the tensor cores, its warps go through the rows (csr_run.cuh), and a
// product with the dictionary ends it. Dense spans are read as everywhere.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "methods/codecs/csr/csr_run.cuh"

namespace pith::cuda {
namespace {

struct CsrParams : DecodeParams {
  CsrAtoms keys, values;
  int chunks;      // of a value
  int warp_bytes;  // of shared memory that a warp has to itself
};

/// The warps' sums become one, times the dictionary: slot() <- values, maximum, sum of each query.
/// All threads call it.
template <int D, int kPairs, int kQuads>
__device__ inline void finish_coded(const CsrRun<D, kPairs, kQuads>& run, const __half* atoms) {
  constexpr int kQ = 4 * kQuads, kPairsOfDims = D / 2;
  const auto& space = run.space;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = space.warps;
#pragma unroll
  for (int q = 0; q < kQ; ++q) {
    float sum = run.sum[q];
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) space.tops()[warp * kQueries + q] = {run.top[q], sum};
  }
  __syncthreads();
  float* slot = space.slot();
  if (threadIdx.x < kQ) {
    const int q = threadIdx.x;
    float top = kUnseen, sum = 0;
    for (int w = 0; w < warps; ++w) top = fmaxf(top, space.tops()[w * kQueries + q].x);
    for (int w = 0; w < warps; ++w) {
      float2& one = space.tops()[w * kQueries + q];
      one.x = exp2_fast(one.x - top);
      sum += one.x * one.y;
    }
    slot[q * (D + 2) + D] = top;
    slot[q * (D + 2) + D + 1] = sum;
  }
  __syncthreads();
  const int size = run.chunks * run.values;
  for (int i = threadIdx.x; i < run.sums_size(); i += blockDim.x) {
    const float2* share = space.tops() + i / size * 4;
    float4 total = {0, 0, 0, 0};
    for (int w = 0; w < warps; ++w, share += kQueries) {
      const float4 x = space.sums(w)[i];
      total.x += share[0].x * x.x;
      total.y += share[1].x * x.y;
      total.z += share[2].x * x.z;
      total.w += share[3].x * x.w;
    }
    space.sums(0)[i] = total;
  }
  __syncthreads();
  // Thread (slice, two channels): a slice of the atoms.
  const int slices = blockDim.x / kPairsOfDims, slice = threadIdx.x / kPairsOfDims;
  const int channel = threadIdx.x % kPairsOfDims * 2, d = D / run.chunks;
  const float4* sums = space.sums(0) + channel / d * run.values;
  const auto* from = reinterpret_cast<const __half2*>(atoms + channel % d);
  float out[2][kQ] = {};
#pragma unroll 4
  for (int n = slice; n < run.values; n += slices) {
    const float2 x = __half22float2(from[static_cast<size_t>(n) * d / 2]);
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const float4 h = sums[quad * size + n];
      const float four[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[0][4 * quad + i] += x.x * four[i];
        out[1][4 * quad + i] += x.y * four[i];
      }
    }
  }
  auto* shares = reinterpret_cast<float*>(space.of_warp(1));  // [slices, kQ, D]
#pragma unroll
  for (int q = 0; q < kQ; ++q) {
    *reinterpret_cast<float2*>(shares + (slice * kQ + q) * D + channel) = {out[0][q], out[1][q]};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kQ * D; i += blockDim.x) {
    float total = 0;
    for (int s = 0; s < slices; ++s) total += shares[s * kQ * D + i];
    slot[i / D * (D + 2) + i % D] = total;
  }
  __syncthreads();
}

/// A warp's state as if it had read what slot() holds.
template <int D>
__device__ inline void take_slot(Running<D>& run, const float* slot, int queries) {
  const int lane = threadIdx.x % kWarp, c = lane % 4;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (2 * c + j >= queries) continue;
    const float* row = slot + (2 * c + j) * (D + 2);
    run.top[j] = row[D];
    run.sum[j] = lane < 4 ? row[D + 1] : 0;
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
      run.acc[t][j] = row[channel_of(t, 0)];
      run.acc[t][2 + j] = row[channel_of(t, 1)];
    }
  }
}

template <class T, int D, int kPairs, int kQuads>
__global__ void __launch_bounds__(kCsrMostWarps* kWarp, 1)
    csr_kernel(const __grid_constant__ CsrParams p) {
  auto* shared = launched_shared<char>();
  const CsrSpace<D, kPairs, kQuads> space{shared, static_cast<int>(blockDim.x) / kWarp,
                                          p.warp_bytes, p.keys.count};
  let_successor_start();
  Predecessor ahead;
  ahead.wait();
  for_own_heads<D, BlockTiles, 0>(
      p, space.walk(), ahead, [&](const HeadShare& share, const Cut& cut) {
        const int kv_head = p.kv_head_of(share.head);
        load_queries<T, D>(space.q(), p, share);
        __syncthreads();
        make_table(space, atoms_of(p.keys, kv_head, D));
        CsrRun<D, kPairs, kQuads> coded{space, p.chunks, p.values.count, p.cap};
        coded.start();
        __syncthreads();
        CodedWalk walk{share.spans, p.span_count, share.begin, share.end};
        while (walk.next<BlockTiles>()) {
          const DeviceSpan span = walk.span;
          coded.span(span, walk.tiles.x, walk.tiles.y);
        }
        finish_coded(coded, atoms_of(p.values, kv_head, D / p.chunks));
        Running<D> run;
        if (threadIdx.x < kWarp) take_slot(run, space.slot(), share.queries);
        if (walk.dense) {
          run_dense_ends<T, BlockTiles, D>(
              run, DenseWalk<BlockTiles>{share.spans, p.span_count, share.begin, share.end},
              space.q(), p.cap);
        }
        end_head(p, cut, run, {share.head, shared, static_cast<size_t>(p.warp_bytes), space.warps});
      });
}

template <class T, int D, int kPairs, int kQuads>
void launch_csr(const CsrDictionaries& csr, const DecodeCall& call, const DecodeScratch& scratch,
                cudaStream_t stream) {
  using Space = CsrSpace<D, kPairs, kQuads>;
  CsrParams p{};
  static_cast<DecodeParams&>(p) = make_params(call, scratch);
  p.keys = csr.keys;
  p.values = csr.values;
  p.chunks = csr.coding.value_chunks;
  const size_t each = (Space::warp_bytes(p.chunks, p.values.count) + 15) / 16 * 16;
  const size_t fixed = Space::fixed_bytes(p.keys.count) + walk_bytes<0>(p.heads);
  p.warp_bytes = static_cast<int>(each);
  int warps = kCsrMostWarps;  // halved until there is room: slices of the threads stay even
  while (warps > 4 && warps * each + fixed > device_info().shared_per_block) warps /= 2;
  const size_t bytes = warps * each + fixed;
  launch_call(csr_kernel<T, D, kPairs, kQuads>, {{}, static_cast<unsigned>(warps * kWarp), bytes},
              p, call, stream, "CSR attention");
}

}  // namespace

void decode_csr_by_tables(const CsrDictionaries& csr, const DecodeCall& call,
                          const DecodeScratch& scratch, cudaStream_t stream) {
  const bool four = call.shape.query_heads / call.shape.kv_heads <= 4;
  with_rows_of(call.dtype, call.shape.head_dim, [&]<class T, int D>() {
    const auto launch = [&]<int kPairs>() {
      four ? launch_csr<T, D, kPairs, 1>(csr, call, scratch, stream)
           : launch_csr<T, D, kPairs, 2>(csr, call, scratch, stream);
    };
    switch (csr.coding.pairs) {
      case 4: return launch.template operator()<4>();
      case 8: return launch.template operator()<8>();
      default: return launch.template operator()<16>();
    }
  });
}

}  // namespace pith::cuda
