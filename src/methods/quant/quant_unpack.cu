// Coded rows back to dense ones: one thread block a block of 32 rows. Memory-bound: reads the codes
// and writes 2 bytes a number.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "methods/quant/quant_coder.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int D, int kBits, Grouping kGrouping>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(T* out, size_t head_stride, const uint32_t* codes, const __half* side,
                  size_t block_stride) {
  constexpr bool kKeys = kIsKeys<kGrouping>, kMinima = kHasMinima<kGrouping>;
  constexpr int kScales = D;  // one a channel, or D / 32 for each of 32 rows
  const size_t block = blockIdx.y * block_stride + blockIdx.x;
  codes += block * D * kBits;
  side += block * kScales * (kMinima ? 2 : 1);
  T* to = out + blockIdx.y * head_stride + static_cast<size_t>(blockIdx.x) * kBlockRows * D;
  for (int i = threadIdx.x; i < kBlockRows * D; i += kThreads) {
    const int row = i / D, channel = i % D;
    CodePlace place;
    int scale_at;
    if constexpr (kKeys) {
      place = layout::key(row, channel, D, kBits);
      scale_at = kGrouping == Grouping::kChannelKeys ? layout::key_channel_scale(channel)
                                                     : layout::key_token_scale(row, channel / 32);
    } else {
      place = layout::value(row, channel, D, kBits);
      scale_at = layout::value_scale(row, channel / 32, D);
    }
    const float scale = __half2float(side[scale_at]);
    float low;
    if constexpr (kMinima) {
      low = __half2float(side[kScales + scale_at]);
    } else {
      low = -scale * (1 << (kBits - 1));
    }
    const uint32_t code = codes[place.word] >> place.bit & ((1u << kBits) - 1);
    to[i] = from_float<T>(low + scale * static_cast<float>(code));
  }
}

template <int kBits, Grouping kGrouping>
void unpack(const UnpackRowsCall& call, cudaStream_t stream) {
  if (call.blocks == 0) return;
  const auto launch = [&]<class T, int D>() {
    const dim3 grid(call.blocks, call.heads);
    launch_kernel(unpack_kernel<T, D, kBits, kGrouping>, {grid, kThreads}, stream,
                  "unpacking of coded rows", static_cast<T*>(call.out), call.head_stride,
                  static_cast<const uint32_t*>(call.codes), static_cast<const __half*>(call.side),
                  call.block_stride);
  };
  const bool bf16 = call.dtype == DType::kBF16;
  if (call.head_dim == 64) {
    bf16 ? launch.template operator()<__nv_bfloat16, 64>()
         : launch.template operator()<__half, 64>();
  } else {
    bf16 ? launch.template operator()<__nv_bfloat16, 128>()
         : launch.template operator()<__half, 128>();
  }
}

}  // namespace

void unpack_grouped_keys(GroupedCodec codec, const UnpackRowsCall& call, cudaStream_t stream) {
  switch (codec) {
    case GroupedCodec::kKivi2: return unpack<2, Grouping::kChannelKeys>(call, stream);
    case GroupedCodec::kKivi4: return unpack<4, Grouping::kChannelKeys>(call, stream);
    case GroupedCodec::kInt4: return unpack<4, Grouping::kTokenKeys>(call, stream);
    case GroupedCodec::kInt8: return unpack<8, Grouping::kTokenKeys>(call, stream);
  }
}

void unpack_grouped_values(GroupedCodec codec, const UnpackRowsCall& call, cudaStream_t stream) {
  switch (codec) {
    case GroupedCodec::kKivi2: return unpack<2, Grouping::kAsymmetricValues>(call, stream);
    case GroupedCodec::kKivi4: return unpack<4, Grouping::kAsymmetricValues>(call, stream);
    case GroupedCodec::kInt4: return unpack<4, Grouping::kSymmetricValues>(call, stream);
    case GroupedCodec::kInt8: return unpack<8, Grouping::kSymmetricValues>(call, stream);
  }
}

}  // namespace pith::cuda
