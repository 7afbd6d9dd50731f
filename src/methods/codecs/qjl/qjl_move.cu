// QJL keys that are selected again: from block to block as they are, and the attention mass of one
// query over them. A row is its quarter words of four lanes, four pairs of numbers of its outlying
// channels, the channels, and a norm.
//
// Cost of a move: what moves is read and the target written once. Of the mass: m additions a row
// and query; m D multiply-adds per query for each 256 rows or fewer.

#include "attend/cuda/mass_token.cuh"
#include "kernels/cuda/launch.cuh"
#include "methods/codecs/qjl/qjl_tiles.cuh"

namespace pith::cuda {
namespace {

constexpr int kMassThreads = 256, kMassBlocks = 32;  // a KV head; those past the last row return

/// A lane's part of row r + 8 i of a block, r = lane / 4.
template <int kSketch>
struct RowPart {
  using Keys = QjlKeys<4 * 16, kSketch, true>;  // where things are does not depend on D
  static constexpr int kWords = kSketch / 128;
  uint32_t words[kWords] = {}, numbers = 0;
  uint16_t channels = 0;
  __half norm = __float2half_rn(0);

  __device__ static RowPart read(const char* codes, const char* side, int lane, int i) {
    RowPart part;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      part.words[w] = reinterpret_cast<const uint32_t*>(codes)[word_at(lane, i * kWords + w)];
    }
    part.numbers = reinterpret_cast<const uint32_t*>(codes + Keys::kBitBytes)[lane * 4 + i];
    part.channels = reinterpret_cast<const uint16_t*>(side + kQjlNormBytes)[lane * 4 + i];
    part.norm = reinterpret_cast<const __half*>(side)[lane / 4 * 4 + i];
    return part;
  }
  __device__ void write(char* codes, char* side, int lane, int i) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      reinterpret_cast<uint32_t*>(codes)[word_at(lane, i * kWords + w)] = words[w];
    }
    reinterpret_cast<uint32_t*>(codes + Keys::kBitBytes)[lane * 4 + i] = numbers;
    reinterpret_cast<uint16_t*>(side + kQjlNormBytes)[lane * 4 + i] = channels;
    if (lane % 4 == 0) reinterpret_cast<__half*>(side)[lane / 4 * 4 + i] = norm;
  }
  __device__ static int word_at(int lane, int word) {
    return (word / 4 * kWarp + lane) * 4 + word % 4;
  }
};

/// A block 32 rows of the target; thread: lane of a warp's four rows, i of those.
template <int kSketch>
__global__ void __launch_bounds__(4 * kWarp) move_kernel(const __grid_constant__ MoveCodesCall p) {
  using Part = RowPart<kSketch>;
  const int head = blockIdx.y, block = p.first_block() + static_cast<int>(blockIdx.x);
  const int lane = threadIdx.x % kWarp, i = threadIdx.x / kWarp, row = lane / 4 + 8 * i;
  const int from = p.source(head, block * kBlockRows + row);
  if (from == MoveCodesCall::kStays) return;
  Part part;
  if (from >= 0) {
    const size_t place = head * p.from.stride + from / kBlockRows;
    part = Part::read(static_cast<const char*>(p.from.key_codes) + place * Part::Keys::kCodeBytes,
                      static_cast<const char*>(p.from.key_side) + place * Part::Keys::kSideBytes,
                      from % 8 * 4 + lane % 4, from % kBlockRows / 8);
  }
  const size_t place = head * p.to.stride + block;
  part.write(static_cast<char*>(p.to.key_codes) + place * Part::Keys::kCodeBytes,
             static_cast<char*>(p.to.key_side) + place * Part::Keys::kSideBytes, lane, i);
}

struct MassParams {
  TokenParams token;
  const __half* projection;  // [m, D]
};

/// Queries first .. first + kTogether - 1 of a head and their sketches, a number of each side by
/// side; those that are not there are 0.
template <int D, int kSketch>
struct Sketches {
  float4 q[D];
  float4 bits[4 * kSketch / 128][kWarp];  // of lane c and word w, [c * kSketch / 128 + w][bit]
  float totals[kTogether];

