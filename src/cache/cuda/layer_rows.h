#pragma once
// The rows of one layer on the GPU: how they are laid out, what attention is told of them, and when
// they move.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attend/cuda/causal.h"
#include "attend/cuda/device_codec.h"
#include "attend/cuda/device_selector.h"
#include "attend/cuda/mass.h"
#include "cache/cuda/late_work.h"
#include "cache/kv_cache.h"
#include "kernels/cuda/layer.h"
#include "plan/plan.h"

namespace pith::cuda {

/// What the policy makes of a layer. Made by plan_layer.
struct LayerPlan {
  DType dtype = DType::kF16;  ///< of exact rows
  bool straight = true;       ///< every row stays, exact
  // Otherwise:
  size_t seen = 0;  ///< rows that a query sees, its own among them; 0: all
  ScheduleShape schedule;
  std::shared_ptr<const Rule> rule;  ///< when and how many: the CPU's
  bool cache_positions = false;      ///< the sink stands right before the window
  // Of the body:
  std::shared_ptr<const DeviceCodec> codec;  ///< of the rows that stay for good
  bool before_rope = false;                  ///< its keys are rotated when they are read
  /// What a group shares is found when it is coded: rows come in whole groups, and in no other
  /// number, also where each stands alone from then on.
  bool shares = false;
  std::string codec_name;  ///< of that codec and its form: equal names are equal codecs
  SelectorOnGpu selector;  ///< none: all rows do, or none

  /// Rows that leave the window stay nowhere beside it: they go into a body, or are dropped.
  bool flows() const { return !straight && !selector.chooser && !selector.heavy; }
};

/// KV heads side by side.
struct HeadRange {
  int first = 0, count = 0;
};
/// For heads of a cohort that was resolved for the GPU.
LayerPlan plan_layer(const CohortPolicy& policy, const HeadRange& heads);

/// RoPE's radians a position of each pair of channels, on both sides.
struct RopeTable {
  RopeTable(MemoryCounter& memory, const std::vector<double>& radians, cudaStream_t stream)
      : host(radians), device(memory, MemoryKind::kScratch, radians.size(), stream) {
    device.upload(host.data(), host.size(), stream);
  }
  std::vector<double> host;    // [D/2]
  DeviceArray<double> device;  // [D/2]
};

/// What all layers' rows are made with.
struct LayerSite {
  CountedBy memory;
  cudaStream_t stream = nullptr;
  size_t query_heads = 0, heads = 0, dim = 0;  // H, G, D
  size_t context = 0;                          ///< tokens expected; 0 = unknown
  const RopeTable* rope = nullptr;             ///< of the layer; null = not known
};

/// Memory that layers use in turn: while a chunk goes through them exact rows of the chunk and of
/// the window before it, body rows unpacked a piece at a time, and partial results; while rows are
/// selected what that needs.
class ChunkSpace {
 public:
  explicit ChunkSpace(const LayerSite& site);

  static constexpr size_t kPieceRows = 8192;

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
  void lend_partials(CausalCall& call);
  /// Room for `rows` rows of all KV heads, whole blocks of them, that are judged.
  RowTarget unpacked(size_t rows);
  /// Room for a selection among `rows` rows of all KV heads; with that of numbers for each query
  /// head, if `logits`.
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
  DeviceArray<uint32_t> keys_;  // [G, rows]
  DeviceArray<int32_t> kept_;   // [G, rows]
  DeviceArray<float> sums_;
  DeviceArray<float> logits_;  // [H, rows]
};

/// What a rule's kernels read beside rows and queries.
struct TokenNote {
  MassTarget mass;
  QueryNote queries;
  int64_t evicted = 0;  ///< rows that the sink moves up by, where positions are the cache's
  RowTarget target;     ///< of a run of heads: see HeadRuns
};
/// What a token's kernels read, as it is written on the host: one layer's.
struct TokenSlots {
  DeviceSpan* spans = nullptr;  // [G, spans()]
  TokenNote* note = nullptr;    // [notes()]
};
/// One layer's step of a token.
struct TokenStep {
  DecodeCall call;  ///< lacks nothing; log_sum is there
  const DecodeScratch& scratch;
  const TokenNote* note = nullptr;  // [notes()], on the device
  /// A query without a row of its own, that selectors do not see: spans are write_spans's.
  bool only_reads = false;

