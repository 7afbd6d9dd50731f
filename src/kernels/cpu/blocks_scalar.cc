// Plain C++ twins of the block formats' primitives. A format is its loop over one block, in the
// order of operations of the format's reference: results are equal to the last bit.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/dtype.h"
#include "kernels/cpu/block_tables.h"

namespace pith {
namespace {

float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_f32(bits);
}

/// Number e of 32 in 16 bytes: the low halves first.
int nibble(const uint8_t* codes, int e) { return e < 16 ? codes[e] & 15 : codes[e - 16] >> 4; }
int fifth_bit(const uint8_t* bits, int e) { return ((bits[e / 8] >> (e % 8)) & 1) << 4; }

void q8_zero(float* y, const uint8_t* b) {
  for (int e = 0; e < 32; ++e) y[e] = half_at(b) * static_cast<int8_t>(b[2 + e]);
}
void q4_zero(float* y, const uint8_t* b) {
  for (int e = 0; e < 32; ++e) y[e] = half_at(b) * static_cast<float>(nibble(b + 2, e) - 8);
}
void q4_one(float* y, const uint8_t* b) {
  for (int e = 0; e < 32; ++e) {
    const float scaled = half_at(b) * static_cast<float>(nibble(b + 4, e));
    y[e] = scaled + half_at(b + 2);
  }
}
void q5_zero(float* y, const uint8_t* b) {
  for (int e = 0; e < 32; ++e)
    y[e] = half_at(b) * static_cast<float>(nibble(b + 6, e) + fifth_bit(b + 2, e) - 16);
}
void q5_one(float* y, const uint8_t* b) {
  for (int e = 0; e < 32; ++e) {
    const float scaled = half_at(b) * static_cast<float>(nibble(b + 8, e) + fifth_bit(b + 4, e));
    y[e] = scaled + half_at(b + 2);
  }
}
void iq4_nl(float* y, const uint8_t* b) {
  for (int e = 0; e < 32; ++e) y[e] = half_at(b) * kIq4Levels[nibble(b + 2, e)];
}

/// Two bits of four runs of 32 in 32 bytes, twice.
int two_bits(const uint8_t* codes, int e) {
  return (codes[e / 128 * 32 + e % 32] >> (2 * (e % 128 / 32))) & 3;
}

void q2_k(float* y, const uint8_t* b) {
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int e = 0; e < 256; ++e) {
    const int s = b[e / 16];
    const float scaled = d * static_cast<float>(s & 15) * static_cast<float>(two_bits(b + 16, e));
    y[e] = scaled - dmin * static_cast<float>(s >> 4);
  }
}
void q3_k(float* y, const uint8_t* b) {
  const uint8_t *high = b, *codes = b + 32, *t = b + 96;
  const float d = half_at(b + 108);
  for (int e = 0; e < 256; ++e) {
    const int j = e / 16;
    const int s = ((t[j % 8] >> (4 * (j / 8))) & 15) + 16 * ((t[8 + j % 4] >> (2 * (j / 4))) & 3);
    const int bit = (high[e % 32] >> (e / 32)) & 1;
    y[e] = d * static_cast<float>(s - 32) * static_cast<float>(two_bits(codes, e) + 4 * bit - 4);
  }
}

/// The 6-bit scale and minimum of run j of 32, from Q4_K's and Q5_K's 12 bytes.
void pair_of(const uint8_t* t, int j, int& scale, int& minimum) {
  if (j < 4) {
    scale = t[j] & 63;
    minimum = t[j + 4] & 63;
  } else {
    scale = (t[j + 4] & 15) + 16 * (t[j - 4] >> 6);
    minimum = (t[j + 4] >> 4) + 16 * (t[j] >> 6);
  }
}
void q45_k(float* y, const uint8_t* b, const uint8_t* codes, const uint8_t* fifth) {
  const float d = half_at(b), dmin = half_at(b + 2);
  for (int e = 0; e < 256; ++e) {
    const int j = e / 32;
    int scale, minimum;
    pair_of(b + 4, j, scale, minimum);
    int q = (codes[e / 64 * 32 + e % 32] >> (4 * (j & 1))) & 15;
    if (fifth) q += ((fifth[e % 32] >> j) & 1) << 4;
    const float scaled = d * static_cast<float>(scale) * static_cast<float>(q);
    y[e] = scaled - dmin * static_cast<float>(minimum);
  }
}
void q4_k(float* y, const uint8_t* b) { q45_k(y, b, b + 16, nullptr); }
void q5_k(float* y, const uint8_t* b) { q45_k(y, b, b + 48, b + 16); }

