/* One layer of a model of your own, from C: the compressed cache of one attention layer over
 * tensors that stay yours, in the memory of the CPU or of the GPU. A face of layer_cache.h, which
 * says more; errors, structs and objects are as in pith.h. */
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

/* What any number of layers share: a device, threads, one account of memory. */
typedef struct pith_compute_options {
  size_t size;
  int32_t device;      /* a pith_device; nothing falls back */
  int32_t threads;     /* 0 = all cores */
  size_t memory_limit; /* bytes of all layers together; 0 = none */
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
  int32_t query_heads, kv_heads; /* the former a multiple of the latter */
  int32_t head_dim;              /* a multiple of 16 */
  int32_t layer;                 /* which of how many, for policies that ask */
  size_t layers;
  size_t context;         /* the most tokens there will be */
  int64_t sliding_window; /* rows that a query sees; 0 = all */
  uint64_t seed;
  double rope_theta; /* of the RoPE that keys and queries come with; 0: none is known */
  double scale;      /* of scores q.k; 0 = 1/sqrt(head_dim) */
  const int64_t*
      protect; /* [protect_count][2], probe_rows, probe_every: as pith_session_options' */
  size_t protect_count;
  size_t probe_rows, probe_every;
  /* Instead of rope_theta, the frequencies in radians per position, [head_dim / 2]. */
  const double* rope_frequencies;
  size_t rope_frequency_count;
} pith_layer_options;

/* "exact", layer 0 of 1. Heads, head_dim and context are the program's to say. */
void pith_layer_defaults(pith_layer_options* options, size_t size);

pith_status pith_layer_create(const pith_compute* compute, const pith_layer_options* options,
                              pith_layer** layer, pith_error* error);
void pith_layer_free(pith_layer* layer);
pith_status pith_layer_clone(const pith_layer* layer, pith_layer** clone, pith_error* error);

typedef enum pith_dtype { PITH_F32 = 0, PITH_F16 = 1, PITH_BF16 = 2 } pith_dtype;

/* [tokens, heads, head_dim]: the numbers of a row are adjacent, rows are where the strides say, in
 * numbers. Without gaps they are heads * head_dim and head_dim. */
typedef struct pith_tensor {
  size_t size;
  void* data; /* of the device; read where a function takes a const pith_tensor */
  ptrdiff_t token_stride, head_stride;
  size_t dtype; /* a pith_dtype */
} pith_tensor;

/* On the GPU the next three return before the work is done, which is ordered with `stream`, a
 * cudaStream_t that is not captured; NULL, as at first: the default stream. */
pith_status pith_layer_use_stream(pith_layer* layer, void* stream, pith_error* error);
/* A pass as a model makes it: queries attend to what is stored and, causally, to the rows of these
 * tokens, which are then stored and compressed. Keys and queries come after RoPE. */
pith_status pith_layer_step(pith_layer* layer, const pith_tensor* out, const pith_tensor* q,
                            const pith_tensor* k, const pith_tensor* v, size_t tokens,
                            pith_error* error);
/* Its halves: rows without queries, queries without rows. */
pith_status pith_layer_append(pith_layer* layer, const pith_tensor* k, const pith_tensor* v,
                              size_t tokens, pith_error* error);
pith_status pith_layer_attend(pith_layer* layer, const pith_tensor* out, const pith_tensor* q,
                              size_t tokens, pith_error* error);
/* The prompt is complete: selectors that judge it do. */
pith_status pith_layer_end_prompt(pith_layer* layer, pith_error* error);
pith_status pith_layer_protect(pith_layer* layer, const int64_t* ranges, size_t count,
                               pith_error* error);

size_t pith_layer_tokens(const pith_layer* layer);
/* As the functions of sessions. */
pith_status pith_layer_describe(const pith_layer* layer, char* text, size_t capacity,
                                size_t* written, pith_error* error);
pith_status pith_layer_ledger(const pith_layer* layer, pith_ledger* ledger, pith_error* error);
pith_status pith_layer_rows(const pith_layer* layer, int32_t head, pith_rows* rows,
                            pith_error* error);
/* The rows of pith_layer_rows, decoded as f32 [rows][head_dim], keys after RoPE, and the selector's
 * score of each, infinite for rows that it does not choose among. `capacity`: rows that there is
 * room for; *count gets how many there are, and PITH_BUFFER_TOO_SMALL if that is more. The CPU's
 * alone. */
pith_status pith_layer_read_rows(const pith_layer* layer, int32_t head, float* keys, float* values,
                                 size_t capacity, size_t* count, pith_error* error);
pith_status pith_layer_scores(const pith_layer* layer, int32_t head, double* scores,
                              size_t capacity, size_t* count, pith_error* error);
/* PITH_INVALID_ARGUMENT for a layer without an error probe. */
pith_status pith_layer_attention_error(const pith_layer* layer, pith_attention_error* estimate,
                                       pith_error* error);

/* All that the cache needs to go on elsewhere, bit for bit. *written gets its bytes; if that is
 * more than `capacity`, nothing is written and the status is PITH_BUFFER_TOO_SMALL. */
pith_status pith_layer_save(const pith_layer* layer, void* bytes, size_t capacity, size_t* written,
                            pith_error* error);
/* Options and device must be those it was saved under: else PITH_INVALID_ARGUMENT, with what
 * differs. PITH_CORRUPT: bytes that are damaged. */
pith_status pith_layer_restore(const pith_compute* compute, const pith_layer_options* options,
                               const void* bytes, size_t size, pith_layer** layer,
                               pith_error* error);

#ifdef __cplusplus
}
#endif

#pragma GCC visibility pop

/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif /* PITH_PITH_LAYER_H_ */