  /// The call is launched at once: work behind it needs its result, or it is at another place.
  DecodeCall alone() const {
    DecodeCall own = call;
    own.company.groups = nullptr;
    return own;
  }
};

/// The stream that a saved layer has seen: its plan is replayed.
struct SeenStream {
  uint64_t tokens = 0;
  std::span<const uint64_t> prompt_ends;
};

class LayerRows {
 public:
  virtual ~LayerRows() = default;
  virtual std::unique_ptr<LayerRows> clone() const = 0;

  /// Spans a KV head.
  virtual size_t spans() const = 0;
  virtual size_t notes() const { return 1; }
  /// Makes room for one token; spans are told as they will be with its row in place.
  virtual RowTarget begin_token(const TokenSlots& slots) = 0;
  /// Depends on nothing that changes from token to token.
  virtual void attend_token(const TokenStep& step) const = 0;
  /// Whether begin_token() takes no memory and changes nothing but what it writes.
  virtual bool begins_freely() const = 0;
  /// Rows that go into the body now are named in `late`, as other work that may wait until all
  /// layers have ended; the caller lets it be done together, before the next pass.
  virtual void end_token(ChunkSpace& space, LateWork& late) = 0;

  /// The spans of what is held, for a query that stands behind it and brings no row.
  virtual void write_spans(const TokenSlots& slots) = 0;
  /// A chunk's queries over the same: `call` is as attend_chunk's. Its `out`, which is lent, has
  /// the result; `first` is still set if nothing is held.
  virtual void attend_held(CausalCall& call, ChunkSpace& space) = 0;

  /// Where the chunk's rows go.
  virtual RowTarget begin_chunk(size_t tokens, ChunkSpace& space) = 0;
  /// `call` lacks the spans and the partial results.
  virtual void attend_chunk(CausalCall call, ChunkSpace& space) = 0;
  /// As end_token, of moves alone.
  virtual void end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) = 0;
  /// As end_chunk, of a chunk that nobody attended from.
  virtual void append_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) {
    end_chunk(tokens, space, moves);
  }
  /// Layers whose moves at a chunk's end are worth taking together.
  virtual size_t layers_together() const { return 1; }
  /// The prompt is complete.
  virtual void end_prefill(ChunkSpace& /*space*/) {}
  /// Replaces the rows to protect; those of tokens already here must not change. spans() may grow.
  virtual void protect(const ProtectedRows& rows) = 0;

  /// Positions and weights of one head's rows, in any order.
  virtual void add_rows(HeadRows& rows, size_t head) const = 0;
  /// Which of them are in codes.
  virtual void add_codes(std::vector<HeadCodes>& /*codes*/, size_t /*head*/) const {}
  /// One head's of a token's spans, as begin_token wrote them.
  virtual std::span<const DeviceSpan> spans_of(const DeviceSpan* spans, size_t head) const {
    return {spans + head * this->spans(), this->spans()};
  }
  virtual size_t tokens() const = 0;
  /// All that is held between passes. Loading: into rows that have seen nothing, whose protected
  /// ones are set.
  virtual void archive(Archive& a, const SeenStream& seen) = 0;
  /// Bytes and rows, of all heads; tokens and channels are the caller's business.
  virtual void add_to(Ledger& ledger) const = 0;
};

/// What a layer's bodies are made with.
BodySite body_site(const LayerPlan& plan, const LayerSite& site);

/// When the layer's rows move. Rows that leave a window together need no memory on the way.
Plan plan_of(const LayerPlan& layer);

std::unique_ptr<LayerRows> make_layer_rows(const LayerPlan& plan, const LayerSite& site);

}  // namespace pith::cuda
