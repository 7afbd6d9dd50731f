#pragma once
// Scratch that the layers of a cache share on the GPU.

#include <algorithm>
#include <vector>

#include "attend/cuda/causal.h"
#include "cache/cuda/layer_plan.h"
#include "kernels/cuda/device.h"
#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

/// Tokens that come to a cache.
struct ComingTokens {
  size_t tokens = 0;
  size_t at_once = 0;   ///< the most of them in a pass
  bool prompt = false;  ///< they may be one, of all of them
};

/// The most that a pass asks of it, in its functions' units.
struct SpaceAsked {
  size_t staging = 0, positions = 0;  // rows; numbers
  size_t pieces = 0;                  // bytes, of piece() and many()
  size_t apart = 0, unpacked = 0;     // bytes
  size_t queries = 0, partials = 0;   // tokens
  size_t select = 0;                  // rows
  size_t sums = 0, logits = 0;        // numbers
  size_t codecs = 0;                  // bytes that codecs take for a moment, each its own
  size_t layers = 0;                  // that wait for being taken together

  /// Whatever is asked of either.
  void join(const SpaceAsked& o);
  bool covers(const SpaceAsked& o) const;

 private:
  template <class F>
  static void each(const F& f);
};

/// Memory that layers use in turn: while a chunk goes through them exact rows of the chunk and of
/// the window before it, body rows unpacked a piece at a time, and partial results; while rows are
/// selected what that needs.
class ChunkSpace {
 public:
  explicit ChunkSpace(const LayerSite& site);

  static constexpr size_t kPieceRows = 8192;

  /// Bytes beyond what is held, if all of that were asked for.
  size_t more_for(const SpaceAsked& asked) const;
  size_t piece_bytes() const;
  /// Of room for `rows` rows of all KV heads, whole blocks of them.
  size_t unpacked_bytes(size_t rows) const;
  static size_t select_sums(size_t heads, size_t dim) { return heads * kSelectSums * dim; }

  /// Gives all memory back: a long prompt's was more than chunks need.
  void clear();
  /// Rows of this many layers wait for being taken together.
  void set_layers_together(size_t layers);
  size_t layers_together() const { return staging_.size(); }
  /// The next layer's chunk.
  void next_layer() { at_ = (at_ + 1) % staging_.size(); }
  /// Room for `rows` rows of all KV heads; contents are lost when it grows.
  RowTarget staging(size_t rows);
  /// The same for positions.
  int32_t* staged_positions(size_t count);
  RowTarget piece();
  /// Room for rows and queries of a layer whose heads have different rules.
  std::byte* apart(size_t bytes);
  /// Room for a chunk's queries of 16 bits.
  void* queries(size_t tokens);
  /// Sets `out` and `log_sum` of a call.
  void give_partials(CausalCall& call);
  /// Room for `rows` rows of all KV heads, whole blocks of them, that are selected from.
  RowTarget unpacked(size_t rows);
  /// Room for `bytes` bytes of codes, in the same memory.
  std::byte* codes(size_t bytes);
  /// Room for `bytes` bytes of rows that codes give back, of many layers: that of a piece, whose
  /// contents are lost. No more than many_bytes() unless one layer needs them.
  std::byte* many(size_t bytes);
  size_t many_bytes() const;
  /// Places of `bytes` bytes each that share many().
  size_t many_at_once(size_t bytes) const {
    return std::max<size_t>(1, many_bytes() / std::max<size_t>(bytes, 1));
  }
  /// Room for a selection among `rows` rows of `heads` KV heads of several layers, and for that
  /// many keys [heads, rows, D], rows being whole blocks; the contents of a piece are lost.
  struct ManyLayers {
    SelectSpace select;
    std::byte* keys = nullptr;
  };
  ManyLayers select_many(size_t heads, size_t rows);
  /// Layers of `heads` heads whose selections among `rows` rows go together, in no more memory than
  /// a piece.
  size_t layers_at_once(size_t heads, size_t rows) const;
  /// Room for a selection among `rows` rows of all KV heads; with that of numbers for each query
  /// head, if `logits`. A layer's keys and choice stay until its next, as what it stages does.
  SelectSpace select(size_t rows, bool logits = false);

 private:
  static RowTarget target_of(const DeviceBuffer& buffer, const LayerSite& site);

  LayerSite site_;
  std::vector<DeviceBuffer> staging_;            // each [2, G, rows, D]
  std::vector<DeviceArray<int32_t>> positions_;  // each [G, rows] or [rows]
  size_t at_ = 0;
  DeviceBuffer piece_;  // [2, G, rows, D]
  DeviceBuffer apart_;
  DeviceBuffer unpacked_;  // [2, G, rows, D]
  DeviceBuffer queries_;   // [T, H, D]
  DeviceArray<float> out_, log_sum_;
  std::vector<DeviceArray<uint32_t>> keys_;  // each [G, rows]
  std::vector<DeviceArray<int32_t>> kept_;   // each [G, rows]
  DeviceArray<float> sums_;
  DeviceArray<float> logits_;  // [H, rows]
};

}  // namespace pith::cuda
