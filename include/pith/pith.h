/* Pith from C, and from every language that calls C: models, engines, sessions with a compressed
 * cache, batches, generation, policies and what they cost. A thin face of the C++ headers beside
 * it, which say more.
 *
 * Functions that can fail return a pith_status and, where `error` is not NULL, fill it in. No
 * exception passes. Objects are freed by the function named after them; NULL is allowed there. An
 * object keeps alive what it was made with, so that they may be freed in any order.
 *
 * Every struct begins with its size, so that it can grow and programs need not be compiled again:
 * fields that an older program does not have are taken for the defaults, and are not written. A
 * newer program's fields that this library does not know must be 0. Options are filled in by
 * `pith_..._defaults(&options, sizeof options)`, results begin as `{sizeof(pith_ledger)}`.
 *
 * Threads: as in engine.h. A session is one thread's at a time, and no thread's while another runs
 * a step that it is part of. Callbacks run on the caller's thread. */
#ifndef PITH_PITH_H_
#define PITH_PITH_H_

#include <stddef.h>
#include <stdint.h>

/* C's names, not this house's. NOLINTBEGIN(readability-identifier-naming,modernize-*) */
#pragma GCC visibility push(default) /* all of this is exported */
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
  PITH_INTERNAL = 18,         /* a bug of ours */
  PITH_BUFFER_TOO_SMALL = 19  /* a result does not fit into the room given; its size was written */
} pith_status;

/* "unsupported"; for programs and logs. */
const char* pith_status_name(pith_status status);

/* What was asked, what is supported and what to do, in UTF-8; cut off where it does not fit. */
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

/* Called now and then during long work: `done` of `total` units. Return 0 to go on. */
typedef int (*pith_progress)(size_t done, size_t total, void* user);

/* "0.1.0": the library's; version.h has the headers'. */
const char* pith_version(void);

/* ---- Models: Hugging Face folders and GGUF files ---- */

typedef struct pith_model_options {
  size_t size;
  size_t check_finite; /* not 0: every weight is read once, and NaN refused */
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
  const char* architecture; /* "LlamaForCausalLM"; the model's */
} pith_model_info;

pith_status pith_model_get_info(const pith_model* model, pith_model_info* info, pith_error* error);

/* Ids of text [size bytes], with the token that begins a text if `begin` is not 0 and the model
 * expects one. *count gets the number of ids; if it is more than `capacity`, nothing is written to
 * `ids` and the status is PITH_BUFFER_TOO_SMALL: call again with room for *count. Special tokens
 * spelled out in the text are read as such. */
pith_status pith_tokenize(const pith_model* model, const char* text, size_t size, int begin,
                          int32_t* ids, size_t capacity, size_t* count, pith_error* error);

/* Text of ids [count], not terminated; *size gets its bytes, as *count above. */
pith_status pith_detokenize(const pith_model* model, const int32_t* ids, size_t count, char* text,
                            size_t capacity, size_t* size, pith_error* error);

/* ---- Engines: what conversations on one device share ---- */

typedef enum pith_device { PITH_CPU = 0, PITH_CUDA = 1 } pith_device;

typedef struct pith_engine_options {
  size_t size;
  int32_t device;        /* a pith_device; nothing falls back */
  int32_t threads;       /* 0 = all cores */
  const char* isa;       /* "", "scalar", "avx2", "avx512", "avx512_vnni"; "" or NULL = best */
  size_t chunk;          /* prompt tokens a forward pass */
  size_t parallel;       /* GPU: of how many sessions a token each runs in one pass */
  size_t memory_limit;   /* bytes of all caches, staging and scratch together; 0 = none */
  size_t f32_arithmetic; /* not 0: activations are never rounded to 16 bits */
} pith_engine_options;

/* The CPU, all cores, 512 tokens a pass, no limit. */
void pith_engine_defaults(pith_engine_options* options, size_t size);
/* `options` NULL: the defaults. */
pith_status pith_engine_create(const pith_model* model, const pith_engine_options* options,
                               pith_engine** engine, pith_error* error);
void pith_engine_free(pith_engine* engine);

typedef struct pith_engine_info {
  size_t size;
  size_t bytes_in_use; /* of the engine and its sessions, weights apart */
  size_t peak_bytes;   /* the most that they took */
  size_t scratch;      /* what is the engine's own */
  const char* isa;     /* the engine's */
  int32_t device, threads;
} pith_engine_info;

pith_status pith_engine_get_info(const pith_engine* engine, pith_engine_info* info,
                                 pith_error* error);
/* The length of the next chunk of a prompt of which `left` tokens are to come: whoever gives a
 * prompt in pieces cuts here to get the bits of the whole. */
