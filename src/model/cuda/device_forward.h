#pragma once
// The forward pass on the GPU (the CPU's is model/forward.h), of all sequences of a stream. A chunk
// of one sequence's tokens goes through cuBLASLt and the prefill attention; one token of each of
// many through fused matrix-vector products, replayed as one graph: products see all tokens
// together, attention each sequence by itself. The residual stream is f32. Nothing waits for the
// device before logits are asked for.

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "attend/cuda/decode_groups.h"
#include "cache/cuda/device_cache.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/ranking.h"
#include "kernels/cuda/skinny_product.h"
#include "model/cuda/device_weights.h"

namespace pith::cuda {

/// One token of a sequence in a pass of many.
struct TokenRun {
  DeviceCache* cache = nullptr;
  int32_t token = 0;
  int64_t position = 0;
  /// [hidden] on the device: the residual stream after the last layer is left here.
  float* state = nullptr;
};

class DeviceForward {
 public:
  struct Shape {
    size_t max_chunk = 0;   ///< tokens of a chunk
    size_t max_tokens = 1;  ///< sequences of a pass of tokens, that have one each
    DType products;  ///< of a chunk's activations, hence of the weights that they are multiplied by
  };
  /// Buffers, counted as kScratch. Counter and stream must outlive it. With max_tokens above 1
  /// each pass is multiplied by skinny_product.h, or, where that does not take the weights or so
  /// many tokens, as a chunk of that many rows, or, where not all weights have the type of
  /// products, as matvec.h says of tokens together: what a sequence gets does not depend on the
  /// others.
  DeviceForward(std::shared_ptr<const DeviceWeights> weights, MemoryCounter& memory,
                cudaStream_t stream, const Shape& shape);

  /// Runs tokens at positions first_position, ... of one sequence; their rows are appended. The
  /// state is that of the last.
  void run_chunk(DeviceCache& cache, std::span<const int32_t> tokens, int64_t first_position,
                 float* state);

  /// A block of a prompt that is read a layer at a time (DevicePrompt), in the caller's memory.
  struct PromptStep {
    int layer = 0;
    size_t tokens = 0;                     ///< of the block
    bool few = false;                      ///< of the prompt: see few()
    float* hidden = nullptr;               ///< [tokens, hidden]
    float *cos = nullptr, *sin = nullptr;  ///< [tokens, D / 2] of the layer's RoPE
    void* q = nullptr;                     ///< [tokens, H, D] of the rows' type
    void* attended = nullptr;              ///< [tokens, H, D] of attended_type(few)
    RowTarget target = {};                 ///< of the block's first row
  };
  /// hidden, cos and sin of the block's tokens, whose first stands at `position`; those of the r-th
  /// RoPE are written r * `ropes_apart` numbers behind. `tokens`: up to max_chunk().
  void begin_block(const DeviceCache& cache, const PromptStep& step,
                   std::span<const int32_t> tokens, int64_t position, size_t ropes_apart);
  /// q, and rows to the target.
  void heads_of_block(const DeviceCache& cache, const PromptStep& step);
  /// The rest of the layer.
  void end_block(const PromptStep& step);
  size_t max_chunk() const { return max_chunk_; }
  const ModelConfig& config() const { return config_; }
  /// Whether a chunk of so many tokens is multiplied by the kernels of single ones.
  bool multiplies_few(size_t tokens) const { return few(tokens) || few(max_chunk_); }
  DType attended_type(bool few) const { return few ? DType::kF32 : products_; }

  /// To be called before DeviceCache::begin_token: what caches wrote for the pass before is read.
  void wait_for_uploads() { uploaded_.wait(); }
  /// Makes its buffers large enough for a pass of `tokens` sequences, of a layer's `calls` each at
  /// most. Throws kOutOfMemory.
  void prepare(size_t tokens, size_t calls);
  /// Runs a token of each of up to max_tokens() sequences, whose caches have begun theirs and have
  /// rows of one type; their logits are made too. The caller ends the caches' tokens.
  void run_tokens(std::span<const TokenRun> runs);
  size_t max_tokens() const { return max_tokens_; }
  /// The parts of the forward pass that a token's bits depend on.
  std::string bits() const;
  /// Graphs captured of the cache are no longer valid: its step memory changes, or it goes.
  void forget(const DeviceCache& cache);

