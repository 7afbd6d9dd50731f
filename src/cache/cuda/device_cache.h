#pragma once
// The cache of one sequence on the GPU. How many rows lie where depends on counts alone, so the
// host plans every step by itself; what a decode step's kernels read is uploaded once a step, and
// nothing waits for the device.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/cuda/device_common.h"
#include "cache/cuda/device_probe.h"
#include "cache/cuda/layer_rows.h"
#include "cache/cuda/sink_logits.h"
#include "cache/stream_notes.h"
#include "kernels/cuda/pinned.h"

namespace pith::cuda {

class DeviceCache {
 public:
  /// `memory` must outlive the cache, its parent the clones. Without ropes policies that need them
  /// are refused. `common` is that of all caches of the engine; null: of this one and its clones.
  /// With `only` layer alone; the others must not be asked for. Throws kUnsupported, naming what of
  /// the policy the GPU does not do.
  DeviceCache(MemoryCounter& memory, const CacheShape& shape, const Policy& policy, uint64_t seed,
              cudaStream_t stream, const LayerRopes& ropes = {},
              std::shared_ptr<DeviceCommon> common = nullptr, std::optional<int> only = {});
  std::unique_ptr<DeviceCache> clone() const;

  /// Of queries and exact rows.
  DType dtype() const { return dtype_; }
  /// Equal for caches of one policy.
  size_t kind() const { return kind_; }
  /// The RoPEs that differ, on the device, and which of them a layer has.
  const std::vector<std::shared_ptr<const RopeTable>>& ropes() const { return ropes_; }
  size_t rope_of(int layer) const { return layer_ropes_.index(layer); }

  /// The most memory of its own that it has while tokens come; and the scratch memory that these
  /// ask for, in a pass of `caches` of the engine at most.
  size_t room(const ComingTokens& coming) const;
  SpaceAsked space_asked(const ComingTokens& coming, size_t caches) const;
  const ChunkSpace& space() const { return space_; }
  /// How the policy reads prompts.
  PromptReading prompt() const { return policy_->prompt(); }

  /// One token. begin_token makes room and writes what the step's kernels read on the host's side:
  /// the uploads of the step before must be over. Then the stream gets token_uploads' work and
  /// attend_token's of each layer, always the same, so that a graph of it can be replayed.
  /// end_token brings the books up to date and hands the rows that leave the windows to the bodies;
  /// what may be done together with other caches' work is left in `late`, to be run before anything
  /// else happens to the cache.
  void begin_token();
  /// begin_token() of the next token, if it takes no memory and changes nothing but what kernels
  /// read: it is then over when that comes. If something else comes first, it counts for nothing.
  void begin_ahead();
  std::vector<Upload> token_uploads() const;
  /// Where the token's row goes.
  const RowTarget& token_target(int layer) const { return targets_[index(layer)]; }
  /// out f32 [H, D] <- attention of q [H, D], both in rows of their own.
  DecodePlace token_place(int layer, float* out, const void* q) const;
  /// The calls of a layer's step, and the place of each one in a batch.
  size_t token_calls(int layer) const { return at(layer).calls(); }
  DecodePlace place_of_call(int layer, size_t call, const DecodePlace& whole) const {
    return at(layer).place_of(call, whole, head_targets_.device() + first_targets_[index(layer)]);
  }
  /// Blocks that the token's rows need in a batch (DecodeCompany::blocks), in any layer.
  int token_blocks() const { return blocks_; }
  void attend_token(int layer, const DecodePlace& place, const DecodeScratch& scratch,
                    const DecodeCompany& company = {}) const;
  /// The shape of decode calls of any layer.
  DecodeShape token_shape() const;
  /// Whether the error probe measures this step: then compare_token follows each attend_token,
  /// with the same numbers, and the step is no graph.
  bool comparing() const { return probe_ && probe_->comparing(); }
  /// The next token's kernels are not those of later ones: they are compared, or a codec sees their
  /// queries.
  bool steps_apart() const;
  void compare_token(int layer, const float* out, const void* q);
  void end_token(LateWork& late);
  /// The work that end_token() left there, of any caches of this one's engine.
  void run(LateWork& late) { late.run(space_, stream_); }
  void end_token() {
    LateWork late;
    end_token(late);
    run(late);
  }

  /// A chunk, layer by layer: rows are written from the target on, then queries attend. Throws
  /// kUnsupported where the policy reads whole prompts.
  RowTarget begin_chunk(int layer, size_t tokens);
  /// result [T, H, D] of `dtype` <- attention of q [T, H, D].
  void attend_chunk(int layer, void* result, DType dtype, const void* q, size_t tokens);
  void end_chunk(int layer, size_t tokens);
  /// As end_chunk, of a chunk whose queries nobody asked.
  void append_chunk(int layer, size_t tokens);
  void end_prefill();

