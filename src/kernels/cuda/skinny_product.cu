#include "kernels/cuda/skinny_product.h"

#include <algorithm>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/tensor_map.h"

namespace pith::cuda {
namespace skinny {

constexpr int kPiece = kSkinnyPiece;  // numbers of a row that a stage holds
constexpr int kRowBytes = 2 * kPiece;
constexpr int kReaders = 128, kThreads = kReaders + kWarp;  // a warpgroup, and who asks for tiles
constexpr int kMostStages = 24;
// Of stages: two blocks share a multiprocessor, those of two products or of one.
constexpr int kRingBytes = 104 << 10;

struct SkinnyParams {
  CUtensorMap x, w;
  void* y;
  const float* bias;
  int out, in, tokens;
  int token_rows;  // of a tile of activations: tokens, up to a power of two from 8 on
  int stages;
};

/// A block's shared memory: the barriers, then stages of activations and weights, tiles of rows of
/// 128 bytes in the 128-byte swizzle. A product reads 64 rows of activations whatever lies in
/// those that no token has: what it makes of them is not written.
struct Ring {
  struct Barriers {
    SharedBarrier full[kMostStages], free[kMostStages];
  };
  static_assert(sizeof(Barriers) <= 1024);

  char* shared;  // a multiple of 1024
  int x_bytes, stage_bytes;

  __device__ static Ring make(int token_rows, int rows) {
    auto* unaligned = launched_shared<char>();
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(unaligned));
    return {unaligned + (1024 - at % 1024) % 1024, token_rows * kRowBytes,
            (token_rows + rows) * kRowBytes};
  }
  __device__ Barriers& barriers() const { return *reinterpret_cast<Barriers*>(shared); }
  __device__ char* x(int stage) const { return shared + 1024 + stage * stage_bytes; }
  __device__ char* w(int stage) const { return x(stage) + x_bytes; }
};

/// Bytes of it, with what reading 64 rows of the last stage's activations goes past its end.
int ring_bytes(const SkinnyParams& p, int rows) {
  return 2048 + p.stages * (p.token_rows + rows) * kRowBytes +
         std::max<int>(0, kMostSkinny - p.token_rows - rows) * kRowBytes;
}

/// The pieces of its rows that a block adds up.
struct Share {
  int first, count;

  __device__ explicit Share(const SkinnyParams& p) {
    const int all = p.in / kPiece, part = blockIdx.y, parts = gridDim.y;
    first = all * part / parts;
    count = all * (part + 1) / parts - first;
  }
};

/// The work of one thread that requests tiles. Weights are no kernel's results.
template <int kRows, int kParts>
struct Asker {
  const SkinnyParams& p;
  const Ring& ring;
  const Share& share;

  __device__ void weights(int i, int stage) const {
    SharedBarrier& full = ring.barriers().full[stage];
    const int channel = (share.first + i) * kPiece;
    constexpr int kHalf = kRows / kParts;
    full.arrive_expecting(ring.stage_bytes);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = static_cast<int>(blockIdx.x) * kHalf + part * (p.out / kParts);
      copy_box(ring.w(stage) + part * kHalf * kRowBytes, p.w, {channel, row, 0}, full);
    }
  }
  __device__ void activations(int i, int stage) const {
    copy_box(ring.x(stage), p.x, {(share.first + i) * kPiece, 0, 0}, ring.barriers().full[stage]);
  }
  __device__ void run() const {
    prefetch_map(p.w);
    prefetch_map(p.x);
    const int early = min(p.stages, share.count);
    for (int i = 0; i < early; ++i) weights(i, i);
    wait_for_predecessor();
    for (int i = 0; i < early; ++i) activations(i, i);
    int stage = 0, phase = 0;
    for (int i = early; i < share.count; ++i) {
      ring.barriers().free[stage].wait(phase);
      weights(i, stage);
      activations(i, stage);
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
  }
};

/// The warpgroup that multiplies: sums of 64 tokens and kRows rows.
template <class T, int kRows>
__device__ void add_up(float (&sums)[kRows / 8][4], const SkinnyParams& p, const Ring& ring,
                       const Share& share) {
  const bool speaks = threadIdx.x % kWarp == 0;
  int stage = 0, phase = 0, before = -1;
  for (int i = 0; i < share.count; ++i) {
    ring.barriers().full[stage].wait(phase);
    const uint32_t x = tile_descriptor(ring.x(stage), 0), w = tile_descriptor(ring.w(stage), 0);
    pin(sums);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kPiece / 16; ++k)
      multiply_tiles<T>(sums, advance(x, 32 * k), advance(w, 32 * k), 1);
    wgmma_commit();
    if (before >= 0) {
      wgmma_wait<1>();
      if (speaks) ring.barriers().free[before].arrive();
    }
    before = stage;
    if (++stage == p.stages) stage = 0, phase ^= 1;
  }
  wgmma_wait<0>();
  pin(sums);
}

