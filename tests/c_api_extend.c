/* What a C11 program adds or passes through itself: saved sessions from a source that is read once,
 * restored into room that is set aside; selectors and codecs of its own. Exits with 0 if all of it
 * holds; arguments: the demo model's folder. */

#include <stdio.h>
#include <string.h>

#include "c_engine.h"
#include "pith/pith_extend.h"
#include "pith/pith_prefix.h"

enum { PROMPT = 90 };

struct bytes {
  size_t size, at, most, piece;
  int status;
  unsigned char data[1 << 20];
};

static int take(const void* from, size_t size, void* user) {
  struct bytes* to = user;
  if (to->size + size > sizeof(to->data)) return 1;
  memcpy(to->data + to->size, from, size);
  to->size += size;
  return 0;
}

static int give(void* to, size_t room, size_t* size, void* user) {
  struct bytes* from = user;
  *size = from->size - from->at;
  if (*size > room) *size = room;
  if (*size > from->piece) *size = from->piece;
  memcpy(to, from->data + from->at, *size);
  from->at += *size;
  return from->status;
}

static pith_session_options options_of(const char* policy) {
  pith_session_options o;
  pith_session_defaults(&o, sizeof(o));
  o.policy = policy;
  o.context = 256;
  return o;
}

/* A session that has read the same prompt as all others. */
static pith_session* reader_of(const pith_engine* engine, const char* policy, pith_error* error) {
  const pith_session_options o = options_of(policy);
  pith_session* session = NULL;
  int32_t ids[PROMPT];
  for (int i = 0; i < PROMPT; ++i) ids[i] = 10 + 7 * i % 300;
  if (pith_session_create(engine, &o, &session, error) == PITH_OK &&
      pith_session_append(session, ids, PROMPT, PITH_APPEND_WHOLE, NULL, NULL, error) != PITH_OK) {
    pith_session_free(session);
    session = NULL;
  }
  return session;
}

static int same_logits(pith_session* a, pith_session* b, size_t vocab) {
  pith_error error = PITH_ERROR_INIT;
  const int32_t id = 5;
  const float *x = NULL, *y = NULL;
  CHECK(pith_session_prefill(a, &id, 1, &x, &error) == PITH_OK);
  CHECK(pith_session_prefill(b, &id, 1, &y, &error) == PITH_OK);
  CHECK(memcmp(x, y, vocab * sizeof(float)) == 0);
  return 0;
}

