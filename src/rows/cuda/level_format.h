#pragma once
// Rows of levels on the GPU: the form of every codec whose numbers are codes of a few bits with a
// scale (turboquant, kvquant, gear; kivi, int8 and int4 after a transform or around a centre).
//
//   x = low + scale level[code] + left right, numbers apart put in
//
// and of keys coded before RoPE the inverse transform and the head's mean, then RoPE.
//
// A block of 32 rows. Codes: [32 rows][lane][the lane's channels, b bits each] (level_lane.cuh says
// which those are), or in the order of tensor-core fragments (grouped_layout.h). Side, f16 but for
// channels, each part only where the format has it:
//   scales | minima | numbers apart [32, n] | their channels [32, n] bytes | left [32, r] |
//   a share of right [r, D]: 1 / group_blocks of it, in order
// One scale per row (kRow) [32], of tight rows in bytes, one for 32 numbers (kRowGroup) [32, D/32],
// one for a channel of the block (kBlockChannel) [D]; of a channel for good (kHeadChannel): in a
// table of the head, not here. Numbers of 16 bits have none (kNone): codes are rows of f16 or bf16
// as they are, [32, D], and nothing else is there.
//
// Rows along vectors (kVectors), each head's own: x = mean + scale sum_i level_i vector_i, of 0 to
// 8 bits a coordinate. Codes: [32 rows][a row's bytes], a row's coordinates from its lowest bit on.
//
// Rows that are moved from block to block alone (named_rows) have nothing of channels in their
// block's side. Parts that a group shares are a record apart, of which each row has the number;
// keys that were coded before RoPE have their positions:
//   scales | minima | numbers apart | their channels | left | numbers [32] i32 | positions [32] i32
// A record is of record_blocks blocks, keys' part then values', 16-byte pieces:
//   [record_blocks] scales [D], minima [D] | [record_blocks / group_blocks] right [r, D]
// and a row's number is record * record_blocks + its block among them.

#include <cstdint>
#include <span>

#include "attend/cuda/code_rows.h"
#include "attend/cuda/decode.h"
#include "attend/cuda/mass.h"
#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

enum class LevelScale : uint8_t { kRow, kRowGroup, kBlockChannel, kHeadChannel, kNone };
/// How a number finds its code: the nearest of evenly spaced levels; the nearest of a table; sign
/// by sign (PlaneFormat in plane_rows.h); between thresholds of a symmetric table that are moved
/// until the row keeps its length along itself (rows/tight_rows.h: scales of 8 bits); or not by
/// itself: codes are coordinates along vectors, and scales as tight rows'.
enum class LevelChoice : uint8_t { kEven, kNearest, kSigns, kTight, kVectors };

/// How a block's codes lie: see above.
enum class LevelOrder : uint8_t { kRows, kKeyFragments, kValueFragments };
/// The kernels' forms of codes: those in rows whose blocks hold what rows share, those in
/// fragments, and those in rows that may name a record or keep their positions. The last two are
/// the first and the third where a side may lie along vectors.
enum class LevelForm : uint8_t { kRows, kFragments, kNamed, kVectors, kNamedVectors };
PITH_BOTH_SIDES constexpr bool is_named(LevelForm form) {
  return form == LevelForm::kNamed || form == LevelForm::kNamedVectors;
}
PITH_BOTH_SIDES constexpr bool has_vectors(LevelForm form) {
  return form == LevelForm::kVectors || form == LevelForm::kNamedVectors;
}

/// Above this head_dim codes lie in rows, whatever the codec: nothing knows fragments there.
inline constexpr int kMostFragmentDim = 128;

/// f.operator()<form>(), for kernels whose form is known when they are compiled: all forms but
/// those along vectors, or all.
template <int D, class F>
auto for_level_form(LevelForm form, const F& f) {
  if constexpr (D <= kMostFragmentDim) {
    if (form == LevelForm::kFragments) return f.template operator()<LevelForm::kFragments>();
  }
  return form == LevelForm::kNamed ? f.template operator()<LevelForm::kNamed>()
                                   : f.template operator()<LevelForm::kRows>();
}
template <int D, class F>
auto for_form(LevelForm form, const F& f) {
  if (form == LevelForm::kVectors) return f.template operator()<LevelForm::kVectors>();
  if (form == LevelForm::kNamedVectors) return f.template operator()<LevelForm::kNamedVectors>();
  return for_level_form<D>(form, f);
}

/// The vectors that rows of each head lie along, R coordinates of `room`, a multiple of 16; those
/// behind R have no bits and vectors of 0.
struct LevelVectors {
  /// Levels of b bits begin at number 2^b - 1; the first number is 0, that of no bits.
  static constexpr int kLevels = 512;
  static constexpr int kMostBits = 8;
  int row_bytes = 0;                  ///< of a row's codes
  int room = 0;                       ///< coordinates
  const float* levels = nullptr;      // [kLevels]
  const int32_t* counts = nullptr;    // [B G] R
  const uint32_t* places = nullptr;   // [B G, room] first bit in a row | bits << 16
  const float* deviations = nullptr;  // [B G, room] lengths of the vectors
  const uint32_t* vectors = nullptr;  // [B G, room / 2, D] two neighbours' numbers, f16
};