/// A block's rows and part of their length. Bytes: its weights once, the tokens' activations once.
template <class T, MatvecEnd kEnd, int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    skinny_kernel(const __grid_constant__ SkinnyParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kParts = parts_of(kEnd), kTiles = kRows / 8;
  const Ring ring = Ring::make(p.token_rows, kRows);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      ring.barriers().full[i].init(1);
      ring.barriers().free[i].init(kReaders / kWarp);
    }
    publish_barriers();
  }
  __syncthreads();
  let_successor_start();
  const Share share(p);
  if (threadIdx.x >= kReaders) {
    if (threadIdx.x == kReaders) Asker<kRows, kParts>{p, ring, share}.run();
    wait_for_predecessor();
    return;
  }
  float sums[kTiles][4] = {};
  add_up<T, kRows>(sums, p, ring, share);
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int results = p.out / kParts, first = static_cast<int>(blockIdx.x) * (kRows / kParts);
#pragma unroll
  for (int j = 0; j < kTiles / kParts; ++j) {
    const int at = first + 8 * j + lane % 4 * 2;
    if (at >= results) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4 + 8 * half;
      if (token >= p.tokens) continue;
      const float a = sums[j][2 * half], b = sums[j][2 * half + 1];
      if constexpr (kParts == 1) {
        const size_t row = static_cast<size_t>(blockIdx.y) * p.tokens + token;
        *reinterpret_cast<float2*>(static_cast<float*>(p.y) + row * results + at) = {a, b};
      } else {
        const float* up = sums[j + kTiles / 2] + 2 * half;
        const auto gated = [&](float gate, float by, int i) {
          if (p.bias) gate += p.bias[i], by += p.bias[results + i];
          return (kEnd == MatvecEnd::kGate ? silu(gate) : gelu(gate)) * by;
        };
        const uint32_t both = pack<T>(gated(a, up[0], at), gated(b, up[1], at + 1));
        *reinterpret_cast<uint32_t*>(static_cast<T*>(p.y) + static_cast<size_t>(token) * results +
                                     at) = both;
      }
    }
  }
#else
  asm volatile("trap;");  // never launched elsewhere
#endif
}

CUtensorMap map_of(const void* data, DType dtype, size_t rows, size_t in, int box_rows) {
  return tensor_map({data, dtype, static_cast<int>(in), rows, 2 * in, 1, 2 * in}, box_rows);
}

template <class T, MatvecEnd kEnd, int kRows>
void launch_as(const SkinnyCall& c, cudaStream_t stream) {
  constexpr int kUnits = kRows / parts_of(kEnd);
  SkinnyParams p{};
  p.y = c.y;
  p.bias = c.bias;
  p.out = static_cast<int>(c.w.out);
  p.in = static_cast<int>(c.w.in);
  p.tokens = static_cast<int>(c.tokens);
  p.token_rows = 8;
  while (p.token_rows < p.tokens) p.token_rows *= 2;
  p.stages = std::min(kMostStages, kRingBytes / ((p.token_rows + kRows) * kRowBytes));
  p.x = map_of(c.x, c.w.dtype, c.tokens, c.w.in, p.token_rows);
  p.w = map_of(c.w.data, c.w.dtype, c.w.out, c.w.in, kUnits);
  const dim3 grid(static_cast<unsigned>((p.out / parts_of(kEnd) + kUnits - 1) / kUnits),
                  static_cast<unsigned>(c.form.parts));
  launch_early(skinny_kernel<T, kEnd, kRows>,
               {grid, kThreads, static_cast<size_t>(ring_bytes(p, kRows))}, p, stream,
               "products of a pass");
}

template <class T, MatvecEnd kEnd>
void launch(const SkinnyCall& c, cudaStream_t stream) {
  switch (c.form.rows) {
    case 32: return launch_as<T, kEnd, 32>(c, stream);
    case 64: return launch_as<T, kEnd, 64>(c, stream);
    default: return launch_as<T, kEnd, 128>(c, stream);
  }
}

}  // namespace skinny

void launch_skinny(const SkinnyCall& call, cudaStream_t stream) {
  const auto with = [&]<class T>() {
    switch (call.end) {
      case MatvecEnd::kGate: return skinny::launch<T, MatvecEnd::kGate>(call, stream);
      case MatvecEnd::kGelu: return skinny::launch<T, MatvecEnd::kGelu>(call, stream);
      default: return skinny::launch<T, MatvecEnd::kStore>(call, stream);
    }
  };
  call.w.dtype == DType::kBF16 ? with.template operator()<__nv_bfloat16>()
                               : with.template operator()<__half>();
}

}  // namespace pith::cuda
