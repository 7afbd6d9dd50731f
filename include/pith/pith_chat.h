/* Text for C: tokens one by one, chat templates, answers held to a form, and answers of many
 * sessions token by token. chat.h, form.h and generate.h have more detail.
 * Errors, structs, objects and threads are as in pith.h. Texts are UTF-8. */
#ifndef PITH_PITH_CHAT_H_
#define PITH_PITH_CHAT_H_

#include "pith/pith.h"

/* C's names, not this house's. NOLINTBEGIN(readability-identifier-naming,modernize-*) */
#pragma GCC visibility push(default) /* all of this is exported */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tokens ---- */

typedef struct pith_token_info {
  size_t size;
  int32_t vocab;       /* ids of the tokenizer; a model's logits may have more columns */
  int32_t bos;         /* the token that begins a text; -1: none */
  int32_t adds_bos;    /* not 0: the model expects it in front of a text */
  const int32_t* ends; /* [end_count] tokens that end an answer; valid as long as the model */
  size_t end_count;
} pith_token_info;

pith_status pith_model_get_tokens(const pith_model* model, pith_token_info* info,
                                  pith_error* error);
/* The bytes of one token, not terminated; they may be part of a character. *size gets their number,
 * as *count of pith_tokenize. *special, if not NULL, gets 1 for a special token, else 0. */
pith_status pith_token_piece(const pith_model* model, int32_t id, char* bytes, size_t capacity,
                             size_t* size, int* special, pith_error* error);
/* *id gets the token of that spelling ("<|im_end|>"); -1: there is none. */
pith_status pith_token_find(const pith_model* model, const char* token, int32_t* id,
                            pith_error* error);
/* pith_tokenize for text that is not to be trusted: special tokens spelled out in it stay text, and
 * none is put in front. */
pith_status pith_tokenize_plain(const pith_model* model, const char* text, size_t size,
                                int32_t* ids, size_t capacity, size_t* count, pith_error* error);

/* Appends tokens as one prompt. `sink` gets the logits [count, vocab] after tokens first, ...,
 * chunk by chunk, while the engine is locked: it must not call it. pith_session_score gives one
 * number per token. */
typedef void (*pith_logits_callback)(size_t first, size_t count, const float* logits, void* user);
pith_status pith_session_prefill_logits(pith_session* session, const int32_t* tokens, size_t count,
                                        pith_logits_callback sink, void* user, pith_error* error);

/* ---- Chat templates ---- */

typedef struct pith_chat_template pith_chat_template;

/* The built-in ones; NULL past the last. */
const char* pith_chat_built_in(size_t index);
/* `name` NULL: the model's own, PITH_NOT_FOUND if it has none; else a built-in one. */
pith_status pith_chat_template_create(const pith_model* model, const char* name,
                                      pith_chat_template** chat, pith_error* error);
/* From Jinja [size bytes]; `name` (may be NULL) is for messages. PITH_CORRUPT for text that is no
 * Jinja, PITH_UNSUPPORTED outside the subset of chat.h. */
pith_status pith_chat_template_parse(const pith_model* model, const char* source, size_t size,
                                     const char* name, pith_chat_template** chat,
                                     pith_error* error);
void pith_chat_template_free(pith_chat_template* chat);

/* JSON texts, as in OpenAI's API; NULL or "" = none. */
typedef struct pith_chat_request {
  size_t size;
  const char* messages;    /* [{"role": "user", "content": "Hello"}, ...] */
  const char* tools;       /* [{"type": "function", "function": {"name": ...}}, ...] */
  const char* documents;   /* a list */
  const char* variables;   /* {"enable_thinking": false} */
  size_t no_answer_prompt; /* not 0: the text does not end where the answer begins */
} pith_chat_request;

/* The rendered text, not terminated; and its ids, in which special tokens of messages stay text and
 * the token that begins a text is added if the model expects one and the template has none. *size
 * and *count as *count of pith_tokenize. PITH_INVALID_ARGUMENT for malformed JSON, and with the
 * template's message for conversations that it refuses. */
pith_status pith_chat_render(const pith_chat_template* chat, const pith_chat_request* request,
                             char* text, size_t capacity, size_t* size, pith_error* error);
pith_status pith_chat_encode(const pith_chat_template* chat, const pith_chat_request* request,
                             int32_t* ids, size_t capacity, size_t* count, pith_error* error);

/* How an answer ends in the template: tokens for pith_generate_options' `ends`, or a text for its
 * `stop`. Both are valid as long as the template. */
typedef struct pith_chat_end {
  size_t size;
  const int32_t* tokens; /* [token_count] */
  size_t token_count;
  const char* text; /* "": none */
} pith_chat_end;

pith_status pith_chat_turn_end(const pith_chat_template* chat, pith_chat_end* end,
                               pith_error* error);

/* ---- Answers held to a form: pith_generate_options' `form` ---- */

/* A JSON document of `schema`; NULL: any object. PITH_CORRUPT if it is not JSON, PITH_UNSUPPORTED
 * with the keyword for schemas that say more than form.h. */
pith_status pith_form_json(const pith_model* model, const char* schema, pith_form** form,
                           pith_error* error);

typedef struct pith_tool {
  size_t size;
  const char* name;
  const char* parameters; /* a JSON schema; NULL = any object */
  size_t strict;          /* not 0: keywords that are not supported are refused, not left out */
} pith_tool;

typedef struct pith_form_calls {
  size_t size;
  const char *opens, *closes; /* words around a call: "<tool_call>", "</tool_call>" */
  size_t begun;               /* not 0: the answer begins inside of a call */
  size_t once;                /* not 0: one call and nothing behind it */
} pith_form_calls;

/* Calls of tools [count], {"name": ..., "arguments": {...}} between two words; all structs have the
 * same size. `calls` NULL: the words above, free text before and between. */
pith_status pith_form_tools(const pith_model* model, const pith_tool* tools, size_t count,
                            const pith_form_calls* calls, pith_form** form, pith_error* error);
void pith_form_free(pith_form* form);

/* ---- Answers token by token, for sessions of pith_engine_step ---- */

typedef struct pith_stepper pith_stepper;

/* One answer. The options' callbacks are not called, `append_last` is the caller's. */
pith_status pith_stepper_create(const pith_model* model, const pith_generate_options* options,
                                pith_stepper** stepper, pith_error* error);
void pith_stepper_free(pith_stepper* stepper);
/* A sampler with the options' sampling and the tokens that are never drawn. */
pith_status pith_stepper_sampler(const pith_stepper* stepper, pith_sampler** sampler,
                                 pith_error* error);
/* Before each draw, if the options have a form: sets the sampler's mask. */
pith_status pith_stepper_mask(pith_stepper* stepper, pith_sampler* sampler, pith_error* error);

typedef struct pith_stepper_out {
  size_t size;
  const char* text; /* [text_size] complete characters, never part of a stop string; not terminated,
                       valid until the stepper's next call */
  size_t text_size;
  int32_t stop; /* a pith_stop_reason; -1: append the token and draw the next */
} pith_stepper_out;

/* Takes a drawn token. `room`: tokens that still fit into the session's context, this one included.
 * A stop comes with all text that was held back. */
pith_status pith_stepper_push(pith_stepper* stepper, int32_t token, size_t room,
                              pith_stepper_out* out, pith_error* error);
/* Ends the answer for the caller's reason: the text that was held back, and stop -1. */
pith_status pith_stepper_finish(pith_stepper* stepper, pith_stepper_out* out, pith_error* error);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif /* PITH_PITH_CHAT_H_ */
