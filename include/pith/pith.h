/* Pith from C, and from every language that calls C: models, sessions with a compressed cache,
 * generation and the ledger. A thin face of model.h, session.h and generate.h, which say more.
 *
 * Functions that can fail return a pith_status and, where `error` is not NULL, fill it in. No
 * exception passes. Objects are freed by the function named after them; NULL is allowed there.
 * A model may serve any number of sessions at a time; a session is one thread's at a time. */
#ifndef PITH_PITH_H_
#define PITH_PITH_H_

#include <stddef.h>
#include <stdint.h>

/* C's names, not this house's. NOLINTBEGIN(readability-identifier-naming,modernize-*) */

#ifdef __cplusplus
extern "C" {
#endif

/* The exit statuses of the command line. */
typedef enum pith_status {
  PITH_OK = 0,
  PITH_INVALID_ARGUMENT = 10, /* a parameter, policy or prompt that makes no sense */
  PITH_NOT_FOUND = 11,        /* a file or a tensor that is not there */
  PITH_CORRUPT = 12,          /* a file that is malformed or truncated */
  PITH_UNSUPPORTED = 13,      /* well-formed, but not something this build can do */
  PITH_OUT_OF_MEMORY = 14,    /* the allocator's limit or the machine's */
  PITH_CONTEXT_FULL = 15,     /* more tokens than the context allows; nothing was appended */
  PITH_NON_FINITE = 16,       /* NaN or infinity in weights or activations */
  PITH_IO = 17,               /* the operating system refused a read or a write */
  PITH_INTERNAL = 18          /* a bug of ours */
} pith_status;

/* What was asked, what is supported and what to do, in UTF-8; cut off where it does not fit. */
typedef struct pith_error {
  pith_status status;
  char message[1016];
} pith_error;

typedef struct pith_model pith_model;
typedef struct pith_session pith_session;

/* "0.1.0" */
const char* pith_version(void);

/* ---- Models: Hugging Face folders ---- */

typedef struct pith_model_info {
  int32_t layers, hidden, query_heads, kv_heads, head_dim, vocab;
  int64_t context;     /* longest position trained for */
  size_t weight_bytes; /* memory-mapped */
} pith_model_info;

pith_status pith_model_load(const char* folder, pith_model** model, pith_error* error);
void pith_model_free(pith_model* model);
void pith_model_get_info(const pith_model* model, pith_model_info* info);

/* Ids of text [size bytes], with the token that begins a text if `begin` is not 0 and the model
 * expects one. *count gets the number of ids; if it is more than `capacity`, nothing is written to
 * `ids` and the status is PITH_OUT_OF_MEMORY: call again with room for *count. Special tokens
 * spelled out in the text are read as such. */
pith_status pith_tokenize(const pith_model* model, const char* text, size_t size, int begin,
                          int32_t* ids, size_t capacity, size_t* count, pith_error* error);

/* Text of ids [count], not terminated; *size gets its bytes, as *count above. */
pith_status pith_detokenize(const pith_model* model, const int32_t* ids, size_t count, char* text,
                            size_t capacity, size_t* size, pith_error* error);

/* ---- Sessions: a conversation whose cache stays compressed ---- */

typedef struct pith_session_options {
  const char* policy;  /* "exact", "uniform(rate=0.25)+int4,window=64"; see policy.h */
  size_t context;      /* tokens; 0 = the model's */
  size_t chunk;        /* prompt tokens a forward pass */
  int32_t threads;     /* 0 = all cores */
  uint64_t seed;       /* of randomised methods */
  size_t memory_limit; /* bytes of cache, staging and scratch; 0 = none */
} pith_session_options;

/* "exact", the model's context, 512 tokens a pass, all cores, seed 0, no limit. */
pith_session_options pith_session_defaults(void);

/* `options` NULL: the defaults. The session keeps the model alive. */
pith_status pith_session_create(const pith_model* model, const pith_session_options* options,
                                pith_session** session, pith_error* error);
void pith_session_free(pith_session* session);
/* A second conversation with the same past. */
pith_status pith_session_fork(const pith_session* session, pith_session** fork, pith_error* error);

/* Writes all that the session needs to go on in another process, whole or not at all; a file that
 * is there is replaced if `replace` is not 0. It holds the conversation (mode 0600). */
pith_status pith_session_save(const pith_session* session, const char* path, int replace,
                              pith_error* error);
/* A session that goes on where it was saved, bit for bit. `options` must be those it was saved
 * under: else PITH_INVALID_ARGUMENT, with what differs. PITH_CORRUPT: the file is damaged. */
pith_status pith_session_restore(const pith_model* model, const char* path,
                                 const pith_session_options* options, pith_session** session,
                                 pith_error* error);

/* Appends tokens. *logits, if `logits` is not NULL, points to [vocab] numbers after the last one,
 * valid until the session's next call. */
pith_status pith_session_prefill(pith_session* session, const int32_t* tokens, size_t count,
                                 const float** logits, pith_error* error);
size_t pith_session_tokens(const pith_session* session);

/* Bytes of the cache by what they are for; see ledger.h. */
typedef struct pith_ledger {
  size_t payload, metadata, shared, slack, staging, scratch;
  uint64_t tokens, rows_seen, rows_kept;
  double effective_bits; /* bits per number of an uncompressed cache */
  double retained_bits;  /* bits per number of the rows that are still there */
} pith_ledger;

pith_status pith_session_ledger(const pith_session* session, pith_ledger* ledger,
                                pith_error* error);

/* ---- Generation ---- */

typedef enum pith_stop_reason {
  PITH_STOP_END_OF_TEXT = 0,
  PITH_STOP_STRING = 1,
  PITH_STOP_MAX_TOKENS = 2,
  PITH_STOP_CONTEXT_FULL = 3,
  PITH_STOP_CANCELLED = 4
} pith_stop_reason;

/* llama.cpp's names and defaults; temperature 0 is greedy. */
typedef struct pith_generate_options {
  float temperature;
  int32_t top_k; /* 0 = off */
  float top_p;   /* 1 = off */
  float min_p;   /* 0 = off */
  float repeat_penalty;
  int32_t repeat_last_n;
  uint64_t seed;
  int64_t max_tokens; /* -1: until the model or the context ends */
  const char* const* stop;
  size_t stop_count;
} pith_generate_options;

pith_generate_options pith_generate_defaults(void);

typedef struct pith_generate_result {
  pith_stop_reason reason;
  size_t prompt_tokens, sampled_tokens;
  double prompt_seconds, decode_seconds;
} pith_generate_result;

/* Gets complete characters, `size` bytes, not terminated. Return 0 to go on; anything else ends
 * the answer (PITH_STOP_CANCELLED). */
typedef int (*pith_text_callback)(const char* text, size_t size, void* user);

/* Appends `prompt` after what the session holds and samples until something ends it. `options`
 * NULL: the defaults. `on_text` and `result` may be NULL. */
pith_status pith_generate(pith_session* session, const int32_t* prompt, size_t count,
                          const pith_generate_options* options, pith_text_callback on_text,
                          void* user, pith_generate_result* result, pith_error* error);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif /* PITH_PITH_H_ */