  /// Logits after states [hidden] on the device, of up to max_tokens() of them.
  void make_logits_after(std::span<float* const> states);
  /// Row `i` [V] of what run_tokens or make_logits_after left; valid until the next call of
  /// anything here. Waits for the device. Throws kNonFinite.
  std::span<const float> logits(size_t i);
  /// The largest of that row, found on the device; `call` says how many, its logits are set here.
  std::span<const RankedLogit> best_logits(size_t i, RankingCall call);
  /// Finds the largest of each of the first `rows` rows, in one launch; largest_logit() returns
  /// one of them, as best_logits() would.
  void find_largest(size_t rows);
  std::span<const RankedLogit> largest_logit(size_t i) const;
  /// Hands out the logits [count, V] of run_chunk()'s positions, a block at a time. Throws
  /// kNonFinite.
  using Sink = std::function<void(size_t first, size_t count, const float* logits)>;
  void all_logits(const Sink& sink);
  /// The same of positions that left `hidden` [tokens, hidden], a block of a prompt's.
  void logits_of_block(const float* hidden, size_t tokens, const Sink& sink);

 private:
  static constexpr size_t kRowBytes = 2;  // a number of exact rows and of queries

  struct GraphEnd {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphEnd>;
  struct CapturedEnd {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  };
  using CapturedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, CapturedEnd>;
  /// A pass of tokens that has come before. Two passes are one where their kernels get the same
  /// parameters: then who is in it is said by descriptors alone (docs/decisions/0180).
  struct Pass {
    std::vector<size_t> form;  // how many tokens, and which RoPE each layer has
    std::vector<std::vector<DecodeLaunch>> attention;  // [L]; none: its kernels are whose it is
    std::vector<const DeviceCache*> caches;            // then whose it is, in their order
    std::vector<int> blocks;                           // and those of each one's attention
    bool ran = false;                                  // kernel by kernel
    Graph graph;

    bool same_as(const Pass& o) const {
      return form == o.form && caches == o.caches && attention == o.attention;
    }
  };

  void look_up(const DeviceCache& cache, size_t tokens, bool own_places);
  void look_up_chunk(const DeviceCache& cache, std::span<const int32_t> tokens, int64_t position);
  void note(std::span<const TokenRun> runs);
  void count_blocks(std::span<const TokenRun> runs);
  bool seat(std::span<const TokenRun> runs);
  void upload(std::span<const TokenRun> runs, bool seated);
  void enqueue_tokens(std::span<const TokenRun> runs, const Pass& pass);
  void replay(std::span<const TokenRun> runs, Pass& pass);
  Pass& pass_of(std::span<const TokenRun> runs);
  bool knows_kinds(std::span<const TokenRun> runs) const;
  std::vector<std::vector<DecodeLaunch>> attention_of(std::span<const TokenRun> runs);
  DecodePlace place_of(const DeviceCache& cache, int layer, size_t i) const;
  void reserve_places(size_t count);
  template <class Work>
  CapturedGraph capture(const Work& work);
  DecodeGroups attention_groups(std::span<const TokenRun> runs, int layer);
  void attend_tokens(std::span<const TokenRun> runs, const Pass& pass, int layer);
  enum class ProductWay : uint8_t { kFew, kSkinny, kChunk };
  /// Of a chunk or a pass. `multiplied`: rows that cuBLASLt multiplies.
  struct ProductRows {
    size_t tokens, multiplied;
    ProductWay way;
    bool few() const { return way == ProductWay::kFew; }
  };
  ProductRows chunk_rows(size_t tokens) const {
    return {tokens, tokens, few(tokens) ? ProductWay::kFew : ProductWay::kChunk};
  }
  static ProductRows block_rows(const PromptStep& step) {
    return {step.tokens, step.tokens, step.few ? ProductWay::kFew : ProductWay::kChunk};
  }
  ProductRows pass_rows(size_t tokens) const { return {tokens, wide_, pass_way_}; }
  void attention_of_chunk(DeviceCache& cache, int layer, const ProductRows& n);
  void make_qkv(const DeviceLayer& layer, const ProductRows& n);
  void make_mlp(const DeviceLayer& layer, const MixedMatrix* next, const ProductRows& n);
  void make_logits(size_t first, const ProductRows& n);
  HeadsCall heads_call(const DeviceCache& cache, int layer, size_t tokens) const;
  void multiply(float* y, const MixedMatrix& w, const ProductRows& n);
  void skinny_gate(const DeviceLayer& layer, size_t tokens);
  void add_update(const Parts& update, const float* norm, size_t tokens);
  MatvecEnd gate_end() const;
  void qkv_of_few(const DeviceLayer& layer, size_t tokens);
  void gate_few(const DeviceLayer& layer, size_t tokens);
  void gate_products(const DeviceLayer& layer, DType dtype, size_t tokens);
  /// w x + bias, normalised if there is a norm.
  struct Added {
    const MixedMatrix* w;
    const float *bias, *norm;
    const MixedMatrix* next = nullptr;  ///< what a token's next product multiplies
  };
  void add_few(const Added& added, size_t tokens);
  void multiply_few(FewTokensCall call);
  void add_products(const Added& added, const void* x, const ProductRows& n);
  LogitRanking& ranking();
  void few_logits(size_t first, size_t count);
  bool few(size_t tokens) const;
  void normalise(const float* weight, size_t first, size_t count);
  const float* fetch_logits(size_t first, size_t count);

