// QJL keys back to dense rows: the linear estimate c |k| / m S^T sign(S k), and at outlying
// channels what was kept of them. A warp per block of 32 rows, the projection transposed in shared
// memory, the product on tensor cores. Cost: 2 m D operations per row.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/codecs/qjl/qjl_tiles.cuh"

namespace pith::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kSketchRaise = 8;  // the projection is raised by 2^8: bits reach down to 2^-9

template <class T, int D, int kSketch>
__global__ void __launch_bounds__(kThreads, 1)
    unpack_kernel(const __grid_constant__ UnpackRowsCall p, const __half* projection,
                  bool row_lists) {
  using Keys = QjlKeys<D, kSketch>;
  using Pairs = CodePairs<1>;
  constexpr int kSteps = Keys::kSteps, kStride = kSketch + 8, kTogether = 4;
  auto* shared = launched_shared<char>();
  constexpr int kShares = kThreads / D;  // threads that have a column
  static_assert(kThreads % D == 0);
  auto* turned = reinterpret_cast<__half*>(shared);             // [D, kStride], bits' units out
  auto* sums = reinterpret_cast<float*>(turned + D * kStride);  // [kShares, D] of columns
  const int column = static_cast<int>(threadIdx.x) % D;
  float sum = 0;
#pragma unroll 16
  for (int row = static_cast<int>(threadIdx.x) / D; row < kSketch; row += kShares) {
    const float x = __half2float(projection[row * D + column]);
    const int unit = Pairs::unit_bits(row % 16 / 8 * kSteps + row / 16);
    turned[column * kStride + row] = __float2half_rn(x * power_of_two(kSketchRaise - unit));
    sum += x;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int i = 1; threadIdx.x < D && i < kShares; ++i) sum += sums[i * D + column];
  if (threadIdx.x < D) sums[column] = sum;
  __syncthreads();
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  for (int b = blockIdx.x * kWarps + threadIdx.x / kWarp; b < p.heads * p.blocks;
       b += gridDim.x * kWarps) {
    const int head = b / p.blocks, block = b % p.blocks;
    const size_t place = head * p.block_stride + block;
    const char* codes = static_cast<const char*>(p.codes) + place * Keys::kCodeBytes;
    const char* side =
        static_cast<const char*>(p.side) + place * (row_lists ? kQjlListsSideBytes : kQjlSideBytes);
    T* out = static_cast<T*>(p.out) + head * p.head_stride + static_cast<size_t>(block) * 32 * D;
    uint32_t words[Keys::kWords];
    read_words(words, codes);
    const auto* norms = reinterpret_cast<const __half*>(side) + r * 4;
#pragma unroll 1
    for (int first = 0; first < D / 8; first += kTogether) {
      float acc[kTogether][2][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
          const auto* column = reinterpret_cast<const uint32_t*>(
              turned + ((first + t) * 8 + r) * kStride + 16 * s + 2 * c);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const auto reg = [&](int row, int high) {
              return Pairs::take(words, ((half * 2 + row) * 2 + high) * kSteps + s);
            };
            mma<__half>(acc[t][half], reg(0, 0), reg(1, 0), reg(0, 1), reg(1, 1), column[0],
                        column[4]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int channel = (first + t) * 8 + 2 * c;
          T* row = out + (r + 8 * i) * D + channel;
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float bits = acc[t][i / 2][i % 2 * 2 + j] * power_of_two(25 - kSketchRaise);
            row[j] = from_float<T>(__half2float(norms[i]) * (bits - sums[channel + j]));
          }
        }
      }
    }
    __syncwarp();  // outlying channels were written by other lanes
    const uint4 four = reinterpret_cast<const uint4*>(codes + Keys::kBitBytes)[lane];
    const uint32_t numbers[4] = {four.x, four.y, four.z, four.w};
    const auto* lists = reinterpret_cast<const uint8_t*>(side + kQjlNormBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&numbers[i]));
      T* row = out + (r + 8 * i) * D;
      const uint8_t* channels = lists + (row_lists ? 8 * lane + 2 * i : 2 * c);
      // Places that no channel took have the number 0 and the channel 0, which another may have.
      if (two.x != 0) row[channels[0]] = from_float<T>(to_float(row[channels[0]]) + two.x);
      if (two.y != 0) row[channels[1]] = from_float<T>(to_float(row[channels[1]]) + two.y);
    }
  }
}

}  // namespace

void unpack_qjl_keys(const QjlProjection& projection, const UnpackRowsCall& call,
                     cudaStream_t stream) {
  projection.check();
  if (call.blocks == 0) return;
  with_sketch(projection, call.dtype, [&]<class T, int D, int kSketch>() {
    constexpr size_t kBytes = D * (kSketch + 8) * 2 + kThreads * 4;
    const int blocks = (call.heads * call.blocks + kWarps - 1) / kWarps;
    launch_kernel(unpack_kernel<T, D, kSketch>,
                  {std::min(blocks, device_info().multiprocessors), kThreads, kBytes}, stream,
                  "unpacking of QJL keys", call, static_cast<const __half*>(projection.half_rows),
                  projection.row_lists);
  });
}

}  // namespace pith::cuda
