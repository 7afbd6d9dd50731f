/* The compressed cache of one attention layer of your own model, for C: over your tensors, on the
 * CPU or the GPU. layer_cache.h has more detail.
 * Errors, structs and objects are as in pith.h. */
#ifndef PITH_PITH_LAYER_H_
#define PITH_PITH_LAYER_H_

#include "pith/pith.h"

/* C's names, not this house's. NOLINTBEGIN(readability-identifier-naming,modernize-*) */

#pragma GCC visibility push(default) /* all of this is exported */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pith_compute pith_compute;
typedef struct pith_layer pith_layer;

/* A device, threads and one account of memory, shared by any number of engines and layers: a
 * Runtime of C++. An engine that is given one (pith_engine_options) leaves out device, threads, isa
 * and memory_limit, or says the same. */
typedef struct pith_compute_options {
  size_t size;
  int32_t device;      /* a pith_device; no fallback */
  int32_t threads;     /* 0 = all cores */
  size_t memory_limit; /* most bytes of all that share it; 0 = no limit */
  const char* isa;     /* as pith_engine_options' */
} pith_compute_options;

/* The CPU, all cores, no limit. */
void pith_compute_defaults(pith_compute_options* options, size_t size);
/* `options` NULL: the defaults. */
pith_status pith_compute_create(const pith_compute_options* options, pith_compute** compute,
                                pith_error* error);
void pith_compute_free(pith_compute* compute);
size_t pith_compute_bytes_in_use(const pith_compute* compute);

typedef struct pith_layer_options {
  size_t size;
  const char* policy;            /* as pith_session_options' */
  int32_t query_heads, kv_heads; /* the first is a multiple of the second */
  int32_t head_dim;              /* a multiple of 16 */
  int32_t layer;                 /* index of the layer, for policies that differ by layer */
  size_t layers;
  size_t context;         /* most tokens */
  int64_t sliding_window; /* newest rows that a query sees; 0 = all */
  uint64_t seed;
  double rope_theta; /* base of the RoPE applied to keys and queries; 0: unknown */
  double scale;      /* factor on scores q.k; 0 = 1/sqrt(head_dim) */
  const int64_t*
      protect; /* [protect_count][2], probe_rows, probe_every: as pith_session_options' */
  size_t protect_count;
  size_t probe_rows, probe_every;
  /* Instead of rope_theta: frequencies [head_dim / 2] in radians per position. */
  const double* rope_frequencies;
  size_t rope_frequency_count;
  double soft_cap; /* scores s count as soft_cap tanh(s / soft_cap); 0 = as they are */
  /* [sink_logit_count] one more logit per query head in its softmax, which takes no value; NULL:
   * none
   */
  const float* sink_logits;
  size_t sink_logit_count;
} pith_layer_options;

/* "exact", layer 0 of 1. Set heads, head_dim and context yourself. */
void pith_layer_defaults(pith_layer_options* options, size_t size);

pith_status pith_layer_create(const pith_compute* compute, const pith_layer_options* options,
                              pith_layer** layer, pith_error* error);
void pith_layer_free(pith_layer* layer);
pith_status pith_layer_clone(const pith_layer* layer, pith_layer** clone, pith_error* error);

typedef enum pith_dtype { PITH_F32 = 0, PITH_F16 = 1, PITH_BF16 = 2 } pith_dtype;

/* [tokens, heads, head_dim]. The numbers of a row are adjacent; strides between rows are in numbers
 * (dense: heads * head_dim and head_dim). */
typedef struct pith_tensor {
  size_t size;
  void* data; /* memory of the device; `out` is written, q, k and v are read */
  ptrdiff_t token_stride, head_stride;
  size_t dtype; /* a pith_dtype */
} pith_tensor;

/* Sets the stream of the next three functions, which return before their work is done on the GPU: a
 * cudaStream_t that is not being captured. NULL (the initial state) is the default stream. */