void q6_k(float* y, const uint8_t* b) {
  const float d = half_at(b + 208);
  for (int e = 0; e < 256; ++e) {
    const int n = e / 128, g = e % 128 / 32, l = e % 32;
    const int low = (b[64 * n + 32 * (g & 1) + l] >> (4 * (g >> 1))) & 15;
    const int high = (b[128 + 32 * n + l] >> (2 * g)) & 3;
    const auto scale = static_cast<float>(static_cast<int8_t>(b[192 + e / 16]));
    y[e] = d * scale * static_cast<float>(low + 16 * high - 32);
  }
}
void iq4_xs(float* y, const uint8_t* b) {
  const float d = half_at(b);
  for (int e = 0; e < 256; ++e) {
    const int j = e / 32;
    const int high = ((b[2 + j / 4] >> (2 * (j % 4))) & 3) << 4;
    const int scale = ((b[4 + j / 2] >> (4 * (j & 1))) & 15) + high - 32;
    y[e] = d * static_cast<float>(scale) * kIq4Levels[nibble(b + 8 + 16 * j, e % 32)];
  }
}

using Decode = void (*)(float*, const uint8_t*);

Decode decoder(WeightType type) {
  switch (type) {
    case WeightType::kQ8Zero: return q8_zero;
    case WeightType::kQ4Zero: return q4_zero;
    case WeightType::kQ4One: return q4_one;
    case WeightType::kQ5Zero: return q5_zero;
    case WeightType::kQ5One: return q5_one;
    case WeightType::kIq4Nl: return iq4_nl;
    case WeightType::kQ2K: return q2_k;
    case WeightType::kQ3K: return q3_k;
    case WeightType::kQ4K: return q4_k;
    case WeightType::kQ5K: return q5_k;
    case WeightType::kQ6K: return q6_k;
    case WeightType::kIq4Xs: return iq4_xs;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16: break;
  }
  return nullptr;
}

int whole_at(const BlockProduct& p, size_t token, size_t i, float& scale) {
  const std::byte* row = p.x + token * rounded_bytes(p.in, p.wide);
  const size_t step = i / kInputStep, at = i % kInputStep;
  const auto* wide = reinterpret_cast<const RoundedWideInputs*>(row) + step;
  const RoundedInputs& x = p.wide ? wide->high : reinterpret_cast<const RoundedInputs*>(row)[step];
  scale = x.scale[at / 32];
  return p.wide ? 256 * x.codes[at] + wide->low[at] : x.codes[at];
}

void round_32(RoundedInputs& out, int8_t* low, size_t block, const float* x, size_t n) {
  float largest = 0;
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::abs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  const float most = low ? kLargestWide : kLargestNarrow;
  const bool zero = largest < kSmallestInput || !finite;
  const float inverse = zero ? 0 : most / largest;
  int sums[2] = {0, 0};
  for (size_t i = 0; i < 32; ++i) {
    const float scaled = i < n && !zero ? x[i] * inverse : 0;
    const int whole = static_cast<int>(std::nearbyint(scaled));
    sums[i / 16] += whole;
    const int high = low ? (whole + 128) >> 8 : whole;
    out.codes[32 * block + i] = static_cast<int8_t>(high);
    if (low) low[32 * block + i] = static_cast<int8_t>(whole - 256 * high);
  }
  const float scale =
      finite ? (zero ? 0 : largest / most) : std::numeric_limits<float>::quiet_NaN();
  out.scale[block] = scale;
  out.sum[block] = scale * static_cast<float>(sums[0] + sums[1]);
  for (size_t h = 0; h < 2; ++h) out.half_sum[2 * block + h] = scale * static_cast<float>(sums[h]);
}

void decode_blocks(float* out, const void* blocks, WeightType type, size_t n) {
  const Decode decode = decoder(type);
  const size_t elements = block_elements(type), bytes = block_bytes(type);
  const auto* b = static_cast<const uint8_t*>(blocks);
  for (size_t i = 0; i < n; i += elements, b += bytes) decode(out + i, b);
}

void round_inputs(std::byte* out, const float* x, size_t n, bool wide) {
  for (size_t first = 0; first < n; first += kInputStep) {
    auto* step = reinterpret_cast<RoundedInputs*>(out);
    int8_t* low = wide ? reinterpret_cast<RoundedWideInputs*>(out)->low : nullptr;
    for (size_t b = 0; b < 8; ++b) {
      const size_t begin = std::min(n, first + 32 * b);
      round_32(*step, low, b, x + begin, std::min<size_t>(32, n - begin));
    }
    out += rounded_bytes(kInputStep, wide);
  }
}

void multiply_blocks(const BlockProduct& p, size_t first, size_t last) {
  const size_t bytes = row_bytes(p.type, p.in), elements = block_elements(p.type);
  const Decode decode = decoder(p.type);
  float y[kInputStep];
  for (size_t t = 0; t < p.tokens; ++t) {
    for (size_t o = first; o < last; ++o) {
      const auto* row = reinterpret_cast<const uint8_t*>(p.w + o * bytes);
      double sum = 0;
      for (size_t i = 0; i < p.in; i += elements, row += block_bytes(p.type)) {
        decode(y, row);
        for (size_t e = 0; e < elements; ++e) {
          float scale = 0;
          const int whole = whole_at(p, t, i + e, scale);
          sum += double{y[e]} * whole * scale;
        }
      }
      p.out[t * p.ld + o] = static_cast<float>(sum);
    }
  }
}

}  // namespace

const BlockKernels kScalarBlockKernels = {decode_blocks, round_inputs, multiply_blocks};

}  // namespace pith
