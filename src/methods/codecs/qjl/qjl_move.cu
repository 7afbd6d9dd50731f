// QJL keys that are selected again: from block to block as they are, and the attention mass of one
// query over them. A row is its quarter words of four lanes, four pairs of numbers of its outlying
// channels, the channels, and a norm.
//
// Cost of a move: what moves is read and the target written once. Of the mass: attention's scores.

#include "attend/cuda/mass_token.cuh"
#include "kernels/cuda/launch.cuh"
#include "methods/codecs/qjl/qjl_tiles.cuh"

namespace pith::cuda {
namespace {

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

template <int kSketch>
struct Codec {
  template <int D>
  using Keys = QjlKeys<D, kSketch, true>;
  static constexpr int resident(int) { return 2; }
};

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
  with_sketch(projection, call.shape.dtype, [&]<class T, int D, int kSketch>() {
    launch_token<T, D, BlockKeyMass<Codec<kSketch>>>(call, target, stream, projection.half_rows);
  });
}

}  // namespace pith::cuda
