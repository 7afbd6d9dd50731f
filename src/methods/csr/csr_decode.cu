// Decode attention straight from CSR codes. A block makes the table <q, atom> of its KV head on the
// tensor cores; then a lane takes a row: s lookups of four queries' products each. Values are
// summed by atom: each warp keeps sums [chunks, atoms, queries] in shared memory of its own, and
// its lanes are the pairs of one row times four queries, so that no address is met twice (pairs of
// a chunk have different atoms; those that are not needed are left out). A product with the
// dictionary ends it. Dense spans are read as everywhere.
//
// Cost a row: 8 s bytes; s lookups of 16 bytes and 4 s additions in shared memory.

#include "attend/cuda/decode_kernel.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/csr/csr_cuda.h"

namespace pith::cuda {
namespace {

struct CsrParams : DecodeParams {
  const __half *key_atoms, *value_atoms;  // [B G, N, d]
  int key_count, value_count, chunks;
  int warp_bytes;  // of shared memory that a warp has to itself
};

/// What the tile counting and the walk over dense rows ask of a codec.
struct CsrTiles {
  static constexpr bool kPresent = true;
  static constexpr int kRows = 32;
  static __device__ int warps() { return blockDim.x / kWarp; }
};

constexpr int kMostWarps = 16, kStages = 2;

/// kPairs: s. kQuads: groups of four queries.
template <int D, int kPairs, int kQuads>
struct CsrSpace {
  static constexpr int kSide = kPairs * 128;  // bytes of 32 rows of one side
  static constexpr int kRing = kStages * 2 * kSide;
  static constexpr int kPiece = kQuads * 512;  // probabilities [4 kQuads][32]
  static constexpr int kPart4 = kPart<D> * 4;

  static size_t warp_bytes(int chunks, int values) {
    const int own = kRing + kPiece + kQuads * chunks * values * 16;
    return own > kPart4 ? own : kPart4;
  }
  static size_t fixed_bytes(int keys) {
    return kQueries * D * 4 + kPart4 + kMostWarps * kQueries * 8 + kQuads * keys * 16;
  }

  char* shared;
  int warps, warp_bytes_, keys;

  __device__ char* of_warp(int w) const { return shared + w * warp_bytes_; }
  __device__ char* warp() const { return of_warp(threadIdx.x / kWarp); }
  __device__ float* piece() const { return reinterpret_cast<float*>(warp() + kRing); }
  /// [kQuads][chunks, atoms][4]
  __device__ float4* sums(int w) const {
    return reinterpret_cast<float4*>(of_warp(w) + kRing + kPiece);
  }
  __device__ float* q() const { return reinterpret_cast<float*>(shared + warps * warp_bytes_); }
  __device__ float* slot() const { return q() + kQueries * D; }  // [kQueries, D + 2]
  __device__ float2* tops() const { return reinterpret_cast<float2*>(slot() + kPart<D>); }
  __device__ char* table() const {  // [kQuads][atoms][4]
    return reinterpret_cast<char*>(tops() + kMostWarps * kQueries);
  }
  __device__ int* cut() const { return reinterpret_cast<int*>(table() + kQuads * keys * 16); }
};

__device__ inline float coefficient_of(uint32_t word) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}
__device__ inline const uint32_t* words_of(const uint4& x) {
  return reinterpret_cast<const uint32_t*>(&x);
}

/// table <- products of the queries, which are in shared memory, with all atoms of the head.
template <int D, int kPairs, int kQuads>
__device__ inline void make_table(const CsrSpace<D, kPairs, kQuads>& space, const __half* atoms) {
  using Dense = DenseTiles<__half, D>;
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  DeviceSpan span;
  span.keys = atoms;
  span.rows = space.keys;
  span.row_stride = D;
  const auto query = Dense::prepare(space.q());
  for (int t = threadIdx.x / kWarp; t * 16 < space.keys; t += space.warps) {
    typename Dense::Tile tile;
    Dense::load_keys(tile, span, t);
    float s[1][4];
    Dense::scores(s, tile, query);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int atom = t * 16 + r + 8 * i;
      if (atom >= space.keys || c / 2 >= kQuads) continue;
      char* to = space.table() + (c / 2 * space.keys + atom) * 16 + c % 2 * 8;
      *reinterpret_cast<float2*>(to) = make_float2(s[0][2 * i], s[0][2 * i + 1]);
    }
  }
}

