/* Pith for C and every language that calls C.
 * Models, engines, sessions with a compressed cache, batches, generation, policies and their cost.
 * The C++ headers beside it have more detail.
 *
 * Functions that can fail return a pith_status and fill in `error` if it is not NULL. No exception
 * leaves the library. Free each object with the function named after it; NULL is allowed. An object
 * keeps the objects that it was made from alive, so they may be freed in any order.
 *
 * Every struct begins with its size, so that programs run with newer libraries without compiling
 * again: fields that an older program lacks have their defaults and are not written. Fields of a
 * newer program that the library does not know must be 0. Fill in options with
 * `pith_..._defaults(&options, sizeof options)`, start results as `{sizeof(pith_ledger)}`.
 *
 * Threads: as in engine.h. Only one thread at a time may use a session, including by a step that it
 * is part of. Callbacks run on the caller's thread. */
#ifndef PITH_PITH_H_
#define PITH_PITH_H_

#include <stddef.h>
#include <stdint.h>

/* C's names, not this house's. NOLINTBEGIN(readability-identifier-naming,modernize-*) */
#pragma GCC visibility push(default) /* all of this is exported */
#ifdef __cplusplus
extern "C" {
#endif

/* Also the exit statuses of the program. */
typedef enum pith_status {
  PITH_OK = 0,
  PITH_INVALID_ARGUMENT = 10, /* an impossible parameter, policy or prompt */
  PITH_NOT_FOUND = 11,        /* a missing file or tensor */
  PITH_CORRUPT = 12,          /* a malformed or truncated file */
  PITH_UNSUPPORTED = 13,      /* well-formed, but this build or device cannot do it */
  PITH_OUT_OF_MEMORY = 14,    /* a memory limit, or the machine's memory */
  PITH_CONTEXT_FULL = 15,     /* more tokens than the context allows; nothing was appended */
  PITH_NON_FINITE = 16,       /* NaN or infinity in weights or activations */
  PITH_IO = 17,               /* the operating system refused a read or a write */
  PITH_INTERNAL = 18,         /* a bug in Pith */
  PITH_BUFFER_TOO_SMALL = 19  /* the result does not fit into the buffer; its size was written */
} pith_status;

/* The status as text, e.g. "unsupported". */
const char* pith_status_name(int32_t status); /* a pith_status */

/* The message says what was asked, what is supported and what to do: UTF-8, truncated to fit. */
typedef struct pith_error {
  size_t size;
  pith_status status;
  char message[1012];
} pith_error;

/* pith_error error = PITH_ERROR_INIT; */
#define PITH_ERROR_INIT                \
  {                                    \
    sizeof(pith_error), PITH_OK, { 0 } \
  }

typedef struct pith_model pith_model;
typedef struct pith_engine pith_engine;
typedef struct pith_session pith_session;
typedef struct pith_sampler pith_sampler;
typedef struct pith_form pith_form; /* pith_chat.h */

/* Called during long work with `done` of `total` units. Return 0 to continue. */
typedef int (*pith_progress)(size_t done, size_t total, void* user);

const char* pith_version(void); /* of the library, e.g. "0.1.0"; version.h has the headers' */

/* ---- Models: Hugging Face folders and GGUF files ---- */

typedef struct pith_model_options {
  size_t size;
  size_t check_finite; /* not 0: read every weight once and refuse NaN and infinity */
  pith_progress progress;
  void* user;
} pith_model_options;

void pith_model_defaults(pith_model_options* options, size_t size);

/* `options` NULL: the defaults. */
pith_status pith_model_load(const char* path, const pith_model_options* options, pith_model** model,
                            pith_error* error);
void pith_model_free(pith_model* model);

typedef struct pith_model_info {
  size_t size;
  int32_t layers, hidden, query_heads, kv_heads, head_dim, vocab;
  int64_t context;          /* longest position trained for */
  size_t weight_bytes;      /* memory-mapped */
  const char* architecture; /* "LlamaForCausalLM"; valid as long as the model */
} pith_model_info;

pith_status pith_model_get_info(const pith_model* model, pith_model_info* info, pith_error* error);

/* Ids of text [size bytes], with the token that begins a text if `begin` is not 0 and the model
 * expects one. *count gets the number of ids. If it exceeds `capacity`, `ids` is not written and
 * the status is PITH_BUFFER_TOO_SMALL: call again with room for *count. Special tokens spelled out
 * in the text become their ids. */
pith_status pith_tokenize(const pith_model* model, const char* text, size_t size, int begin,
                          int32_t* ids, size_t capacity, size_t* count, pith_error* error);

/* Text of ids [count], not terminated. *size gets its bytes, as *count above. */
pith_status pith_detokenize(const pith_model* model, const int32_t* ids, size_t count, char* text,
                            size_t capacity, size_t* size, pith_error* error);

/* ---- Engines: one model on one device, shared by sessions ---- */

typedef enum pith_device { PITH_CPU = 0, PITH_CUDA = 1 } pith_device;

typedef struct pith_engine_options {
  size_t size;
  int32_t device;        /* a pith_device; no fallback */
  int32_t threads;       /* 0 = all cores */
  const char* isa;       /* "scalar", "avx2", "avx512", "avx512_vnni"; "" or NULL = best */
  size_t chunk;          /* prompt tokens per forward pass */
  size_t parallel;       /* GPU: most sessions that share one decode pass (engine.h) */
  size_t memory_limit;   /* most bytes of all caches, staging and scratch; 0 = no limit */
  size_t f32_arithmetic; /* not 0: never round activations to 16 bits */
  const struct pith_compute* runtime; /* pith_layer.h's, for several engines; NULL: its own */
} pith_engine_options;

/* The CPU, all cores, 512 tokens per pass, no limit. */
void pith_engine_defaults(pith_engine_options* options, size_t size);
/* `options` NULL: the defaults. */
pith_status pith_engine_create(const pith_model* model, const pith_engine_options* options,
                               pith_engine** engine, pith_error* error);
void pith_engine_free(pith_engine* engine);

typedef struct pith_engine_info {
  size_t size;
  size_t bytes_in_use; /* of the engine and its sessions, without weights */
  size_t peak_bytes;   /* the most so far */
  size_t scratch;      /* of the engine alone */
  const char* isa;     /* valid as long as the engine */
  int32_t device, threads;
  size_t bytes_reserved; /* set aside and not in use: the limit bounds both together */
} pith_engine_info;

pith_status pith_engine_get_info(const pith_engine* engine, pith_engine_info* info,
                                 pith_error* error);
/* The length of the next chunk of a prompt with `left` tokens to come. Split prompts here to get
 * the same bits as without splitting. */
size_t pith_engine_next_chunk(const pith_engine* engine, size_t left);

/* ---- Sessions: a conversation whose cache stays compressed ---- */

typedef struct pith_session_options {
  size_t size;
  const char* policy; /* "exact", "uniform(rate=0.25)+int4,window=64"; NULL = "exact"; policy.h */
  size_t context;     /* tokens; 0 = the model's */
  size_t percent_of;  /* tokens that budgets in per cent refer to; 0 = the context */
  uint64_t seed;      /* of randomised methods */
  size_t cache_limit; /* most bytes of this session; 0 = no limit */
  const int64_t* protect; /* [protect_count][2] ranges that stay exact: first, one past the last */
  size_t protect_count;
  size_t probe_rows;  /* the error probe: sampled rows per layer and KV head; 0 = no probe */
  size_t probe_every; /* decode steps between comparisons */
  double max_error;   /* generation ends when a layer's interval is above it; 0 = no limit */
} pith_session_options;

/* "exact", the model's context, seed 0, no limit, nothing protected, no probe. */
void pith_session_defaults(pith_session_options* options, size_t size);

/* `options` NULL: the defaults. */
pith_status pith_session_create(const pith_engine* engine, const pith_session_options* options,
                                pith_session** session, pith_error* error);
void pith_session_free(pith_session* session);
/* A second, independent conversation with the same past. */
pith_status pith_session_fork(const pith_session* session, pith_session** fork, pith_error* error);

/* Writes a file from which another process continues. It appears whole or not at all; an existing
 * file is replaced if `replace` is not 0. It holds the conversation (mode 0600). */
pith_status pith_session_save(const pith_session* session, const char* path, int replace,
                              pith_error* error);
/* A session that continues a saved one bit for bit. Engine and options must be the same, else
 * PITH_INVALID_ARGUMENT with the field that differs. PITH_CORRUPT: a damaged file. */
pith_status pith_session_restore(const pith_engine* engine, const char* path,
                                 const pith_session_options* options, pith_session** session,
                                 pith_error* error);

/* How the tokens of a call relate to a prompt. */
typedef enum pith_append {
  PITH_APPEND_WHOLE = 0,       /* several tokens are a whole prompt; one is part of an answer */
  PITH_APPEND_MORE = 1,        /* they end a piece of a prompt; more of it follows */
  PITH_APPEND_PROMPT_ENDS = 2, /* they end a prompt, even if it is one token */
  PITH_APPEND_PART = 3         /* neither the prompt nor a piece of it ends with them */
} pith_append;

/* Appends tokens. If `progress` (may be NULL) asks to stop, the tokens of finished chunks stay;
 * pith_session_tokens counts them. */
pith_status pith_session_append(pith_session* session, const int32_t* tokens, size_t count,
                                int32_t how /* a pith_append */, pith_progress progress, void* user,
                                pith_error* error);
/* Appends tokens. If `logits` is not NULL, *logits points to the [vocab] logits after the last one,
 * valid until the session's next call. */
pith_status pith_session_prefill(pith_session* session, const int32_t* tokens, size_t count,
                                 const float** logits, pith_error* error);
/* Protects tokens that are still to come, as pith_session_options does. */
pith_status pith_session_protect(pith_session* session, const int64_t* ranges, size_t count,
                                 pith_error* error);

size_t pith_session_tokens(const pith_session* session);
/* The tokens seen [*count], valid until the session's next call. */
const int32_t* pith_session_token_ids(const pith_session* session, size_t* count);
/* The policy with budgets as rows and defaults spelled out, not terminated. *written gets its
 * bytes, as *count of pith_tokenize. */
pith_status pith_session_describe(const pith_session* session, char* text, size_t capacity,
                                  size_t* written, pith_error* error);

typedef struct pith_ledger { /* bytes of a cache by purpose; see ledger.h */
  size_t size;
  size_t payload, metadata, shared, slack, staging, scratch, probe;
  uint64_t tokens, rows_seen, rows_kept;
  double effective_bits, retained_bits; /* per number of an uncompressed cache; of the rows held */
} pith_ledger;

pith_status pith_session_ledger(const pith_session* session, pith_ledger* ledger,
                                pith_error* error);

/* The sums of attention that a row counts in (rows.h). */
typedef enum pith_role {
  PITH_ROLE_BOTH = 0,
  PITH_ROLE_NUMERATOR = 1,
  PITH_ROLE_DENOMINATOR = 2
} pith_role;

/* Rows of one KV head, by ascending position. */
typedef struct pith_rows {
  size_t size;
  size_t capacity;    /* input: length of each array */
  int64_t* positions; /* input, as the next two: an array [capacity], or NULL */
  float* log_weights; /* 0 = counts once */
  int32_t* roles;     /* pith_role */
  size_t count;       /* output: rows held */
} pith_rows;

/* The rows that a KV head holds. If they exceed `capacity`, only rows->count is written and the
 * status is PITH_BUFFER_TOO_SMALL. */
pith_status pith_session_rows(const pith_session* session, int32_t layer, int32_t head,
                              pith_rows* rows, pith_error* error);

/* The error probe's estimate for one layer: |policy - exact| / |exact| of its attention, with a 95%
 * interval. */
typedef struct pith_attention_error {
  size_t size;
  size_t layer;
  uint64_t steps; /* comparisons made; 0: no estimate yet */
  double estimate, low, high;
} pith_attention_error;

size_t pith_session_probed_layers(const pith_session* session); /* 0 without an error probe */
/* The estimate of the `index`th of these layers. */
pith_status pith_session_attention_error(const pith_session* session, size_t index,
                                         pith_attention_error* estimate, pith_error* error);

/* ---- Sampling ---- */

typedef struct pith_sampling_options { /* names and defaults are llama.cpp's */
  size_t size;
  float temperature;  /* 0 = greedy */
  int32_t top_k;      /* 0 = off */
  float top_p, min_p; /* 1 and 0 = off */
  float repeat_penalty;
  int32_t repeat_last_n;
  uint64_t seed;
  const int32_t* never; /* [never_count] tokens that are never drawn */
  size_t never_count;
  float presence_penalty, frequency_penalty; /* of the last repeat_last_n tokens; 0 = off */
  const int32_t* bias_ids;                   /* [bias_count] tokens */
  const float* biases;                       /* [bias_count] added to their logits */
  size_t bias_count;
} pith_sampling_options;

void pith_sampling_defaults(pith_sampling_options* options, size_t size);
pith_status pith_sampler_create(const pith_sampling_options* options, pith_sampler** sampler,
                                pith_error* error);
void pith_sampler_free(pith_sampler* sampler);
/* From now on only tokens with a set bit are drawn: bit id % 32 of words[id / 32]. count 0: all. */
pith_status pith_sampler_set_mask(pith_sampler* sampler, const uint32_t* words, size_t count,
                                  pith_error* error);
/* Draws the next token, a function of the session's tokens, the seed and the position. */
pith_status pith_session_sample(pith_session* session, pith_sampler* sampler, int32_t* token,
                                pith_error* error);
/* Appends `tokens` as one prompt and writes each one's log-probability and the likeliest token in
 * its place, [count] each; NULL: not wanted. A session's first token gets 0 and -1. */
pith_status pith_session_score(pith_session* session, const int32_t* tokens, size_t count,
                               float* logprobs, int32_t* likeliest, pith_error* error);
/* Log-probabilities from raw logits [vocab]: of `token`, and of the `top` likeliest (NULL if 0). */
pith_status pith_log_probabilities(const float* logits, size_t vocab, int32_t token, float* logprob,
                                   int32_t* top_ids, float* top_logprobs, size_t top,
                                   pith_error* error);

/* ---- Batches: works of a step, each of one session, as pith_session_append's ---- */
typedef struct pith_work {
  size_t size;
  pith_session* session;
  const int32_t* tokens;
  size_t count;
  float* logits;         /* [vocab] receives the logits after the last token; NULL: not wanted */
  pith_sampler* sampler; /* draws `next`; NULL: none is drawn */
  pith_error* error;     /* filled in if this work fails; may be NULL */
  int32_t how;           /* a pith_append */
  int32_t next;          /* output: the token drawn, or -1 */
  size_t status;         /* output: a pith_status */
  size_t slice;          /* under prompt=exact and once: most units of a prompt to read; 0: all */
  int32_t goes_on;       /* output: not 0: the prompt is not read through; give the work again */
  int32_t appended;      /* output: not 0: the tokens are there, whatever became of their logits */
} pith_work;

/* Runs the works of one token in one pass, which reads the weights once; prompts follow. The other
 * works do not change a session's bits. A failure is in its work's status and changes no other. The
 * step's own status is of works that are invalid together; then nothing has run. Of one size. */
pith_status pith_engine_step(const pith_engine* engine, pith_work* works, size_t count,
                             pith_error* error);

/* ---- Generation ---- */

typedef enum pith_stop_reason {
  PITH_STOP_END_OF_TEXT = 0,
  PITH_STOP_STRING = 1,
  PITH_STOP_MAX_TOKENS = 2,
  PITH_STOP_CONTEXT_FULL = 3,
  PITH_STOP_CANCELLED = 4,
  PITH_STOP_ATTENTION_ERROR = 5
} pith_stop_reason;

/* Receives complete characters, `size` bytes, not terminated. Return 0 to continue; anything else
 * ends the answer (PITH_STOP_CANCELLED). */
typedef int (*pith_text_callback)(const char* text, size_t size, void* user);

typedef struct pith_generate_options {
  size_t size;
  const pith_sampling_options* sampling; /* NULL: the defaults */
  int64_t max_tokens;                    /* -1: until the model or the context ends */
  const char* const* stop;               /* [stop_count] the text ends before the first of these */
  size_t stop_count;
  const int32_t* ends; /* [end_count] tokens that end the answer, besides the model's own */
  size_t end_count;
  size_t ignore_eos;  /* not 0: tokens that end the answer are never drawn */
  size_t append_last; /* not 0: append the last token too, unless it ended the text */
  pith_text_callback on_text;
  pith_progress on_prompt; /* while the prompt is read */
  void* user;              /* for both callbacks */
  const pith_form* form;   /* the answer is held to it and ends with it; NULL: none */
} pith_generate_options;

void pith_generate_defaults(pith_generate_options* options, size_t size);

typedef struct pith_generate_result {
  size_t size;
  int32_t reason;     /* a pith_stop_reason */
  int32_t last_token; /* the last token drawn; -1: none */
  size_t prompt_tokens, sampled_tokens;
  double prompt_seconds, decode_seconds;
} pith_generate_result;

/* Appends `prompt` and draws tokens until the answer ends. An empty prompt continues from the
 * session's last token. `options` NULL: the defaults. `result` may be NULL. */
pith_status pith_generate(pith_session* session, const int32_t* prompt, size_t count,
                          const pith_generate_options* options, pith_generate_result* result,
                          pith_error* error);

/* ---- Policies and their cost ---- */

/* The parsed policy as text, not terminated, with `budget` ("1024", "25%", "16MiB"; NULL: none)
 * set. *written as *count of pith_tokenize. PITH_INVALID_ARGUMENT names the wrong part and suggests
 * a right one. */
pith_status pith_policy_text(const char* policy, const char* budget, char* text, size_t capacity,
                             size_t* written, pith_error* error);

typedef struct pith_method { /* a selector or codec; texts live as long as the library */
  size_t size;
  const char *name, *summary, *source;
  const char* size_parameter; /* the parameter of a selector that a budget sets; "" if none */
  size_t parameters;          /* how many */
  int32_t is_selector, on_gpu;
  int32_t needs_mass, needs_queries, needs_rope, weighted, ragged, shares, keys_before_rope;
  size_t block_rows, learns_rows; /* these and the line above: MethodInfo's */
  const char *needs, *offers;     /* in words; "" for the other kind */
} pith_method;

typedef struct pith_parameter {
  size_t size;
  const char *name, *default_value, *help;
} pith_parameter;

/* Selectors first; those that were added (pith_extend.h) behind this build's, codecs likewise. */
size_t pith_method_count(void);
pith_status pith_method_get(size_t index, pith_method* method, pith_error* error);
pith_status pith_method_parameter(size_t method, size_t index, pith_parameter* parameter,
                                  pith_error* error);

/* Upper bound of a session's ledger after `tokens` tokens, without scratch. Allocates nothing. */
pith_status pith_estimate(const pith_model* model, const pith_session_options* options,
                          int32_t device, size_t tokens, pith_ledger* ledger, pith_error* error);

/* A measured policy (presets.h). Texts live as long as the library. */
typedef struct pith_preset {
  size_t size;
  const char *policy, *model;
  uint64_t context; /* tokens of the measurement */
  size_t seeds;
  double divergence, divergence_error; /* KL from the exact cache, nats per token */
  double bits;                         /* effective, everything included */
  double facts;                        /* share of hidden facts found; -1: not measured */
} pith_preset;

size_t pith_preset_count(void);
pith_status pith_preset_get(size_t index, pith_preset* preset, pith_error* error);

/* The quality that a policy is chosen by. */
typedef enum pith_goal {
  PITH_GOAL_TEXT = 0,  /* the least divergence */
  PITH_GOAL_FACTS = 1, /* the most facts found */
  PITH_GOAL_BOTH = 2   /* the least divergence of those that find 3/4 of the most facts found */
} pith_goal;

typedef struct pith_preset_request {
  size_t size;
  const char* budget;                  /* "16MiB", or "25%" of an f16 cache of the whole context */
  const pith_session_options* session; /* its policy is ignored; NULL: the defaults */
  int32_t device, goal;                /* pith_device, pith_goal */
} pith_preset_request;

void pith_preset_defaults(pith_preset_request* request, size_t size);

typedef struct pith_preset_choice {
  size_t size;
  size_t preset;       /* index for pith_preset_get */
  size_t fitting;      /* policies that fit the budget */
  size_t bytes;        /* most bytes of the cache */
  size_t budget_bytes; /* the budget */
  size_t exact_bytes;  /* bytes of `exact` */
  uint64_t context;    /* tokens of these three */
  double best_facts;   /* largest share of facts among these; -1: not measured */
  char why[1024];      /* two lines: bytes; expected loss, and where it was measured */
} pith_preset_choice;

/* The best measured policy for a budget. PITH_INVALID_ARGUMENT if none fits. */
pith_status pith_preset_choose(const pith_model* model, const pith_preset_request* request,
                               pith_preset_choice* choice, pith_error* error);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif /* PITH_PITH_H_ */