/// Keys or values.
struct LevelSide {
  static constexpr int kMostLevels = 16;  ///< of a table
  static constexpr int kMostApart = 8, kMostRank = 8;

  int bits = 4;  ///< of a code: 1, 2, 3, 4 or 8; 16: see above; along vectors: 0
  LevelScale scale = LevelScale::kRow;
  LevelChoice choice = LevelChoice::kEven;
  LevelOrder order = LevelOrder::kRows;  ///< fragments: at most 4 bits; looked up, 3
  bool bf16 = false;                     ///< numbers of 16 bits: they are bf16, not f16
  bool minima = false;                   ///< beside the scales
  bool rotated = false;                  ///< rows lie as a Walsh-Hadamard transform left them
  uint32_t flips[8] = {};                ///< [D bits] keys: channels that change sign before it
  bool whole_rows = false;               ///< kSigns: scales as PlaneFormat's
  int zero = 0;                          ///< kEven: the code of 0
  int apart = 0;                         ///< numbers of a row in f16, n
  bool missed = false;   ///< those are what the other parts miss, else the numbers themselves
  int rank = 0;          ///< r of the product that a group's rows share
  bool centred = false;  ///< the product is the group's mean: r = 1 and left is 1
  int group_blocks = 1;  ///< blocks that share `right`: 1, 2, 4 or 8

  // Of rows that stand alone:
  bool positions = false;  ///< they have them beside them, for `turns`
  int record_bytes = 0;    ///< of a whole record; 0: rows name none
  int record_at = 0;       ///< where this side's part of it begins
  int record_shift = 0;    ///< of record_blocks, a power of two

  float levels[kMostLevels] = {};      ///< of all heads
  const float* head_levels = nullptr;  // [B G, 16], instead of `levels`
  const uint16_t* ranges = nullptr;    // [B G, 2, D] f16 minima and scales: kHeadChannel
  const double* turns = nullptr;       // [D/2] of RoPE: keys were coded before it; or null
  const uint16_t* means = nullptr;     // [B G, D] f16 of keys coded before RoPE, or of rows along
                                       // vectors, that were taken off; or null
  LevelVectors along;                  ///< kVectors

  PITH_BOTH_SIDES constexpr bool by_vectors() const { return choice == LevelChoice::kVectors; }
  PITH_BOTH_SIDES constexpr int row_bytes(int dim) const {
    return by_vectors() ? along.row_bytes : dim * bits / 8;
  }
  PITH_BOTH_SIDES constexpr int code_bytes(int dim) const { return kBlockRows * row_bytes(dim); }
  constexpr int side_bytes(int dim) const;
  constexpr int group_rows() const { return kBlockRows * group_blocks; }
  PITH_BOTH_SIDES constexpr int scale_bytes() const { return tight() ? 1 : 2; }
  /// Scales are bytes (rows/tight_rows.h).
  PITH_BOTH_SIDES constexpr bool tight() const {
    return choice == LevelChoice::kTight || by_vectors();
  }
  /// Fragments: codes name levels of a table, and are never moved; else they are sums of signs.
  PITH_BOTH_SIDES constexpr bool looked_up() const { return choice == LevelChoice::kTight; }
  /// Built rows lie as codes do, and queries are transformed. Keys coded before RoPE are
  /// transformed back.
  PITH_BOTH_SIDES constexpr bool meets_rotated() const { return rotated && !turns; }
  /// Rows share something with their neighbours.
  constexpr bool shares() const { return rank > 0 || scale == LevelScale::kBlockChannel; }
  /// Rows may be moved alone: what they share, if they do, is in records.
  constexpr bool rows_alone() const { return !shares() || record_bytes > 0; }
  constexpr LevelForm form() const {
    const bool named = record_bytes > 0 || positions;
    if (by_vectors()) return named ? LevelForm::kNamedVectors : LevelForm::kVectors;
    if (named) return LevelForm::kNamed;
    return order == LevelOrder::kRows ? LevelForm::kRows : LevelForm::kFragments;
  }
  /// Bytes of scales and minima of one block's channels, of what a group's product has at its
  /// right, and of this side's part of a record.
  PITH_BOTH_SIDES constexpr int channel_bytes(int dim) const {
    return scale == LevelScale::kBlockChannel ? 2 * dim * (minima ? 2 : 1) : 0;
  }
  PITH_BOTH_SIDES constexpr int right_bytes(int dim) const { return 2 * rank * dim; }
  constexpr int record_part(int dim, int blocks) const {
    return blocks * channel_bytes(dim) + blocks / group_blocks * right_bytes(dim);
  }
};