/// A warp's share of the coded rows of one head.
template <int D, int kPairs, int kQuads>
struct CsrRun {
  using Space = CsrSpace<D, kPairs, kQuads>;
  static constexpr int kQ = 4 * kQuads;

  const Space& space;
  int chunks, values;      // atoms a chunk
  float top[kQ], sum[kQ];  // sum: over this lane's rows

  __device__ int sums_size() const { return kQuads * chunks * values; }

  __device__ void start() {
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      top[q] = kUnseen;
      sum[q] = 0;
    }
    float4* sums = space.sums(threadIdx.x / kWarp);
    for (int i = threadIdx.x % kWarp; i < sums_size(); i += kWarp) sums[i] = {0, 0, 0, 0};
    __syncwarp();
  }

  static __device__ void fetch(char* to, const DeviceSpan& span, int tile) {
    const int lane = threadIdx.x % kWarp;
    const auto from = [&](const void* codes) {
      return static_cast<const char*>(codes) + static_cast<size_t>(tile) * Space::kSide + lane * 16;
    };
#pragma unroll
    for (int i = 0; i < kPairs / 4; ++i) {
      copy_async(to + i * 512 + lane * 16, from(span.keys) + i * 512);
      if (span.role == DeviceRole::kDenominator) continue;
      copy_async(to + Space::kSide + i * 512 + lane * 16, from(span.values) + i * 512);
    }
  }

  __device__ void score(float (&s)[kQ], const char* keys) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int q = 0; q < kQ; ++q) s[q] = 0;
    const char* table = space.table();