size_t pith_engine_next_chunk(const pith_engine* engine, size_t left);

/* ---- Sessions: a conversation whose cache stays compressed ---- */

typedef struct pith_session_options {
  size_t size;
  const char* policy; /* "exact", "uniform(rate=0.25)+int4,window=64"; NULL = "exact"; policy.h */
  size_t context;     /* tokens; 0 = the model's */
  size_t percent_of;  /* tokens that per cent of a budget are of; 0 = the context */
  uint64_t seed;      /* of randomised methods */
  size_t cache_limit; /* bytes of this session alone; 0 = none */
  const int64_t* protect; /* [protect_count][2] tokens that stay exact: first, one past the last */
  size_t protect_count;
  size_t probe_rows;  /* the error probe: exact rows kept aside a layer and KV head; 0 = none */
  size_t probe_every; /* decode steps from one comparison to the next */
  double max_error;   /* generation ends when a layer's error is surely above it; 0 = no limit */
} pith_session_options;

/* "exact", the model's context, seed 0, no limit, nothing protected, no probe. */
void pith_session_defaults(pith_session_options* options, size_t size);

/* `options` NULL: the defaults. */
pith_status pith_session_create(const pith_engine* engine, const pith_session_options* options,
                                pith_session** session, pith_error* error);
void pith_session_free(pith_session* session);
/* A second conversation with the same past. */
pith_status pith_session_fork(const pith_session* session, pith_session** fork, pith_error* error);

/* Writes all that the session needs to go on in another process, whole or not at all; a file that
 * is there is replaced if `replace` is not 0. It holds the conversation (mode 0600). */
pith_status pith_session_save(const pith_session* session, const char* path, int replace,
                              pith_error* error);
/* A session that goes on where it was saved, bit for bit. Engine and options must be those it was
 * saved under: else PITH_INVALID_ARGUMENT, with what differs. PITH_CORRUPT: a damaged file. */
pith_status pith_session_restore(const pith_engine* engine, const char* path,
                                 const pith_session_options* options, pith_session** session,
                                 pith_error* error);

/* How tokens come to a session. */
typedef enum pith_append {
  PITH_APPEND_WHOLE = 0,       /* several are a prompt that ends with them; one is of an answer */
  PITH_APPEND_MORE = 1,        /* the end of a piece of a prompt that goes on */
  PITH_APPEND_PROMPT_ENDS = 2, /* the last of a prompt, even if it is one */
  PITH_APPEND_PART = 3         /* of a piece of a prompt: neither ends here */
} pith_append;

/* Appends tokens. If `progress` (may be NULL) asks to stop, the tokens of the finished chunks stay:
 * pith_session_tokens says how many. */
pith_status pith_session_append(pith_session* session, const int32_t* tokens, size_t count,
                                pith_append how, pith_progress progress, void* user,
                                pith_error* error);
/* Appends tokens. *logits, if `logits` is not NULL, points to [vocab] numbers after the last one,
 * valid until the session's next call. */
pith_status pith_session_prefill(pith_session* session, const int32_t* tokens, size_t count,
                                 const float** logits, pith_error* error);
/* Protects more tokens, all still to come, as pith_session_options does. */
pith_status pith_session_protect(pith_session* session, const int64_t* ranges, size_t count,
                                 pith_error* error);

size_t pith_session_tokens(const pith_session* session);
/* [*count] the tokens seen, valid until the session's next call. */
const int32_t* pith_session_token_ids(const pith_session* session, size_t* count);
/* The policy with every budget as rows and every default spelled out, not terminated; *written gets
 * its bytes, as *count of pith_tokenize. */
pith_status pith_session_describe(const pith_session* session, char* text, size_t capacity,
                                  size_t* written, pith_error* error);

/* Bytes of a cache by what they are for; see ledger.h. */
typedef struct pith_ledger {
  size_t size;
  size_t payload, metadata, shared, slack, staging, scratch, probe;
  uint64_t tokens, rows_seen, rows_kept;
  double effective_bits; /* bits per number of an uncompressed cache */
  double retained_bits;  /* bits per number of the rows that are still there */
} pith_ledger;

pith_status pith_session_ledger(const pith_session* session, pith_ledger* ledger,
                                pith_error* error);

/* What a row counts for: both sums of the softmax, or one (rows.h). */
typedef enum pith_role {
  PITH_ROLE_BOTH = 0,
  PITH_ROLE_NUMERATOR = 1,
  PITH_ROLE_DENOMINATOR = 2
} pith_role;