  std::shared_ptr<const DeviceWeights> weights_;
  const ModelConfig& config_;
  MemoryCounter& memory_;
  cudaStream_t stream_;
  // Rows that each pass multiplies, however many tokens it has: what cuBLASLt makes of a row
  // depends on how many there are, not on the others. 0: as few tokens.
  size_t wide_;
  ProductWay pass_way_;
  size_t max_chunk_, block_, max_tokens_;  // block: positions whose logits are made at once
  bool together_;                          // tokens' products
  size_t room_;                            // tokens that buffers have room for
  size_t tokens_ = 0;                      // of the last run_chunk()
  DeviceMatmul matmul_;
  DType products_;

  MirroredArray<int32_t> ids_;              // [T]
  MirroredArray<int64_t> position_;         // [1]
  MirroredArray<AngleSource> angles_;       // [ropes, tokens of the pass]
  MirroredArray<RowTarget> targets_;        // [L, tokens of the pass]
  MirroredArray<float*> states_;            // [most tokens]
  MirroredArray<DecodePlace> places_;       // [L, calls of the layer, tokens of the pass]
  std::vector<size_t> first_places_;        // [L + 1] where a layer's begin
  DecodeScratch attention_;                 // of all tokens of a pass
  std::vector<int> blocks_;                 // of this pass's tokens' attention; 0: as it likes
  std::vector<const DeviceCache*> seated_;  // whose places_ are
  StreamMark uploaded_;                     // what the host wrote for the last run has been read
  std::list<Pass> passes_;                  // the latest last
  Pass* current_ = nullptr;                 // of those seated; null: to be found
  std::set<size_t> kinds_;                  // of caches that have been in a pass: theirs and ...
  std::set<size_t> counts_;                 // ... these numbers of tokens' kernels are loaded
  DeviceArray<float> hidden_;               // [T, hidden] the residual stream
  DeviceArray<std::byte> input_;            // [T, max(hidden, H D, intermediate)], f32 of few
  DeviceArray<float> output_;               // [T, max((H + 2 G) D, 2 intermediate, hidden)]
  DeviceArray<float> update_;               // [few T, hidden], where a norm comes after a block
  DeviceArray<std::byte> coded_;            // activations of a pass, for weights in tiles
  DeviceArray<float> parts_;                // [parts, T, hidden], of skinny products
  Parts pending_;                           // what the residual stream has still to take
  DeviceArray<std::byte> q_;                // [T, H, D] of the rows' type
  DeviceArray<float> cos_, sin_;            // [ropes, T, D/2]
  DeviceArray<float> logits_;               // [block, V]
  PinnedArray<float> host_logits_;          // [block, V]
  std::optional<LogitRanking> ranking_;     // once it is asked for
  std::span<const LogitRanking::Largest> largest_;
};

}  // namespace pith::cuda
