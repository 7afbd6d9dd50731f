#pragma once
// Attention as a merge: each span of rows gives (running maximum, sum, weighted values) for every
// query, and the partials merge associatively (Milakov & Gimelshein 2018; FlashAttention). Exact
// attention is the case of one dense span with weight 1.
//
// Decode (few queries) reads codes directly, each row once for its whole query group. Prefill
// decodes a tile of rows to f32 once and multiplies it with many queries. Work is cut by shape
// alone, and merged in a fixed order: results do not depend on the number of threads.

#include <exception>
#include <span>

#include "kernels/rope.h"
#include "rows/cpu/span.h"

namespace pith {

/// A change of the logits l = scale q.k, as FlashInfer's variants of attention. Everything that
/// follows sees the changed ones: log-sums, attention mass, merges.
struct AttentionVariant {
  float soft_cap = 0;  ///< l counts as soft_cap tanh(l / soft_cap), before a row's weight; 0: as is
  /// Sinks: one logit more in each query head's softmax, which takes no value. Null: none.
  const float* sinks = nullptr;  // [H]
};

struct AttentionShape {
  size_t query_heads = 0;  // H
  size_t kv_heads = 0;     // G
  size_t head_dim = 0;     // D
  float scale = 0;         // of q.k; 0 = 1/sqrt(D)
  AttentionVariant variant = {};
};

/// T queries at consecutive positions attend to the spans and, causally, to the chunk's own rows:
/// those of the queries' tokens, behind those of `before` tokens before them.
struct AttendCall {
  AttentionShape shape;
  const float* q = nullptr;  // [T, H, D], after RoPE
  const float* k = nullptr;  // [before + T, G, D], after RoPE: its own keys; null: none
  const float* v = nullptr;  // [before + T, G, D]
  size_t tokens = 0;         // T
  size_t before = 0;
  int64_t first_position = 0;  ///< of the first query
  int64_t sliding_window = 0;  ///< a query at p sees positions > p - window; 0 = all
  std::span<const std::span<const Span>> spans;  ///< [G] lists
  const Rope* rope = nullptr;  ///< needed by spans with keys_before_rope or query_shift
  /// Attention mass: probabilities of the last `mass_queries` queries, summed over them and over
  /// the group's query heads, are added to Span::mass and to chunk_mass. 0 = none.
  size_t mass_queries = 0;
  /// Fewer than mass_queries for some KV heads; empty: the same for all.
  std::span<const size_t> head_mass_queries = {};  // [G]
  float* chunk_mass = nullptr;  // [G, before + T], if mass_queries > 0 and k is given
  size_t mass_stride = 0;       ///< numbers between its heads; 0: before + T
  float* out = nullptr;         // [T, H, D]
  float* log_sum = nullptr;     // [T, H] log of the softmax denominator, if not null
};

/// The most of a call, for what its scratch comes to.
struct AttendRoom {
  size_t query_heads = 0, kv_heads = 0, head_dim = 0;
  size_t tokens = 0, before = 0;  ///< as AttendCall's
  size_t rows = 0, spans = 0;     ///< of one KV head, beside its own rows
  size_t width = 0;               ///< CodedRows::accumulator_width of values
  size_t prepared = 0;            ///< CodedRows::prepared_size of keys, of decode_queries()
  bool mass = false;              ///< some are asked for attention mass
  bool turned = false;            ///< some keys are stored before RoPE
};
/// The most queries of a KV head that decode shares a row with, in a call of up to `tokens`.
size_t decode_queries(size_t tokens, size_t group);
/// The most that attend() takes for calls of up to so many tokens.
size_t attend_scratch(const AttendRoom& room, size_t workers);

/// Throws kInvalidArgument for shapes that do not fit. A query that sees no row gives zeros and a
/// log_sum of -inf; with sinks its head's.
void attend(const Context& context, const AttendCall& call);

/// One of several calls: its context, whose thread pool all share.
struct AttendWork {
  const Context* context = nullptr;
  const AttendCall* call = nullptr;  ///< of one token
  std::exception_ptr failure = nullptr;
};
/// Calls of one token each, side by side: the parts of all of them are the tasks of one loop, so
/// that few calls use all threads. Each has the bits that it has alone. A call that throws
/// has the error in its work; the others are not concerned.
void attend_together(std::span<AttendWork> works);

}  // namespace pith