static int restored(const pith_engine* engine, size_t vocab) {
  static struct bytes bytes = {.piece = 1000};
  static const char* policy = "keydiff(budget=40)+int4,window=16";
  pith_error error = PITH_ERROR_INIT;
  const pith_session_options of_session = options_of(policy);
  pith_session *session = reader_of(engine, policy, &error), *again = NULL, *empty = NULL;
  CHECK(session);
  const pith_save_options save = {.size = sizeof(save), .sink = take, .user = &bytes};
  CHECK(pith_session_save_as(session, &save, &error) == PITH_OK);

  pith_restore_options from = {.size = sizeof(from), .source = give, .user = &bytes};
  CHECK(pith_session_restore_from(engine, &from, &of_session, &again, &error) == PITH_OK);
  CHECK(bytes.at == bytes.size && pith_session_tokens(again) == PROMPT);

  /* Into a session with room; what is damaged, cut or ended leaves it as it was. */
  CHECK(pith_session_create(engine, &of_session, &empty, &error) == PITH_OK);
  CHECK(pith_session_reserve(empty, 120, &error) == PITH_OK);
  bytes.at = 0;
  bytes.data[bytes.size - 300] ^= 1;
  CHECK(pith_session_restore_into(empty, &from, &error) == PITH_CORRUPT);
  bytes.data[bytes.size - 300] ^= 1;
  bytes.at = 0;
  bytes.size -= 1;
  CHECK(pith_session_restore_into(empty, &from, &error) == PITH_CORRUPT);
  bytes.size += 1;
  bytes.at = 0;
  bytes.status = 1;
  CHECK(pith_session_restore_into(empty, &from, &error) == PITH_IO);
  bytes.status = 0;
  bytes.at = 0;
  CHECK(pith_session_tokens(empty) == 0);
  CHECK(pith_session_reserve(empty, 120, &error) == PITH_OK);
  CHECK(pith_session_restore_into(empty, &from, &error) == PITH_OK);
  pith_engine_info info = {.size = sizeof(info)};
  CHECK(pith_engine_get_info(engine, &info, &error) == PITH_OK && info.bytes_reserved > 0);
  CHECK(pith_session_restore_into(empty, &from, &error) == PITH_INVALID_ARGUMENT);
  CHECK(same_logits(again, session, vocab) == 0);
  pith_session_free(session);
  session = reader_of(engine, policy, &error);
  CHECK(session && same_logits(empty, session, vocab) == 0);

  from.path = "none.pith";
  CHECK(pith_session_restore_from(engine, &from, &of_session, &again, &error) ==
        PITH_INVALID_ARGUMENT);
  from.source = NULL;
  CHECK(pith_session_restore_from(engine, &from, &of_session, &again, &error) == PITH_NOT_FOUND);
  CHECK(pith_session_restore_into(NULL, &from, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_restore_into(empty, NULL, &error) == PITH_INVALID_ARGUMENT);
  pith_session_free(session);
  pith_session_free(empty);
  return 0;
}

struct counts {
  int calls, ends;
  double mass;
};

/* What knorm does: keys of small norm stay. */
static int small_keys(const pith_rows_to_score* rows, double* scores, void* user) {
  struct counts* c = user;
  ++c->calls;
  for (size_t r = 0; r < rows->rows; ++r) {
    const float* key = rows->keys + r * rows->head_dim;
    scores[r] = 0;
    for (size_t i = 0; i < rows->head_dim; ++i) scores[r] -= (double)key[i] * key[i];
    if (rows->mass) c->mass += rows->mass[r];
    if (r > 0 && rows->positions[r] <= rows->positions[r - 1]) return 2;
  }
  return c->ends;
}

static size_t row_bytes(size_t head_dim, void* user) {
  (void)user;
  return head_dim * sizeof(float);
}

static int encode(const pith_rows_to_code* rows, const float* x, uint8_t* codes, void* user) {
  (void)user;
  memcpy(codes, x, rows->rows * rows->row_bytes);
  return 0;
}

static int decode(const pith_rows_to_code* rows, const uint8_t* codes, float* x, void* user) {
  (void)user;
  memcpy(x, codes, rows->rows * rows->row_bytes);
  return 0;
}

/* How often a method is listed, as a selector or a codec. */
static int listed(const char* name, int selector) {
  int times = 0;
  for (size_t i = 0; i < pith_method_count(); ++i) {
    pith_method method = {.size = sizeof(method)};
    if (pith_method_get(i, &method, NULL) != PITH_OK) return -1;
    times += strcmp(method.name, name) == 0 && (method.is_selector != 0) == (selector != 0);
  }
  return times;
}

static int extended(const pith_engine* engine, size_t vocab) {
  static struct counts counts, votes;
  pith_error error = PITH_ERROR_INIT;
  pith_own_selector mine = {.size = sizeof(mine),
                            .name = "c_norms",
                            .summary = "small keys",
                            .score = small_keys,
                            .user = &counts};
  const size_t built_in = pith_method_count();
  pith_method first = {.size = sizeof(first)};
  CHECK(pith_method_get(0, &first, &error) == PITH_OK && listed("c_norms", 1) == 0);
  CHECK(pith_add_selector(&mine, &error) == PITH_OK);
  CHECK(pith_method_count() == built_in + 1 && listed("c_norms", 1) == 1);
  CHECK(strlen(first.summary) > 0); /* texts stay where they are */
  pith_session* a = reader_of(engine, "c_norms(budget=32),window=16", &error);
  pith_session* b = reader_of(engine, "knorm(budget=32),window=16", &error);
  CHECK(a && b && counts.calls > 0 && counts.mass == 0);
  CHECK(same_logits(a, b, vocab) == 0);
  pith_session_free(a);
  pith_session_free(b);
  CHECK(listed("knorm", 1) == 1);

  mine.name = "c_votes";
  mine.mass = PITH_MASS_ALL;
  mine.user = &votes;
  CHECK(pith_add_selector(&mine, &error) == PITH_OK);
  a = reader_of(engine, "c_votes(budget=32),window=16", &error);
  CHECK(a && votes.calls > 0 && votes.mass > 1);
  pith_session_free(a);
  votes.ends = 3;
  a = reader_of(engine, "c_votes(budget=32),window=16", &error);
  CHECK(a == NULL && error.status == PITH_INVALID_ARGUMENT && strstr(error.message, "c_votes"));

  mine.mass = 9;
  CHECK(pith_add_selector(&mine, &error) == PITH_INVALID_ARGUMENT);
  mine.mass = PITH_MASS_LAST; /* of how many queries? */
  mine.name = "c_last";
  CHECK(pith_add_selector(&mine, &error) == PITH_INVALID_ARGUMENT);
  mine.name = "knorm";
  mine.mass = PITH_MASS_NONE;
  CHECK(pith_add_selector(&mine, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_add_selector(NULL, &error) == PITH_INVALID_ARGUMENT);

  pith_own_codec plain = {.size = sizeof(plain),
                          .name = "c_plain",
                          .row_bytes = row_bytes,
                          .encode = encode,
                          .decode = decode};
  CHECK(pith_add_codec(&plain, &error) == PITH_OK);
  CHECK(listed("c_plain", 0) == 1 && pith_method_count() == built_in + 3);
  a = reader_of(engine, "exact+c_plain,window=16,dtype=f32", &error);
  CHECK(a != NULL);
  pith_ledger ledger = {.size = sizeof(ledger)};
  CHECK(pith_session_ledger(a, &ledger, &error) == PITH_OK && ledger.payload > 0);
  pith_session_free(a);
  plain.encode = NULL;
  plain.name = "c_none";
  CHECK(pith_add_codec(&plain, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_add_codec(NULL, &error) == PITH_INVALID_ARGUMENT);
  return 0;
}

static int all(pith_model* model, pith_engine* engine) {
  pith_error error = PITH_ERROR_INIT;
  pith_model_info info = {.size = sizeof(info)};
  CHECK(pith_model_get_info(model, &info, &error) == PITH_OK);
  return restored(engine, (size_t)info.vocab) || extended(engine, (size_t)info.vocab);
}

int main(int argc, char** argv) { return with_engine(argc, argv, all); }
