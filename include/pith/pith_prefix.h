/* Prompts that begin alike, memory set aside, and saved sessions, for C. prefix_tree.h, session.h
 * and saved.h have more detail. Errors, structs, objects and threads are as in pith.h. */
#ifndef PITH_PITH_PREFIX_H_
#define PITH_PITH_PREFIX_H_

#include "pith/pith.h"

/* C's names, not this house's. NOLINTBEGIN(readability-identifier-naming,modernize-*) */
#pragma GCC visibility push(default) /* all of this is exported */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- Prefix trees: snapshots of sessions at fork points ---- */

typedef struct pith_prefix_tree pith_prefix_tree;

typedef struct pith_prefix_tree_options {
  size_t size;
  size_t max_bytes;          /* of all snapshots together; 0: none is kept */
  size_t max_snapshot_bytes; /* larger snapshots are not kept; 0: max_bytes */
  size_t answers;            /* snapshots after answers per conversation, the newest */
} pith_prefix_tree_options;

/* No bytes; 2 answers. */
void pith_prefix_tree_defaults(pith_prefix_tree_options* options, size_t size);
pith_status pith_prefix_tree_create(const pith_engine* engine,
                                    const pith_prefix_tree_options* options,
                                    pith_prefix_tree** tree, pith_error* error);
void pith_prefix_tree_free(pith_prefix_tree* tree);

/* All tokens of a conversation so far, including answers. */
typedef struct pith_prompt {
  size_t size;
  const int32_t* tokens; /* [count] */
  size_t count;
  const size_t* fork_points; /* [fork_point_count] tokens after which prompts may branch off,
                                ascending; they depend on the tokens alone */
  size_t fork_point_count;
  const char* tenant;       /* snapshots are shared within one; NULL = "" */
  const char* conversation; /* snapshots after answers are found by it; NULL: none */
} pith_prompt;

/* The snapshot that a session began with. */
typedef enum pith_reuse_kind {
  PITH_REUSE_NONE = 0,
  PITH_REUSE_PROMPT = 1, /* in the middle of a prompt */
  PITH_REUSE_ANSWER = 2  /* after an answer of its own conversation */
} pith_reuse_kind;

typedef struct pith_reuse {
  size_t size;
  size_t tokens;    /* that need not be read */
  int32_t kind;     /* a pith_reuse_kind */
  char reason[252]; /* why there are not more, truncated to fit */
} pith_reuse;

/* A session from the longest snapshot of the prompt; at least one token is left to read. `options`
 * NULL: the defaults. `reuse` may be NULL. */
pith_status pith_prefix_tree_begin(pith_prefix_tree* tree, const pith_session_options* options,
                                   const pith_prompt* prompt, pith_session** session,
                                   pith_reuse* reuse, pith_error* error);
/* Appends the rest of the prompt and keeps the session at each fork point. If `progress` (may be
 * NULL) asks to stop, the tokens of finished chunks stay. */
pith_status pith_prefix_tree_read(pith_prefix_tree* tree, pith_session* session,
                                  const pith_prompt* prompt, pith_progress progress, void* user,
                                  pith_error* error);
/* Keeps a copy of the session. *kept (may be NULL) gets 0 if it exceeds the limits or there is no
 * memory, else 1. */
pith_status pith_prefix_tree_keep(pith_prefix_tree* tree, const pith_session* session,
                                  const pith_prompt* prompt, int* kept, pith_error* error);
/* *tokens gets those of the snapshot that `begin` would continue from; 0: none. */
pith_status pith_prefix_tree_longest(const pith_prefix_tree* tree,
                                     const pith_session_options* options, const pith_prompt* prompt,
                                     size_t* tokens, pith_error* error);
/* Drops a conversation's own snapshots. *freed (may be NULL) gets its bytes. */
pith_status pith_prefix_tree_forget(pith_prefix_tree* tree, const char* tenant,
                                    const char* conversation, size_t* freed, pith_error* error);
/* Evicts snapshots until `bytes` are free, SIZE_MAX: all. *freed (may be NULL) gets the bytes that
 * became free. */
pith_status pith_prefix_tree_shrink(pith_prefix_tree* tree, size_t bytes, size_t* freed,
                                    pith_error* error);

typedef struct pith_prefix_statistics {
  size_t size;
  size_t snapshots, bytes;           /* kept now */
  uint64_t prompt_hits, answer_hits; /* sessions that began with a snapshot */
  uint64_t misses;                   /* sessions that began empty */
  uint64_t tokens_reused, kept, evicted, too_large;
} pith_prefix_statistics;

pith_status pith_prefix_tree_get_statistics(const pith_prefix_tree* tree,
                                            pith_prefix_statistics* statistics, pith_error* error);

/* ---- A prompt in works of one chunk, among others of pith_engine_step ---- */