  template <class T>
  __device__ void make(const MassParams& p, int head, int first) {
    const float scale = kLog2e * rsqrtf(static_cast<float>(D));
    const T* from =
        static_cast<const T*>(p.token.q) + static_cast<size_t>(head) * p.token.group * D;
    for (int i = threadIdx.x; i < kTogether * D; i += kMassThreads) {
      const int h = first + i / D;
      reinterpret_cast<float*>(&q[i % D])[i / D] =
          h < p.token.group ? to_float(from[h * D + i % D]) * scale : 0;
    }
    __syncthreads();
    for (int n = threadIdx.x; n < kSketch; n += kMassThreads) {
      constexpr int kWords = kSketch / 128;
      const int bit = n % kWarp, word = n / kWarp % kWords, c = n / kWarp / kWords;
      const auto* row = reinterpret_cast<const uint4*>(
          p.projection + static_cast<size_t>(QjlKeys<D, kSketch>::sketch_of(word, bit, c)) * D);
      float4 sum{};
#pragma unroll 4
      for (int d = 0; d < D; d += 8) {
        float s[8];
        widen<__half>(s, row[d / 8]);
#pragma unroll
        for (int j = 0; j < 8; ++j) add_times(sum, q[d + j], s[j]);
      }
      bits[n / kWarp][bit] = sum;
    }
    __syncthreads();
    const int of = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (of < kTogether) {  // a warp per query
      float sum = 0;
      for (const auto& word : bits) sum += reinterpret_cast<const float*>(&word[lane])[of];
#pragma unroll
      for (int d = kWarp / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      if (lane == 0) totals[of] = sum;
    }
    __syncthreads();
  }
};

/// Scores of one row with the queries of `sketches`, to base 2.
template <int D, int kSketch>
__device__ inline float4 scores_of(const Sketches<D, kSketch>& sketches, const char* codes,
                                   const char* side, int row) {
  float4 set{}, apart{};
  float norm = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const auto part = RowPart<kSketch>::read(codes, side, row % 8 * 4 + c, row / 8);
    norm = __half2float(part.norm);
#pragma unroll
    for (int w = 0; w < kSketch / 128; ++w) {
#pragma unroll 8
      for (int bit = 0; bit < kWarp; ++bit) {
        const float one = part.words[w] >> bit & 1 ? 1.0f : 0.0f;
        add_times(set, sketches.bits[c * (kSketch / 128) + w][bit], one);
      }
    }
    const float2 u = __half22float2(*reinterpret_cast<const __half2*>(&part.numbers));
    add_times(apart, sketches.q[part.channels & 0xff], u.x);
    add_times(apart, sketches.q[part.channels >> 8], u.y);
  }
  const auto score = [&](float of_set, float total, float of_apart) {
    return norm * (2 * of_set - total) + of_apart;
  };
  return {score(set.x, sketches.totals[0], apart.x), score(set.y, sketches.totals[1], apart.y),
          score(set.z, sketches.totals[2], apart.z), score(set.w, sketches.totals[3], apart.w)};
}

template <class T, int D, int kSketch>
__global__ void __launch_bounds__(kMassThreads) mass_kernel(const __grid_constant__ MassParams p) {
  using Keys = QjlKeys<D, kSketch, true>;
  __shared__ Sketches<D, kSketch> sketches;
  let_successor_start();
  const MassTarget target = *p.token.target;  // there since the step began
  wait_for_predecessor();
  const int begin = blockIdx.y * kMassThreads, head = blockIdx.x;
  if (begin >= target.coded) return;
  const auto* codes = static_cast<const char*>(target.codes);
  const auto* side = static_cast<const char*>(target.code_side);
  float* mass = target.mass + head * target.stride + target.coded_from;
  for (int first = 0; first < p.token.group; first += kTogether) {
    __syncthreads();
    sketches.template make<T>(p, head, first);
    for (int row = begin + static_cast<int>(threadIdx.x); row < target.coded;
         row += kMassThreads * kMassBlocks) {
      const size_t place = head * target.block_stride + row / kBlockRows;
      const float4 scores = scores_of(sketches, codes + place * Keys::kCodeBytes,
                                      side + place * Keys::kSideBytes, row % kBlockRows);
      const float own = sum_of_four(p.token, head, first, scores);
      const bool more = first > 0 || target.coded_from + row < target.known;
      mass[row] = more ? mass[row] + own : own;
    }
  }
}

}  // namespace

void move_qjl_keys(const QjlProjection& projection, const MoveCodesCall& call,
                   cudaStream_t stream) {
  if (call.count == 0) return;
  const dim3 grid(call.blocks(), call.heads);
  const auto launch = [&](auto kernel) {
    launch_kernel(kernel, {grid, 4 * kWarp}, stream, "moving QJL keys", call);
  };
  switch (projection.m) {
    case 128: launch(move_kernel<128>); break;
    case 256: launch(move_kernel<256>); break;
    default: launch(move_kernel<512>);
  }
}

void add_qjl_mass(const QjlProjection& projection, const TokenMass& call, const MassTarget* target,
                  cudaStream_t stream) {
  add_token_mass(call, target, stream);
  const MassShape& shape = call.shape;
  const MassParams params{{call.q, call.log_sum, target, shape.query_heads / shape.kv_heads,
                           SoftCap::of_log2(shape.soft_cap)},
                          static_cast<const __half*>(projection.half_rows)};
  const LaunchShape launch{dim3(shape.kv_heads, kMassBlocks), dim3(kMassThreads), 0};
  with_rows_of(shape.dtype, shape.head_dim, [&]<class T, int D>() {
    projection.m == 2 * D ? launch_mass(mass_kernel<T, D, 2 * D>, launch, params, call, stream)
                          : launch_mass(mass_kernel<T, D, 4 * D>, launch, params, call, stream);
  });
}

}  // namespace pith::cuda