/* Rows of one KV head, by ascending position. */
typedef struct pith_rows {
  size_t size;
  size_t capacity;    /* given: room in each array */
  int64_t* positions; /* given, as the next two: [capacity]; NULL: not wanted */
  float* log_weights; /* 0 = counts once */
  int32_t* roles;     /* pith_role */
  size_t count;       /* rows that are held */
} pith_rows;

/* Which rows a KV head holds. More than `capacity`: rows->count says how many, the arrays are left
 * alone and the status is PITH_BUFFER_TOO_SMALL. */
pith_status pith_session_rows(const pith_session* session, int32_t layer, int32_t head,
                              pith_rows* rows, pith_error* error);

/* The error probe's estimate for one layer: |policy - exact| / |exact| of its attention, with a 95%
 * interval. */
typedef struct pith_attention_error {
  size_t size;
  size_t layer;
  uint64_t steps; /* comparisons made; 0: nothing is known */
  double estimate, low, high;
} pith_attention_error;

/* Layers that the error probe watches; 0 without one. */
size_t pith_session_probed_layers(const pith_session* session);
/* That of the `index`th of them. */
pith_status pith_session_attention_error(const pith_session* session, size_t index,
                                         pith_attention_error* estimate, pith_error* error);

/* ---- Sampling ---- */

/* llama.cpp's names and defaults; temperature 0 is greedy. */
typedef struct pith_sampling_options {
  size_t size;
  float temperature;
  int32_t top_k;      /* 0 = off */
  float top_p, min_p; /* 1 and 0 = off */
  float repeat_penalty;
  int32_t repeat_last_n;
  uint64_t seed;
  const int32_t* never; /* [never_count] tokens that are never drawn */
  size_t never_count;
  float presence_penalty, frequency_penalty; /* of the last repeat_last_n tokens; 0 = off */
  const int32_t* bias_ids;                   /* [bias_count] tokens */
  const float* biases;                       /* and what is added to their logits */
  size_t bias_count;
} pith_sampling_options;

void pith_sampling_defaults(pith_sampling_options* options, size_t size);
pith_status pith_sampler_create(const pith_sampling_options* options, pith_sampler** sampler,
                                pith_error* error);
void pith_sampler_free(pith_sampler* sampler);
/* From now on tokens are drawn whose bit is set: id % 32 of words[id / 32]. count 0: all. */
pith_status pith_sampler_set_mask(pith_sampler* sampler, const uint32_t* words, size_t count,
                                  pith_error* error);
/* Draws the next token: a function of the session's tokens, the seed and its position. */
pith_status pith_session_sample(pith_session* session, pith_sampler* sampler, int32_t* token,
                                pith_error* error);
/* Appends `tokens` as one prompt and rates each after those before it: its log-probability, and the
 * token likeliest there; [count] each, NULL: not wanted. A session's first gets 0 and -1. */
pith_status pith_session_score(pith_session* session, const int32_t* tokens, size_t count,
                               float* logprobs, int32_t* likeliest, pith_error* error);
/* From logits [vocab] as they are: that of `token`, and the `top` likeliest; NULL for top 0. */
pith_status pith_log_probabilities(const float* logits, size_t vocab, int32_t token, float* logprob,
                                   int32_t* top_ids, float* top_logprobs, size_t top,
                                   pith_error* error);

/* ---- Batches ---- */

/* What a step does for one session: `tokens` are appended as pith_session_append does. */
typedef struct pith_work {
  size_t size;
  pith_session* session;
  const int32_t* tokens;
  size_t count;
  float* logits;         /* [vocab] those after the last token go here; NULL: not wanted */
  pith_sampler* sampler; /* draws `next`; NULL: none is drawn */
  pith_error* error;     /* filled in if this work fails; may be NULL */
  int32_t how;           /* a pith_append */
  int32_t next;          /* what became of it: the token drawn, or -1 */
  size_t status;         /* and its pith_status */
} pith_work;

/* Works of one token run in one pass, which reads the weights once; prompts follow. What a session
 * says does not depend on who else is in the step. A work that fails says so in its status and
 * changes no other; the step's own status is of works that make no sense together, and then nothing
 * was done. All works have one size. */
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

/* Gets complete characters, `size` bytes, not terminated. Return 0 to go on; anything else ends
 * the answer (PITH_STOP_CANCELLED). */
typedef int (*pith_text_callback)(const char* text, size_t size, void* user);