#pragma unroll
    for (int i = 0; i < kPairs / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(keys)[i * kWarp + lane];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t word = words_of(four)[e];
        const float c = coefficient_of(word);
#pragma unroll
        for (int quad = 0; quad < kQuads; ++quad) {
          const float4 x =
              *reinterpret_cast<const float4*>(table + quad * space.keys * 16 + (word & 0xffff));
          s[4 * quad] += c * x.x;
          s[4 * quad + 1] += c * x.y;
          s[4 * quad + 2] += c * x.z;
          s[4 * quad + 3] += c * x.w;
        }
      }
    }
  }

  /// Maxima rise to those of s, and what was summed shrinks.
  __device__ void follow(const float (&s)[kQ]) {
    float shrink[kQ];
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      float most = s[q];
#pragma unroll
      for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
      most = fmaxf(most, top[q]);
      shrink[q] = exp2_fast(top[q] - most);
      top[q] = most;
      sum[q] *= shrink[q];
    }
    float4* sums = space.sums(threadIdx.x / kWarp);
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const int size = chunks * values;
      for (int i = threadIdx.x % kWarp; i < size; i += kWarp) {
        float4& x = sums[quad * size + i];
        x.x *= shrink[4 * quad];
        x.y *= shrink[4 * quad + 1];
        x.z *= shrink[4 * quad + 2];
        x.w *= shrink[4 * quad + 3];
      }
    }
    __syncwarp();
  }

  /// Adds the probabilities in piece() times the coefficients of 32 rows to the sums.
  __device__ void add_values(const char* codes) {
    constexpr int kPasses = kPairs > 8 ? kPairs / 8 : 1;
    const int lane = threadIdx.x % kWarp, j = lane / 4, q = lane % 4;
    const bool mine = kPairs >= 8 || j < kPairs;
    char* sums = reinterpret_cast<char*>(space.sums(threadIdx.x / kWarp));
    const int size = chunks * values * 16, a_chunk = kPairs / chunks;
    char* to[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) to[i] = sums + (j + 8 * i) / a_chunk * values * 16 + q * 4;
#pragma unroll 2
    for (int quad = 0; quad < 8; ++quad) {
      float4 p[kQuads];
      uint4 four[kPasses];
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        p[i] = reinterpret_cast<const float4*>(space.piece())[(4 * i + q) * 8 + quad];
      }
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        four[i] = mine ? reinterpret_cast<const uint4*>(codes)[quad * kPairs + j + 8 * i]
                       : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int row = 0; row < 4; ++row) {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
          const uint32_t word = words_of(four[i])[row];
          if ((word & 0x7fff0000u) == 0) continue;
          const float c = coefficient_of(word);
#pragma unroll
          for (int k = 0; k < kQuads; ++k) {
            auto* at = reinterpret_cast<float*>(to[i] + k * size + (word & 0xffff));
            *at += c * reinterpret_cast<const float*>(&p[k])[row];
          }
        }
        __syncwarp();  // the next row may have the same atoms in other lanes
      }
    }
  }

  __device__ void tile(const DeviceSpan& span, const char* block, int t) {
    const int lane = threadIdx.x % kWarp, row = t * CsrTiles::kRows + lane;
    float s[kQ];
    score(s, block);
    const bool inside = row < span.rows;
    float w = span.log_weight;
    if (span.log_weights && inside) w += span.log_weights[row];
    bool rises = false;
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      s[q] = inside ? s[q] + w * kLog2e : -INFINITY;
      rises |= s[q] > top[q] + kLazy;
    }
    if (__any_sync(~0u, rises)) follow(s);
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      s[q] = exp2_fast(s[q] - top[q]);
      if (span.role != DeviceRole::kNumerator) sum[q] += s[q];
      space.piece()[q * kWarp + lane] = s[q];
    }
    __syncwarp();
    if (span.role != DeviceRole::kDenominator) add_values(block + Space::kSide);
  }

  /// Tiles first, first + warps, ... below `end`.
  __device__ void span(const DeviceSpan& span, int first, int end) {
    if (first < end) fetch(space.warp(), span, first);
    commit_copies();
    int slot = 0;
    for (int t = first; t < end; t += space.warps) {
      __syncwarp();  // every lane is done with the slot that is filled next
      if (t + space.warps < end) {
        fetch(space.warp() + (slot ^ 1) * 2 * Space::kSide, span, t + space.warps);
      }
      commit_copies();
      wait_for_copies<1>();
      __syncwarp();
      tile(span, space.warp() + slot * 2 * Space::kSide, t);
      slot ^= 1;
    }
    wait_for_copies<0>();
    __syncwarp();
  }
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
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    csr_kernel(const __grid_constant__ CsrParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ bool last;
  const CsrSpace<D, kPairs, kQuads> space{shared, static_cast<int>(blockDim.x) / kWarp,
                                          p.warp_bytes, p.key_count};
  let_successor_start();
  wait_for_predecessor();
  const auto spans_of = [&](int head) { return p.spans + head / p.query_blocks * p.span_count; };
  const Cut cut = Cut::make(space.cut(), p.heads, [&](int head) {
    return tiles_of_head<CsrTiles>(spans_of(head), p.span_count);
  });
  const int warp = threadIdx.x / kWarp, block = blockIdx.x;
  if (block >= cut.blocks) return;
  const int begin = cut.first_tile(block), end = cut.first_tile(block + 1);
  for (int head = 0; head < p.heads; ++head) {
    const int head_first = cut.ends[head], head_end = cut.ends[head + 1];
    const bool empty = head_first == head_end;
    if (empty ? block != 0 : (head_end <= begin || head_first >= end)) continue;
    const int query_block = head % p.query_blocks, kv_head = head / p.query_blocks;
    const int query_head = kv_head * p.group + query_block * kQueries;
    const HeadOutput output{p.out + static_cast<size_t>(query_head) * D,
                            p.log_sum ? p.log_sum + query_head : nullptr,
                            min(kQueries, p.group - query_block * kQueries)};
    if (empty) {
      write_nothing_seen<D>(output);
      continue;
    }
    const DeviceSpan* spans = spans_of(head);
    const T* q = static_cast<const T*>(p.q) + static_cast<size_t>(query_head) * D;
    for (int i = threadIdx.x; i < kQueries * D; i += blockDim.x) {
      space.q()[i] = i < output.queries * D ? to_float(q[i]) * p.scale : 0;
    }
    __syncthreads();
    make_table(space, p.key_atoms + static_cast<size_t>(kv_head) * p.key_count * D);
    CsrRun<D, kPairs, kQuads> coded{space, p.chunks, p.value_count};
    coded.start();
    __syncthreads();
    CodedWalk walk{spans, p.span_count, begin - head_first, end - head_first};
    while (walk.next<CsrTiles>()) {
      const DeviceSpan span = walk.span;
      coded.span(span, walk.tiles.x, walk.tiles.y);
    }
    finish_coded(coded,
                 p.value_atoms + static_cast<size_t>(kv_head) * p.value_count * D / p.chunks);
    Running<D> run;
    if (warp == 0) take_slot(run, space.slot(), output.queries);
    run_dense_ends<T, CsrTiles, D>(
        run, DenseWalk<CsrTiles>{spans, p.span_count, begin - head_first, end - head_first},
        space.q());
    float* parts = p.partials + static_cast<size_t>(block + head) * kPart<D>;
    merge_warps<D>(parts, shared, p.warp_bytes, run, {output.queries, space.warps});
    const int first_block = cut.first_block(head), count = cut.block_count(head);
    if (count > 1) {
      if (threadIdx.x == 0) {
        last = arrive(p.arrivals + head) == count - 1;
        if (last) p.arrivals[head] = 0;
      }
      __syncthreads();
      if (!last) continue;
    }
    merge_parts<D>(output, p.partials + static_cast<size_t>(first_block + head) * kPart<D>, count,
                   reinterpret_cast<float*>(shared));
  }
}