  /// A prompt that is read a layer at a time, as a chunk of all its tokens: attend_chunk follows,
  /// then end_prompt, before the next layer begins. Its rows are taken one layer after another.
  RowTarget begin_prompt(int layer, size_t tokens);
  /// `ends`: the prompt is complete in this layer.
  void end_prompt(int layer, size_t tokens, bool ends);

  /// Queries that see what is held and bring no rows, of a cache of one layer. One alone: as
  /// begin_token, and then attend_only in the place of attend_token.
  void begin_query();
  void attend_only(int layer, const DecodePlace& place, const DecodeScratch& scratch) const;
  /// Several: their answers, f32 [T, H, D], in scratch memory, until the next call.
  const float* attend_chunk_only(int layer, const void* q, size_t tokens);
  /// As KvCache::protect. Captured token steps are no longer valid. Throws
  /// kInvalidArgument or kUnsupported; then nothing has changed.
  void protect(std::span<const TokenRange> ranges);

  /// As KvCache's. `threads` of the host compare; 0 = all.
  void start_error_probe(const ErrorProbeOptions& options, uint64_t seed, int threads);
  std::vector<AttentionError> attention_errors() const {
    return probe_ ? probe_->errors() : std::vector<AttentionError>();
  }

  /// As KvCache's.
  const std::vector<TokenRange>& protected_tokens() const { return notes_.protected_rows.ranges(); }
  void archive(Archive& a);
  void archive_layer(int layer, Archive& a);

  size_t tokens() const;
  HeadRows rows(int layer, int head) const;
  Ledger ledger() const;
  std::string describe() const { return policy_->describe(notes_.protected_rows); }

 private:
  DeviceCache(const DeviceCache& other);
  LayerSite site() const;
  /// Null: not known.
  const RopeTable* rope(int layer) const {
    return ropes_.empty() ? nullptr : ropes_[rope_of(layer)].get();
  }
  /// Heads side by side under one rule, and what the policy makes of them.
  struct Part {
    HeadRange heads;
    LayerPlan plan;
  };
  std::vector<Part> plan_heads(int layer) const;
  /// Where a layer's are in layers_ and beside it.
  size_t index(int layer) const { return static_cast<size_t>(layer - first_layer_); }
  LayerRows& at(int layer) const { return *layers_[index(layer)]; }
  TokenSlots slots_of(size_t i);
  TokenStep token_step(int layer, const DecodePlace& place, const DecodeScratch& scratch) const;
  CausalCall chunk_call(int layer, const void* q, size_t tokens) const;
  std::unique_ptr<LayerRows> make_layer(int layer, std::vector<Part>& parts);
  std::shared_ptr<const DeviceCodec> with_tables(const LayerPlan& plan, const TableSite& site);
  /// The layer has a sliding window of its own: it forgets what is protected, as the model does.
  bool slides(int layer) const {
    return !shape_.sliding_window.empty() && shape_.sliding_window[static_cast<size_t>(layer)] > 0;
  }
  ComingTokens together(const ComingTokens& coming) const;
  int end_layer() const { return first_layer_ + static_cast<int>(layers_.size()); }
  void make_step_memory();
  int count_blocks() const;
  void take_moves();
  /// A layer, or a range of its heads, has named its moves; unless it is the last they may wait for
  /// those of others.
  void pass_layer(bool last);

  MemoryCounter& memory_;
  CacheShape shape_;
  cudaStream_t stream_;
  LayerRopes layer_ropes_;
  std::vector<std::shared_ptr<const RopeTable>> ropes_;  // those that differ
  DType dtype_ = DType::kF16;
  std::shared_ptr<const ResolvedPolicy> policy_;
  size_t kind_ = 0;
  uint64_t seed_ = 0;
  StreamNotes notes_;
  uint64_t loaded_ = 0;  // tokens of the state that is being loaded
  int first_layer_ = 0;
  std::vector<Copied<LayerRows>> layers_;                          // [L], or one
  std::vector<size_t> first_spans_, first_notes_, first_targets_;  // [L] where a layer's begin
  std::vector<RowTarget> targets_;                                 // [L]
  StepSpans spans_;                                                // [L, spans of the layer]
  MirroredArray<TokenNote> token_notes_;                           // [L, notes of the layer]
  bool reads_notes_ = false;                                       // kernels do, somewhere
  MirroredArray<RowTarget> head_targets_;  // [L, G] of layers with several rules
  DeviceArray<float> log_sum_;             // [H] of a token
  std::shared_ptr<DeviceCommon> common_;
  ChunkSpace& space_;
  SinkLogits sinks_;
  bool begun_ = false;            // what kernels read of the next token is written
  int blocks_ = 1;                // of that token's attention: see token_blocks()
  LateWork late_;                 // the moves that nobody has taken yet
  size_t layers_waiting_ = 0;     // of a chunk, whose moves those are
  bool one_by_one_ = false;       // layers' moves are taken
  bool cache_positions_ = false;  // somewhere
  Copied<DeviceProbe> probe_;     // null: none was started
  RowTarget chunk_;               // where the chunk's rows of the layer came
};

}  // namespace pith::cuda