typedef struct pith_generate_options {
  size_t size;
  const pith_sampling_options* sampling; /* NULL: the defaults */
  int64_t max_tokens;                    /* -1: until the model or the context ends */
  const char* const* stop;               /* [stop_count] text ends before the first of these */
  size_t stop_count;
  const int32_t* ends; /* [end_count] tokens that end it beside the model's own */
  size_t end_count;
  size_t ignore_eos;  /* not 0: the tokens that end it are never drawn */
  size_t append_last; /* not 0: the session gets the last token too, unless it ended the text */
  pith_text_callback on_text;
  pith_progress on_prompt; /* while the prompt is read */
  void* user;              /* for both */
} pith_generate_options;

void pith_generate_defaults(pith_generate_options* options, size_t size);

typedef struct pith_generate_result {
  size_t size;
  int32_t reason;     /* a pith_stop_reason */
  int32_t last_token; /* the last that was sampled; -1: none */
  size_t prompt_tokens, sampled_tokens;
  double prompt_seconds, decode_seconds;
} pith_generate_result;

/* Appends `prompt` after what the session holds and samples until something ends it. An empty
 * prompt goes on where the session is. `options` NULL: the defaults. `result` may be NULL. */
pith_status pith_generate(pith_session* session, const int32_t* prompt, size_t count,
                          const pith_generate_options* options, pith_generate_result* result,
                          pith_error* error);

/* ---- Policies, and what they cost ---- */

/* The policy as it is understood, not terminated, after `budget` ("1024", "25%", "16MiB"; NULL:
 * none) is set; *written as *count of pith_tokenize. PITH_INVALID_ARGUMENT says what is wrong with
 * it and what was meant. */
pith_status pith_policy_text(const char* policy, const char* budget, char* text, size_t capacity,
                             size_t* written, pith_error* error);

/* A selector or codec that policies may name. Texts live as long as the library. */
typedef struct pith_method {
  size_t size;
  const char *name, *summary, *source;
  const char* size_parameter; /* the parameter of a selector that a budget sets; "" if none */
  size_t parameters;          /* how many */
  int32_t is_selector, on_gpu;
} pith_method;

typedef struct pith_parameter {
  size_t size;
  const char *name, *default_value, *help;
} pith_parameter;

/* Selectors first. */
size_t pith_method_count(void);
pith_status pith_method_get(size_t index, pith_method* method, pith_error* error);
pith_status pith_method_parameter(size_t method, size_t index, pith_parameter* parameter,
                                  pith_error* error);

/* The most that `tokens` tokens of a session with these options can take on a device
 * (pith_device), without scratch; nothing is allocated for it. */
pith_status pith_estimate(const pith_model* model, const pith_session_options* options,
                          int32_t device, size_t tokens, pith_ledger* ledger, pith_error* error);

/* A policy as it was measured (presets.h). Texts live as long as the library. */
typedef struct pith_preset {
  size_t size;
  const char *policy, *model;
  uint64_t context; /* tokens of the measurement */
  size_t seeds;
  double divergence, divergence_error; /* KL from the exact cache, nats a token */
  double bits;                         /* effective, everything included */
  double facts;                        /* share of hidden facts found; -1: not measured */
} pith_preset;

size_t pith_preset_count(void);
pith_status pith_preset_get(size_t index, pith_preset* preset, pith_error* error);

/* What a policy is chosen for. */
typedef enum pith_goal {
  PITH_GOAL_TEXT = 0,  /* the least divergence */
  PITH_GOAL_FACTS = 1, /* the most facts found */
  PITH_GOAL_BOTH = 2   /* the least divergence of those that find most of the facts */
} pith_goal;

typedef struct pith_preset_request {
  size_t size;
  const char* budget;                  /* "16MiB", or "25%" of an f16 cache of the whole context */
  const pith_session_options* session; /* its policy is not looked at; NULL: the defaults */
  int32_t device, goal;                /* pith_device, pith_goal */
} pith_preset_request;

void pith_preset_defaults(pith_preset_request* request, size_t size);

typedef struct pith_preset_choice {
  size_t size;
  size_t preset;       /* its number for pith_preset_get */
  size_t fitting;      /* how many fit the budget */
  size_t bytes;        /* the most that the cache will take */
  size_t budget_bytes; /* what was given */
  size_t exact_bytes;  /* of `exact` at the same length */
  uint64_t context;    /* tokens of all three */
  double best_facts;   /* share that the best of them found; -1: not measured */
  char why[1024];      /* two lines: bytes; what is expected, measured where */
} pith_preset_choice;

/* The measured best policy for a budget. PITH_INVALID_ARGUMENT if none fits. */
pith_status pith_preset_choose(const pith_model* model, const pith_preset_request* request,
                               pith_preset_choice* choice, pith_error* error);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif /* PITH_PITH_H_ */