typedef struct pith_prompt_reader pith_prompt_reader;

/* Begins at the first token of the prompt that the session has not seen. Copies the prompt.
 * PITH_INVALID_ARGUMENT for a session that has seen other tokens, or all of the prompt. */
pith_status pith_prompt_reader_create(const pith_session* session, const pith_prompt* prompt,
                                      pith_prompt_reader** reader, pith_error* error);
void pith_prompt_reader_free(pith_prompt_reader* reader);
/* 1 if all of the prompt was taken, also for NULL. */
int pith_prompt_reader_done(const pith_prompt_reader* reader);
/* The next chunk: sets session, tokens, count and how of `work`; the rest stays. Repeats until
 * pith_prompt_reader_took. */
pith_status pith_prompt_reader_next(const pith_prompt_reader* reader, pith_session* session,
                                    pith_work* work, pith_error* error);
/* Reports that the work was run and has not failed. *fork_point (may be NULL) gets 1 where the
 * session should be kept, else 0. */
pith_status pith_prompt_reader_took(pith_prompt_reader* reader, const pith_work* work,
                                    int* fork_point, pith_error* error);

/* ---- Memory of sessions that share it ---- */

/* Sets memory aside for `tokens` tokens more: until they are appended no limit refuses them. After
 * PITH_OUT_OF_MEMORY nothing has changed. Each call replaces the last one's; 0 gives the room back.
 * PITH_UNSUPPORTED on the GPU. */
pith_status pith_session_reserve(pith_session* session, size_t tokens, pith_error* error);
/* *bytes gets the most that the session holds until then, what is in use included. */
pith_status pith_session_room(const pith_session* session, size_t tokens, size_t* bytes,
                              pith_error* error);
/* Changes the limit of all that shares the engine's compute, between two passes; 0 = none. */
pith_status pith_engine_set_memory_limit(const pith_engine* engine, size_t bytes,
                                         pith_error* error);

/* ---- Saved sessions ---- */

/* Receives bytes in order. Return 0 to continue; anything else ends it (PITH_IO). */
typedef int (*pith_state_sink)(const void* bytes, size_t size, void* user);

typedef struct pith_save_options {
  size_t size;
  const char* path; /* as pith_session_save's; or NULL: the sink gets the bytes */
  size_t replace;
  pith_state_sink sink;
  void* user;
  const char* note; /* any text; pith_saved_info returns it; NULL = "" */
} pith_save_options;

pith_status pith_session_save_as(const pith_session* session, const pith_save_options* options,
                                 pith_error* error);
/* pith_session_restore from the bytes of a file. */
pith_status pith_session_restore_bytes(const pith_engine* engine, const void* bytes, size_t size,
                                       const pith_session_options* options, pith_session** session,
                                       pith_error* error);

/* Gives the next bytes of a saved session, once and in order: writes at most `room` of them and
 * their number to *size; 0: there are no more. Return 0 to continue; anything else ends it
 * (PITH_IO).
 */
typedef int (*pith_state_source)(void* bytes, size_t room, size_t* size, void* user);

typedef struct pith_restore_options {
  size_t size;
  const char* path; /* of a file; or NULL: the source gives the bytes */
  pith_state_source source;
  void* user;
} pith_restore_options;

/* pith_session_restore from a file or a source, with memory for one layer of it at a time. */
pith_status pith_session_restore_from(const pith_engine* engine, const pith_restore_options* from,
                                      const pith_session_options* options, pith_session** session,
                                      pith_error* error);
/* Restores into a session that has seen nothing, with its options, in the room that is set aside
 * for it. After an error it may still be used; reserve its room again. */
pith_status pith_session_restore_into(pith_session* empty, const pith_restore_options* from,
                                      pith_error* error);

typedef struct pith_saved pith_saved;

/* Reads a file's header and tokens, without a model. `verify` not 0: all bytes are compared with
 * their digests. */
pith_status pith_saved_read(const char* path, int verify, pith_saved** saved, pith_error* error);
void pith_saved_free(pith_saved* saved);

/* Texts and tokens are valid as long as the pith_saved. */
typedef struct pith_saved_info {
  size_t size;
  size_t version;                          /* of the format */
  const char *created, *written_by, *note; /* UTC; "pith 0.1.0" */
  size_t bytes;                            /* of the file */
  const int32_t* tokens;                   /* [token_count] ids seen */
  size_t token_count;
  size_t field_count; /* for pith_saved_field */
} pith_saved_info;

pith_status pith_saved_get_info(const pith_saved* saved, pith_saved_info* info, pith_error* error);
/* One of the fields that a restore compares: model, policy, context, ... */
pith_status pith_saved_field(const pith_saved* saved, size_t index, const char** name,
                             const char** value, pith_error* error);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif /* PITH_PITH_PREFIX_H_ */
