#pragma once
// Rows as sums of signs after a Walsh-Hadamard transform, and QJL's sign bits on what they leave.
// The transform makes a row's numbers nearly normal; each is then a sum of b signs with fixed
// weights times the row's scale: +-x0 +-x1 ..., which for b = 1, 2 are the levels of Lloyd and Max
// for normal numbers and for b = 3, 4 the best evenly spaced ones. With a sketch of m bits the rest
// r of a key is coded by sign(S r) and |r|, and
//   <q, planes> + c |r| / m <S q, sign(S r)>
// is unbiased over S whatever the planes are; its noise follows |r|, not |k|. (TurboQuant, Zandieh
// et al. 2025, is this with a random rotation.) The b signs of a number are a code, which names its
// sum in a table of 2^b levels; the sketch's part of a score is a sum over set bits.
// The scale is the one that fits best, or the one that has <x, decoded x> = |x|^2: the nearest
// levels are shorter than what they stand for, by their squared error, and what sums of many rows
// lose by that does not average out. It is twice the best at most: then the error is the row's own
// length, whatever its numbers are. After random signs of the row's numbers that makes planes
// without a sketch unbiased too (as far as the transform is a random rotation: Vargaftik et al.,
// 2022), a sketch whose numbers have b bits in the place of one. See docs/decisions/0046.
// Tight rows have a scale of 8 bits, the upper half of an f16, and the levels of Lloyd and Max for
// 3 and 4 bits too. The stored scale is up to 6% off; the thresholds between levels are moved
// together until a row is as long along itself as it was, to a third of a percent:
// docs/decisions/0260. Bytes per row: (D b + m) / 8 + 2, and 2 with a sketch; tight D b / 8 + 1.
// Cost: coding D log2 D + m D; reading a look-up a number, once for all queries, and a multiply-add
// a query; m / 4 look-ups a query.

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "rows/cpu/coded_rows.h"
#include "rows/cpu/projection.h"

namespace pith {

inline constexpr int kMostPlanes = 4;

/// Levels of normal numbers of variance 1, from 0 up (Max 1960): 3 bits, 4 bits.
inline constexpr std::array<std::array<float, 8>, 2> kNormalLevels{
    {{0.2451f, 0.7560f, 1.344f, 2.152f},
     {0.1284f, 0.3881f, 0.6568f, 0.9424f, 1.256f, 1.618f, 2.069f, 2.733f}}};

/// The weight of plane i of b, for numbers of variance 1: levels of 0.4528 and 1.5104 for b = 2,
/// steps of 0.5860 and 0.3352 for 3 and 4 (Max 1960).
constexpr float plane_weight(int planes, int i) {
  constexpr float kWeights[kMostPlanes][kMostPlanes] = {{0.79788f},
                                                        {0.98158f, 0.52882f},
                                                        {1.1720f, 0.5860f, 0.2930f},
                                                        {1.3408f, 0.6704f, 0.3352f, 0.1676f}};
  return kWeights[planes - 1][i];
}

/// Level i of tight rows from 0 up.
constexpr float tight_level(int planes, int i) {
  if (planes > 2) return kNormalLevels[static_cast<size_t>(planes - 3)][static_cast<size_t>(i)];
  if (planes == 1) return plane_weight(1, 0);
  return plane_weight(2, 0) + (i == 0 ? -plane_weight(2, 1) : plane_weight(2, 1));
}

struct PlaneFormat {
  int planes = 1;  ///< b, 1 to 4
  Sketch sketch = Sketch::kOrtho;
  std::optional<size_t> bits = {};  // m; unset: D; 0: no sketch
  bool unbias_weights = false;      ///< as QjlFormat's
  bool whole_rows = false;          ///< no sketch: scales lose nothing of a row's own direction
  bool random_turn = false;         ///< numbers get random signs before the transform
  bool tight = false;               ///< whole rows, no sketch: scales of 8 bits

