// The formats with blocks of 32, and what all formats share: the rounding of inputs, and the choice
// of a format's functions. Included once a target by a file for each group of targets.

#include "hwy/cache_control.h"
#include "kernels/cpu/block_products-inl.h"

HWY_PUSH_ATTRIBUTES(PITH_BLOCKS_STR)
namespace pith {
namespace HWY_NAMESPACE {

BlockFunctions small_functions(WeightType type) {
  switch (type) {
    case WeightType::kQ4Zero: return functions_of<Q4Zero>();
    case WeightType::kQ4One: return functions_of<Q4One>();
    case WeightType::kQ5Zero: return functions_of<Q5Zero>();
    case WeightType::kQ5One: return functions_of<Q5One>();
    case WeightType::kIq4Nl: return functions_of<Iq4Nl>();
    default: return functions_of<Q8Zero>();
  }
}

namespace {

/// 32 inputs to whole numbers, of which the first n exist; zeros follow.
template <bool kWide>
HWY_INLINE void round_run(RoundedInputs& out, size_t run, const float* x, size_t n) {
  const F32 d;
  const hn::Rebind<int32_t, F32> ints;
  const hn::Rebind<int8_t, F32> bytes;
  float padded[32];
  if (n < 32) {
    std::fill(std::copy(x, x + n, padded), padded + 32, 0.0f);
    x = padded;
  }
  Vec most = hn::Zero(d), nothing = hn::Zero(d);
  for (size_t i = 0; i < 32; i += kLanes) {
    const Vec v = hn::LoadU(d, x + i);
    most = hn::Max(most, hn::Abs(v));
    nothing = hn::MulAdd(v, hn::Zero(d), nothing);  // NaN where v is not finite
  }
  const float broken = sum_lanes(nothing), largest = hn::GetLane(hn::MaxOfLanes(d, most));
  constexpr float kMost = kWide ? kLargestWide : kLargestNarrow;
  const bool zero = !(largest >= kSmallestInput) || broken != 0;
  const Vec inverse = hn::Set(d, zero ? 0 : kMost / largest);
  int sums[2];
  for (size_t h = 0; h < 2; ++h) {
    auto sum = hn::Zero(ints);
    for (size_t i = 16 * h; i < 16 * h + 16; i += kLanes) {
      const Vec scaled = zero ? hn::Zero(d) : hn::Mul(hn::LoadU(d, x + i), inverse);
      const auto whole = hn::NearestInt(scaled);
      sum = hn::Add(sum, whole);
      auto high = whole;
      if constexpr (kWide) {
        high = hn::ShiftRight<8>(hn::Add(whole, hn::Set(ints, 128)));
        const auto low = hn::Sub(whole, hn::ShiftLeft<8>(high));
        int8_t* to = reinterpret_cast<RoundedWideInputs&>(out).low + 32 * run + i;
        hn::StoreU(hn::DemoteTo(bytes, low), bytes, to);
      }
      hn::StoreU(hn::DemoteTo(bytes, high), bytes, out.codes + 32 * run + i);
    }
    sums[h] = hn::GetLane(hn::SumOfLanes(ints, sum));
  }
  const float scale = (zero ? 0 : largest / kMost) + broken;
  out.scale[run] = scale;
  out.sum[run] = scale * static_cast<float>(sums[0] + sums[1]);
  for (size_t h = 0; h < 2; ++h) out.half_sum[2 * run + h] = scale * static_cast<float>(sums[h]);
}

template <bool kWide>
void round_all(std::byte* out, const float* x, size_t n) {
  for (size_t first = 0; first < n; first += kStep) {
    auto& step = *reinterpret_cast<RoundedInputs*>(out);
    for (size_t run = 0; run < kStepRuns; ++run) {
      const size_t begin = std::min(n, first + 32 * run);
      round_run<kWide>(step, run, x + begin, std::min<size_t>(32, n - begin));
    }
    out += rounded_bytes(kStep, kWide);
  }
}

void round_inputs(std::byte* out, const float* x, size_t n, bool wide) {
  if (wide)
    round_all<true>(out, x, n);
  else
    round_all<false>(out, x, n);
}

BlockFunctions functions_for(WeightType type) {
  return block_elements(type) == 32 ? small_functions(type) : large_functions(type);
}

void multiply_blocks(const BlockProduct& product, size_t first, size_t last) {
  if (first < last) functions_for(product.type).multiply(product, first, last);
}

void decode_blocks(float* out, const void* blocks, WeightType type, size_t n) {
  functions_for(type).decode(out, static_cast<const uint8_t*>(blocks), n);
}

}  // namespace

const BlockKernels kBlockKernels = {decode_blocks, round_inputs, multiply_blocks};

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
