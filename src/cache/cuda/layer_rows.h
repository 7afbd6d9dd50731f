#pragma once
// The rows of one layer on the GPU: how they are laid out, what attention is told of them, and when
// they move. Two layouts: everything in one dense run, and sink | body | window with a body that is
// coded or dropped.

#include <memory>
#include <string>
#include <vector>

#include "append/schedule.h"
#include "attend/cuda/causal.h"
#include "attend/cuda/device_codec.h"
#include "cache/kv_cache.h"
#include "kernels/cuda/layer.h"

namespace pith::cuda {

/// What the policy makes of a layer. Made by plan_layer.
struct LayerPlan {
  DType dtype = DType::kF16;  ///< of exact rows
  bool straight = true;       ///< every row stays, exact
  // Otherwise:
  ScheduleShape schedule;
  std::shared_ptr<const DeviceCodec> codec;  ///< of the body, if it is kept
};

/// Throws kUnsupported, naming what the GPU does not do.
LayerPlan plan_layer(const PolicyRule& rule, const CacheShape& shape);

/// What all layers' rows are made with.
struct LayerSite {
  MemoryCounter* memory = nullptr;
  cudaStream_t stream = nullptr;
  size_t query_heads = 0, heads = 0, dim = 0;  // H, G, D
  size_t context = 0;                          ///< tokens expected; 0 = unknown
};

/// A block of 32 rows of all KV heads that leaves a window.
struct CodeMove {
  const DeviceCodec* codec = nullptr;
  CodeJob keys, values;
};

/// Memory that layers use in turn while a chunk goes through them: exact rows of the chunk and of
/// the window before it, body rows unpacked a piece at a time, and partial results.
class ChunkSpace {
 public:
  explicit ChunkSpace(const LayerSite& site);

  static constexpr size_t kPieceRows = 8192;

  /// Room for `rows` rows of all KV heads; contents are lost when it grows.
  RowTarget staging(size_t rows);
  RowTarget piece();
  /// Sets `out` and `log_sum` of a call.
  void lend_partials(CausalCall& call);

 private:
  static RowTarget target_of(const DeviceBuffer& buffer, const LayerSite& site);

  LayerSite site_;
  DeviceBuffer staging_, piece_;  // [2, G, rows, D]
  DeviceArray<float> out_, log_sum_;
};

class LayerRows {
 public:
  virtual ~LayerRows() = default;
  virtual std::unique_ptr<LayerRows> clone() const = 0;

  /// Spans a KV head.
  virtual size_t spans() const = 0;
  /// Makes room for one token; spans [G, spans()] are told as they will be with its row in place.
  virtual RowTarget begin_token(DeviceSpan* spans) = 0;
  /// `call` lacks nothing. Depends on nothing that changes from token to token.
  virtual void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const = 0;
  /// Rows that must be coded now are asked for in `moves`; the caller codes those of all layers
  /// together.
  virtual void end_token(std::vector<CodeMove>& moves) = 0;

  /// Where the chunk's rows go.
  virtual RowTarget begin_chunk(size_t tokens, ChunkSpace& space) = 0;
  /// `call` lacks the spans and the partial results.
  virtual void attend_chunk(CausalCall call, ChunkSpace& space) = 0;
  virtual void end_chunk(size_t tokens, ChunkSpace& space) = 0;

  /// Positions of the rows held, ascending; the same for all heads.
  virtual std::vector<int64_t> positions() const = 0;
  virtual size_t tokens() const = 0;
  /// Bytes and rows, of all heads; tokens and channels are the caller's business.
  virtual void add_to(Ledger& ledger) const = 0;
};

std::unique_ptr<LayerRows> make_layer_rows(const LayerPlan& plan, const LayerSite& site);

}  // namespace pith::cuda