pith_status pith_layer_use_stream(pith_layer* layer, void* stream, pith_error* error);
/* One forward pass: queries attend to the stored rows and, causally, to the rows of these tokens,
 * which are then stored and compressed. Keys and queries after RoPE. */
pith_status pith_layer_step(pith_layer* layer, const pith_tensor* out, const pith_tensor* q,
                            const pith_tensor* k, const pith_tensor* v, size_t tokens,
                            pith_error* error);
/* The arguments of one pith_layer_step. */
typedef struct pith_layer_step_args {
  size_t size;
  pith_layer* layer;
  const pith_tensor *out, *q, *k, *v;
  size_t tokens;
} pith_layer_step_args;
/* The steps of many layers of this compute, such as one layer's of all sequences of a batch:
 * `count` structs that lie `steps[0].size` bytes apart. Each layer at most once. The answers are
 * those of pith_layer_step for each, bit for bit; together they use all threads, and on the GPU
 * steps of one token share launches. Arguments are checked first: PITH_INVALID_ARGUMENT and
 * PITH_CONTEXT_FULL change nothing. */
pith_status pith_compute_step(pith_compute* compute, const pith_layer_step_args* steps,
                              size_t count, pith_error* error);
/* Its two halves: rows without queries, queries without rows. */
pith_status pith_layer_append(pith_layer* layer, const pith_tensor* k, const pith_tensor* v,
                              size_t tokens, pith_error* error);
pith_status pith_layer_attend(pith_layer* layer, const pith_tensor* out, const pith_tensor* q,
                              size_t tokens, pith_error* error);
/* Declares the prompt complete: selectors that select at the end of a prompt do so now. */
pith_status pith_layer_end_prompt(pith_layer* layer, pith_error* error);
pith_status pith_layer_protect(pith_layer* layer, const int64_t* ranges, size_t count,
                               pith_error* error);

size_t pith_layer_tokens(const pith_layer* layer);
/* As the functions of sessions in pith.h. */
pith_status pith_layer_describe(const pith_layer* layer, char* text, size_t capacity,
                                size_t* written, pith_error* error);
pith_status pith_layer_ledger(const pith_layer* layer, pith_ledger* ledger, pith_error* error);
pith_status pith_layer_rows(const pith_layer* layer, int32_t head, pith_rows* rows,
                            pith_error* error);
/* The rows of pith_layer_rows decoded as f32 [rows][head_dim], keys after RoPE; and the selector's
 * score of each, infinite for sink, window and protected rows. `capacity` is in rows; *count gets
 * the number of rows, and the status is PITH_BUFFER_TOO_SMALL if it exceeds `capacity`. Scores are
 * the CPU's only. */
pith_status pith_layer_read_rows(const pith_layer* layer, int32_t head, float* keys, float* values,
                                 size_t capacity, size_t* count, pith_error* error);
pith_status pith_layer_scores(const pith_layer* layer, int32_t head, double* scores,
                              size_t capacity, size_t* count, pith_error* error);
/* PITH_INVALID_ARGUMENT for a layer without an error probe. */
pith_status pith_layer_attention_error(const pith_layer* layer, pith_attention_error* estimate,
                                       pith_error* error);

/* The cache's state, from which pith_layer_restore continues bit for bit. *written gets its bytes;
 * if they exceed `capacity`, nothing is written and the status is PITH_BUFFER_TOO_SMALL. */
pith_status pith_layer_save(const pith_layer* layer, void* bytes, size_t capacity, size_t* written,
                            pith_error* error);
/* Options and device must be the same, else PITH_INVALID_ARGUMENT with the field that differs.
 * PITH_CORRUPT: damaged bytes. */
pith_status pith_layer_restore(const pith_compute* compute, const pith_layer_options* options,
                               const void* bytes, size_t size, pith_layer** layer,
                               pith_error* error);

#ifdef __cplusplus
}
#endif

#pragma GCC visibility pop

/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif /* PITH_PITH_LAYER_H_ */