/// Bytes at which the parts of a side begin, and the side's own.
struct LevelPlaces {
  int scales = 0;  ///< how many there are
  int minima = 0, apart = 0, channels = 0, left = 0, numbers = 0, positions = 0, share = 0;
  int share_bytes = 0, side = 0;

  static constexpr LevelPlaces of(const LevelSide& f, int dim) {
    const bool named = f.record_bytes > 0;
    const bool elsewhere = f.scale == LevelScale::kHeadChannel || f.scale == LevelScale::kNone ||
                           (f.scale == LevelScale::kBlockChannel && named);
    LevelPlaces at;
    at.scales = elsewhere ? 0 : f.scale == LevelScale::kRow ? kBlockRows : dim;
    at.minima = f.scale_bytes() * at.scales;
    at.apart = at.minima * (f.minima ? 2 : 1);
    at.channels = at.apart + 2 * kBlockRows * f.apart;
    at.left = at.channels + kBlockRows * f.apart;
    at.numbers = at.left + (f.centred ? 0 : 2 * kBlockRows * f.rank);
    at.positions = at.numbers + (named ? 4 * kBlockRows : 0);
    at.share = at.positions + (f.positions ? 4 * kBlockRows : 0);
    at.share_bytes = named ? 0 : (f.right_bytes(dim) / f.group_blocks + 15) / 16 * 16;
    at.side = at.share + at.share_bytes;
    return at;
  }
};
constexpr int LevelSide::side_bytes(int dim) const { return LevelPlaces::of(*this, dim).side; }

/// As kernels take it: they divide nothing.
struct PlacedSide : LevelSide {
  LevelPlaces at;
  PlacedSide() = default;
  PlacedSide(const LevelSide& side, int dim) : LevelSide(side), at(LevelPlaces::of(side, dim)) {}
};

struct LevelFormat {
  LevelSide keys, values;
  GroupedBytes bytes(int dim) const;
  constexpr bool rows_alone() const { return keys.rows_alone() && values.rows_alone(); }
  constexpr bool named() const { return is_named(keys.form()) || is_named(values.form()); }
  constexpr bool by_vectors() const { return keys.by_vectors() || values.by_vectors(); }
  /// Blocks of a record: those of the larger group.
  constexpr int record_blocks() const {
    return keys.group_blocks > values.group_blocks ? keys.group_blocks : values.group_blocks;
  }
  /// The same with rows that stand alone at head_dim `dim`; `turned`: RoPE is applied to
  /// keys when they are read.
  LevelFormat named_rows(int dim, bool turned) const;
};

/// Random numbers of the products' beginnings: of head h the stream (seed, layer, first + 2 h).
struct LevelRandom {
  uint64_t seed = 0;
  uint32_t layer = 0, first = 0;
};

/// The first rows of one side's heads, from which a codec learns.
struct HeadSample {
  const void* rows = nullptr;  // [heads, .., D]
  size_t head_stride = 0;      ///< numbers between heads
  DType dtype = DType::kF16;   ///< kF16 or kBF16
  int heads = 0, count = 0, dim = 0;
  RowPositions positions;
};

/// Throws kUnsupported if `what` needs more bytes of shared memory than the card's blocks have.
void check_level_room(const char* what, size_t bytes);
/// Codes rows in whole groups; RoPE is taken off keys that have `turns` first.
void code_levels(const LevelSide& side, const LevelRandom& random, const CodeBatch& batch,
                 std::span<const CodeJob> jobs, cudaStream_t stream);
/// Rows of many places back from whole groups of blocks.
void unpack_levels(const LevelSide& side, std::span<const UnpackRowsCall> calls,
                   cudaStream_t stream);
/// Decode attention over dense spans and coded ones; a coded span is in format number coded - 1.
inline constexpr int kMostLevelFormats = 2;
void decode_levels(std::span<const LevelFormat> formats, const DecodeCall& call,
                   const DecodeScratch& scratch, cudaStream_t stream);
/// The same of one format that is named().
void decode_named_levels(const LevelFormat& format, const DecodeCall& call,
                         const DecodeScratch& scratch, cudaStream_t stream);
/// The same of one format with a side along vectors.
void decode_along_vectors(const LevelFormat& format, const DecodeCall& call,
                          const DecodeScratch& scratch, cudaStream_t stream);
/// Formats whose rows stand alone.
void find_level_records(const LevelFormat& format, const FindRecordsCall& call,
                        cudaStream_t stream);
/// Of one side, at many places: keys, else values.
void move_level_rows(const LevelSide& side, bool keys, std::span<const MoveCodesCall> calls,
                     cudaStream_t stream);
void add_level_mass(const LevelSide& keys, const TokenMass& call, const MassTarget* target,
                    cudaStream_t stream);

}  // namespace pith::cuda