template <class T, int D, int kPairs, int kQuads>
void launch_csr(const CsrDictionaries& csr, const DecodeCall& call, const DecodeScratch& scratch,
                cudaStream_t stream) {
  using Space = CsrSpace<D, kPairs, kQuads>;
  CsrParams p{};
  static_cast<DecodeParams&>(p) = make_params(call, scratch);
  p.key_atoms = static_cast<const __half*>(csr.keys.rows);
  p.value_atoms = static_cast<const __half*>(csr.values.rows);
  p.key_count = csr.keys.count;
  p.value_count = csr.values.count;
  p.chunks = csr.coding.value_chunks;
  const size_t each = (Space::warp_bytes(p.chunks, p.value_count) + 15) / 16 * 16;
  const size_t fixed = Space::fixed_bytes(p.key_count) + Cut::bytes(p.heads);
  p.warp_bytes = static_cast<int>(each);
  int warps = kMostWarps;  // halved until there is room: slices of the threads stay even
  while (warps > 4 && warps * each + fixed > device_info().shared_per_block) warps /= 2;
  const size_t bytes = warps * each + fixed;
  const auto kernel = csr_kernel<T, D, kPairs, kQuads>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "CSR attention's shared memory");
  const LaunchShape launch{static_cast<unsigned>(scratch.blocks()),
                           static_cast<unsigned>(warps * kWarp), bytes};
  launch_early(kernel, launch, p, stream, "CSR attention");
}

template <class T, int D, int kPairs>
void launch_for(const CsrDictionaries& csr, const DecodeCall& call, const DecodeScratch& scratch,
                cudaStream_t stream) {
  const bool four = call.shape.query_heads / call.shape.kv_heads <= 4;
  four ? launch_csr<T, D, kPairs, 1>(csr, call, scratch, stream)
       : launch_csr<T, D, kPairs, 2>(csr, call, scratch, stream);
}

template <class T, int D>
void launch_as(const CsrDictionaries& csr, const DecodeCall& call, const DecodeScratch& scratch,
               cudaStream_t stream) {
  switch (csr.coding.pairs) {
    case 4: return launch_for<T, D, 4>(csr, call, scratch, stream);
    case 8: return launch_for<T, D, 8>(csr, call, scratch, stream);
    default: return launch_for<T, D, 16>(csr, call, scratch, stream);
  }
}

}  // namespace

void decode_csr(const CsrDictionaries& csr, const DecodeCall& call, const DecodeScratch& scratch,
                cudaStream_t stream) {
  call.check();
  csr.coding.check(call.shape.head_dim, csr.keys);
  csr.coding.check(call.shape.head_dim, csr.values);
  const bool bf16 = call.dtype == DType::kBF16;
  if (call.shape.head_dim == 64) {
    bf16 ? launch_as<__nv_bfloat16, 64>(csr, call, scratch, stream)
         : launch_as<__half, 64>(csr, call, scratch, stream);
  } else {
    bf16 ? launch_as<__nv_bfloat16, 128>(csr, call, scratch, stream)
         : launch_as<__half, 128>(csr, call, scratch, stream);
  }
}

}  // namespace pith::cuda
