/* pith.h from C11: a question to the demo model, sessions that fork, and what is refused. Exits
 * with 0 if all of it holds; arguments: the demo model's folder. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pith/pith.h"

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                       \
    }                                                                 \
  } while (0)

struct text {
  char bytes[4096];
  size_t size, calls, stop_after;
};

static int collect(const char* text, size_t size, void* user) {
  struct text* to = user;
  if (to->size + size > sizeof(to->bytes)) return 1;
  memcpy(to->bytes + to->size, text, size);
  to->size += size;
  return ++to->calls == to->stop_after;
}

static int refusals(const pith_model* model) {
  pith_error error;
  pith_model* none = NULL;
  CHECK(pith_model_load("no/such/folder", &none, &error) == PITH_NOT_FOUND);
  CHECK(none == NULL && error.status == PITH_NOT_FOUND && strlen(error.message) > 10);
  CHECK(pith_model_load(NULL, &none, NULL) == PITH_INVALID_ARGUMENT);

  pith_session_options options = pith_session_defaults();
  pith_session* session = NULL;
  options.policy = "unifrom(budget=10)";
  CHECK(pith_session_create(model, &options, &session, &error) == PITH_INVALID_ARGUMENT);
  CHECK(session == NULL && strstr(error.message, "uniform") != NULL);
  CHECK(pith_session_create(NULL, NULL, &session, &error) == PITH_INVALID_ARGUMENT);

  CHECK(pith_session_create(model, NULL, &session, &error) == PITH_OK);
  CHECK(error.status == PITH_OK && error.message[0] == 0);
  int32_t wrong = -5;
  CHECK(pith_session_prefill(session, &wrong, 1, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_prefill(session, NULL, 3, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_prefill(session, &wrong, 0, NULL, &error) == PITH_INVALID_ARGUMENT);
  pith_session_free(session);
  pith_session_free(NULL);
  pith_model_free(NULL);
  return 0;
}

static int round_trip(const pith_model* model, int32_t* ids, size_t* count) {
  const char* text = "The old house stood by the river, and nobody had lived there for years.";
  pith_error error;
  CHECK(pith_tokenize(model, text, strlen(text), 1, ids, 2, count, &error) == PITH_OUT_OF_MEMORY);
  CHECK(*count > 2 && *count < 100);
  CHECK(pith_tokenize(model, text, strlen(text), 1, ids, 100, count, &error) == PITH_OK);
  char back[256];
  size_t size = 0;
  CHECK(pith_detokenize(model, ids, *count, back, sizeof(back), &size, &error) == PITH_OK);
  CHECK(size >= strlen(text) && memcmp(back + size - strlen(text), text, strlen(text)) == 0);
  return 0;
}

static int saved(const pith_model* model, const int32_t* ids, size_t count) {
  pith_error error;
  const char* path = "c_api_test.pith";
  pith_session_options options = pith_session_defaults();
  pith_session *session = NULL, *other = NULL;
  const float *expected = NULL, *found = NULL;
  pith_model_info info;
  pith_model_get_info(model, &info);
  options.policy = "keydiff(budget=8)+int4,window=4";
  options.context = 200;
  remove(path);
  CHECK(pith_session_create(model, &options, &session, NULL) == PITH_OK);
  CHECK(pith_session_prefill(session, ids, count, NULL, NULL) == PITH_OK);
  CHECK(pith_session_save(session, path, 0, &error) == PITH_OK);
  CHECK(pith_session_save(session, path, 0, &error) == PITH_IO);
  CHECK(pith_session_save(session, path, 1, &error) == PITH_OK);
  CHECK(pith_session_save(session, NULL, 1, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_restore(model, path, NULL, &other, &error) == PITH_INVALID_ARGUMENT);
  CHECK(other == NULL && strstr(error.message, "policy") != NULL);
  CHECK(pith_session_restore(model, "none.pith", &options, &other, &error) == PITH_NOT_FOUND);
  CHECK(pith_session_restore(model, path, &options, &other, &error) == PITH_OK);
  CHECK(pith_session_tokens(other) == count);
  CHECK(pith_session_prefill(session, ids, 2, &expected, NULL) == PITH_OK);
  CHECK(pith_session_prefill(other, ids, 2, &found, NULL) == PITH_OK);
  CHECK(memcmp(found, expected, sizeof(float) * (size_t)info.vocab) == 0);
  pith_session_free(session);
  pith_session_free(other);
  CHECK(remove(path) == 0);
  return 0;
}

static int conversation(const pith_model* model, const int32_t* ids, size_t count) {
  pith_model_info info;
  pith_model_get_info(model, &info);
  CHECK(info.layers > 0 && info.vocab > 256 && info.weight_bytes > 0);

  pith_session_options options = pith_session_defaults();
  options.policy = "streaming_llm(window=32)+int8";
  options.threads = 1;
  pith_session *session = NULL, *fork = NULL;
  CHECK(pith_session_create(model, &options, &session, NULL) == PITH_OK);
  const float* logits = NULL;
  CHECK(pith_session_prefill(session, ids, count, &logits, NULL) == PITH_OK);
  CHECK(pith_session_tokens(session) == count);
  const size_t bytes = (size_t)info.vocab * sizeof(float);
  float* before = malloc(bytes);
  CHECK(before != NULL);
  memcpy(before, logits, bytes);

  CHECK(pith_session_fork(session, &fork, NULL) == PITH_OK);
  const float* after = NULL;
  CHECK(pith_session_prefill(session, ids, 1, &logits, NULL) == PITH_OK);
  CHECK(pith_session_prefill(fork, ids, 1, &after, NULL) == PITH_OK);
  CHECK(memcmp(logits, after, bytes) == 0 && memcmp(before, after, bytes) != 0);
  free(before);

  pith_generate_options greedy = pith_generate_defaults();
  greedy.temperature = 0;
  greedy.max_tokens = 12;
  pith_generate_result result;
  struct text first = {.stop_after = 0}, second = {.stop_after = 0}, cut = {.stop_after = 1};
  CHECK(pith_generate(session, ids, 4, &greedy, collect, &first, &result, NULL) == PITH_OK);
  CHECK(result.prompt_tokens == 4 && result.sampled_tokens > 0 && first.size > 0);
  CHECK(pith_generate(fork, ids, 4, &greedy, collect, &second, NULL, NULL) == PITH_OK);
  CHECK(first.size == second.size && memcmp(first.bytes, second.bytes, first.size) == 0);
  CHECK(pith_generate(fork, ids, 4, &greedy, collect, &cut, &result, NULL) == PITH_OK);
  CHECK(result.reason == PITH_STOP_CANCELLED && cut.calls == 1);

  pith_ledger ledger;
  CHECK(pith_session_ledger(session, &ledger, NULL) == PITH_OK);
  CHECK(ledger.payload > 0 && ledger.effective_bits > 0 && ledger.rows_kept <= ledger.rows_seen);
  CHECK(ledger.tokens == pith_session_tokens(session));
  pith_session_free(session);
  pith_session_free(fork);
  return 0;
}

int main(int argc, char** argv) {
  CHECK(argc == 2 && strlen(pith_version()) > 0);
  pith_model* model = NULL;
  pith_error error;
  if (pith_model_load(argv[1], &model, &error) != PITH_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  int32_t ids[100];
  size_t count = 0;
  const int failed = refusals(model) || round_trip(model, ids, &count) ||
                     conversation(model, ids, count) || saved(model, ids, count);
  pith_model_free(model);
  return failed;
}