  size_t sketch_bits(size_t dim) const { return bits.value_or(dim); }
  /// Numbers of 16 bits beside a row's code.
  size_t norms() const { return tight ? 0 : bits == size_t{0} ? 1 : 2; }
  size_t plane_bytes(size_t dim) const { return dim * static_cast<size_t>(planes) / 8; }
  size_t code_bytes(size_t dim) const { return plane_bytes(dim) + sketch_bits(dim) / 8 + tight; }
  /// The highest bit of a code is its sign, the others name a level of kNormalLevels.
  bool sign_and_level() const { return tight && planes > 2; }
  float weight(int i) const { return plane_weight(planes, i); }
  /// The sum that a code names: bit i is the sign of plane i.
  float level(uint32_t code) const {
    if (sign_and_level()) {
      const uint32_t sign = 1u << (planes - 1);
      const float size = kNormalLevels[static_cast<size_t>(planes - 3)][code & (sign - 1)];
      return code & sign ? size : -size;
    }
    float sum = 0;
    for (int i = 0; i < planes; ++i) sum += code >> i & 1 ? weight(i) : -weight(i);
    return sum;
  }
};

class PlaneRows final : public CodedRows {
 public:
  PlaneRows(const Context& context, const PlaneFormat& format, const RowsRequest& request,
            std::shared_ptr<const Projection> projection,
            std::shared_ptr<const Array<float>> signs);

  size_t rows() const override {
    return codes_.empty() ? 0 : (codes_.size() - kReadable) / format_.code_bytes(dim_);
  }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  size_t prepared_size(size_t queries) const override {
    return queries * (dim_ + projection_->bits() + 1);
  }
  void prepare(float* prepared, const float* q, size_t queries) const override;
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  // Values are summed as they were turned, and turned back once.
  void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                  size_t count) const override;
  void finish(float* out, const float* acc, size_t queries) const override;
  std::unique_ptr<CodedRows> clone() const override { return std::make_unique<PlaneRows>(*this); }
  void archive(Archive& a) override;
  size_t payload_bytes() const override { return rows() * format_.code_bytes(dim_); }
  size_t metadata_bytes() const override { return norms_.size() * sizeof(uint16_t); }
  size_t allocated_bytes() const override {
    return codes_.capacity_bytes() + norms_.capacity_bytes();
  }

 private:
  static constexpr size_t kReadable = 8;  // bytes past the last code

  void code(const float* x, size_t at, std::vector<float>& room);
  /// levels [D] <- the levels next to x [D] / unit, whose codes go to `bits` if there are any.
  void take_levels(float* levels, uint8_t* bits, const float* x, float unit) const;
  /// The scale of the row x [D] in 8 bits, and its codes.
  void code_tight(uint8_t* bits, float* levels, const float* x, float deviation) const;
  /// x [count, D] turned, and back.
  void turn(float* x, size_t count) const;
  void turn_back(float* x, size_t count) const;
  LevelRows level_rows(size_t first) const;
  /// out [count] <- weight times a norm of each row.
  void read_factors(float* out, size_t norm, float weight, size_t first, size_t count) const;
  template <class F>
  void for_tiles(size_t first, size_t count, F&& f) const;

  PlaneFormat format_;
  std::shared_ptr<const Projection> projection_;
  std::shared_ptr<const Array<float>> signs_;  // [D] +-1 that come before the transform; or null
  std::array<float, size_t{1} << kMostPlanes> levels_{};  // [2^b], of codes, scale 1
  // [rows, D codes of b bits, m bits or the scale of a tight row] and 8 bytes that may be read
  Array<uint8_t> codes_;
  Array<uint16_t> norms_;  // [rows, 2] f16: scale, and |r| if m > 0; none of tight rows
};

class PlaneCodec final : public Codec {
 public:
  explicit PlaneCodec(const PlaneFormat& format) : format_(format) {}
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(format_.code_bytes(dim) + 2 * format_.norms());
  }
  size_t buffers() const override { return 2; }  // codes, norms
  size_t shared_bytes() const override {
    return (projection_ ? projection_->bytes() : 0) + (signs_ ? signs_->capacity_bytes() : 0);
  }
  size_t table_bytes(const RowsRequest& request) const override;
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override;

 private:
  PlaneFormat format_;
  // Drawn when the first rows are made, which is when D is known.
  mutable std::shared_ptr<const Projection> projection_;
  mutable std::shared_ptr<const Array<float>> signs_;
};

}  // namespace pith
