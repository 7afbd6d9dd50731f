/* pith.h from C11: a question to the demo model, sessions that fork, batches, what sessions tell of
 * themselves, structs of other sizes, and what is refused. Exits with 0 if all of it holds;
 * arguments: the demo model's folder. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_check.h"
#include "pith/pith.h"
#include "pith/pith_prefix.h"

static const char* kPolicy = "keydiff(budget=8)+int4,window=4";

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

static int count_and_stop(size_t done, size_t total, void* user) {
  size_t* left = user;
  if (done > total) return 1;
  return *left == 0 || --*left == 0;
}

/* A session under `policy` that has read ids [count]. */
static pith_session* reader(const pith_engine* engine, const char* policy, const int32_t* ids,
                            size_t count) {
  pith_session_options options;
  pith_session* session = NULL;
  pith_session_defaults(&options, sizeof(options));
  options.policy = policy;
  options.context = 200;
  if (pith_session_create(engine, &options, &session, NULL) != PITH_OK) return NULL;
  if (count > 0 && pith_session_prefill(session, ids, count, NULL, NULL) != PITH_OK) return NULL;
  return session;
}

static int refusals(const pith_model* model, const pith_engine* engine) {
  pith_error error = PITH_ERROR_INIT;
  pith_model* none = NULL;
  CHECK(pith_model_load("no/such/folder", NULL, &none, &error) == PITH_NOT_FOUND);
  CHECK(none == NULL && error.status == PITH_NOT_FOUND && strlen(error.message) > 10);
  CHECK(pith_model_load(NULL, NULL, &none, NULL) == PITH_INVALID_ARGUMENT);
  CHECK(strcmp(pith_status_name(PITH_NOT_FOUND), "not found") == 0);

  pith_engine_options wrong_engine;
  pith_engine* no_engine = NULL;
  pith_engine_defaults(&wrong_engine, sizeof(wrong_engine));
  wrong_engine.device = 7;
  CHECK(pith_engine_create(model, &wrong_engine, &no_engine, &error) == PITH_INVALID_ARGUMENT);
  CHECK(no_engine == NULL && strstr(error.message, "device 7") != NULL);

  pith_session_options options;
  pith_session* session = NULL;
  pith_session_defaults(&options, sizeof(options));
  options.policy = "unifrom(budget=10)";
  CHECK(pith_session_create(engine, &options, &session, &error) == PITH_INVALID_ARGUMENT);
  CHECK(session == NULL && strstr(error.message, "uniform") != NULL);
  CHECK(pith_session_create(NULL, NULL, &session, &error) == PITH_INVALID_ARGUMENT);

  CHECK(pith_session_create(engine, NULL, &session, &error) == PITH_OK);
  CHECK(error.status == PITH_OK && error.message[0] == 0);
  int32_t wrong = -5;
  CHECK(pith_session_prefill(session, &wrong, 1, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_prefill(session, NULL, 3, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_prefill(session, &wrong, 0, NULL, &error) == PITH_INVALID_ARGUMENT);
  pith_session_free(session);
  pith_session_free(NULL);
  pith_engine_free(NULL);
  pith_sampler_free(NULL);
  pith_model_free(NULL);
  return 0;
}

/* Programs that were compiled with a pith.h of fewer fields, or of more. */
static int other_sizes(const pith_model* model, const pith_engine* engine) {
  /* The fields up to `context`, with what must not be touched behind them. */
  struct {
    size_t size;
    const char* policy;
    size_t context;
    size_t guard[16];
  } older, newer;
  const size_t fewer = offsetof(pith_session_options, percent_of);
  CHECK(offsetof(pith_session_options, context) == sizeof(size_t) + sizeof(const char*));
  memset(&older, 0xEE, sizeof(older));
  pith_session_defaults((pith_session_options*)&older, fewer);
  CHECK(older.size == fewer && strcmp(older.policy, "exact") == 0 && older.context == 0);
  CHECK(older.guard[0] == (size_t)-1 / 0xFF * 0xEE);
  older.policy = "exact+int4";
  older.context = 50;
  pith_session* session = NULL;
  pith_error error = PITH_ERROR_INIT;
  CHECK(pith_session_create(engine, (const pith_session_options*)&older, &session, &error) ==
        PITH_OK);
  pith_ledger all = {.size = sizeof(all)}, some;
  memset(&some, 0xEE, sizeof(some));
  some.size = offsetof(pith_ledger, slack);
  const int32_t id = 5;
  CHECK(pith_session_prefill(session, &id, 1, NULL, NULL) == PITH_OK);
  CHECK(pith_session_ledger(session, &all, NULL) == PITH_OK && all.tokens == 1 && all.payload > 0);
  CHECK(pith_session_ledger(session, &some, NULL) == PITH_OK);
  CHECK(some.size == offsetof(pith_ledger, slack) && some.payload == all.payload);
  CHECK(some.slack == (size_t)-1 / 0xFF * 0xEE);
  pith_session_free(session);

  memset(&newer, 0, sizeof(newer));
  CHECK(sizeof(newer) > sizeof(pith_session_options));
  newer.size = sizeof(newer);
  newer.context = 50;
  session = NULL;
  CHECK(pith_session_create(engine, (const pith_session_options*)&newer, &session, &error) ==
        PITH_OK);
  pith_session_free(session);
  newer.guard[15] = 1; /* a field that this library does not have */
  CHECK(pith_session_create(engine, (const pith_session_options*)&newer, &session, &error) ==
        PITH_UNSUPPORTED);
  newer.size = 0; /* nobody filled it in */
  CHECK(pith_session_create(engine, (const pith_session_options*)&newer, &session, &error) ==
        PITH_INVALID_ARGUMENT);
  CHECK(strstr(error.message, "size is 0") != NULL);
  all.size = 0;
  CHECK(pith_estimate(model, NULL, PITH_CPU, 10, &all, &error) == PITH_INVALID_ARGUMENT);

  char small[offsetof(pith_error, message) + 8];
  pith_error* cut = malloc(sizeof(pith_error));
  CHECK(cut != NULL);
  memset(cut, 0xEE, sizeof(*cut));
  cut->size = sizeof(small);
  CHECK(pith_model_load("no/such/folder", NULL, NULL, cut) == PITH_INVALID_ARGUMENT);
  CHECK(cut->message[7] == 0 && strlen(cut->message) == 7 && cut->message[8] == (char)0xEE);
  free(cut);
  return 0;
}

static int round_trip(const pith_model* model, int32_t* ids, size_t* count) {
  const char* text = "The old house stood by the river, and nobody had lived there for years.";
  pith_error error = PITH_ERROR_INIT;
  CHECK(pith_tokenize(model, text, strlen(text), 1, ids, 2, count, &error) ==
        PITH_BUFFER_TOO_SMALL);
  CHECK(*count > 2 && *count < 100);
  CHECK(pith_tokenize(model, text, strlen(text), 1, ids, 100, count, &error) == PITH_OK);
  char back[256];
  size_t size = 0;
  CHECK(pith_detokenize(model, ids, *count, back, sizeof(back), &size, &error) == PITH_OK);
  CHECK(size >= strlen(text) && memcmp(back + size - strlen(text), text, strlen(text)) == 0);
  return 0;
}

static int saved(const pith_engine* engine, size_t vocab, const int32_t* ids, size_t count) {
  pith_error error = PITH_ERROR_INIT;
  const char* path = "c_api_test.pith";
  pith_session_options options;
  pith_session *session = reader(engine, kPolicy, ids, count), *other = NULL;
  const float *expected = NULL, *found = NULL;
  CHECK(session != NULL);
  pith_session_defaults(&options, sizeof(options));
  options.policy = kPolicy;
  options.context = 200;
  remove(path);
  CHECK(pith_session_save(session, path, 0, &error) == PITH_OK);
  CHECK(pith_session_save(session, path, 0, &error) == PITH_IO);
  CHECK(pith_session_save(session, path, 1, &error) == PITH_OK);
  CHECK(pith_session_save(session, NULL, 1, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_restore(engine, path, NULL, &other, &error) == PITH_INVALID_ARGUMENT);
  CHECK(other == NULL && strstr(error.message, "policy") != NULL);
  CHECK(pith_session_restore(engine, "none.pith", &options, &other, &error) == PITH_NOT_FOUND);
  CHECK(pith_session_restore(engine, path, &options, &other, &error) == PITH_OK);
  CHECK(pith_session_tokens(other) == count);
  size_t seen = 0;
  CHECK(memcmp(pith_session_token_ids(other, &seen), ids, count * sizeof(int32_t)) == 0);
  CHECK(seen == count);
  CHECK(pith_session_prefill(session, ids, 2, &expected, NULL) == PITH_OK);
  CHECK(pith_session_prefill(other, ids, 2, &found, NULL) == PITH_OK);
  CHECK(memcmp(found, expected, sizeof(float) * vocab) == 0);
  pith_session_free(session);
  pith_session_free(other);
  CHECK(remove(path) == 0);
  return 0;
}

static int conversation(const pith_engine* engine, size_t vocab, const int32_t* ids, size_t count) {
  pith_session *session = reader(engine, "streaming_llm(window=32)+int8", NULL, 0), *fork = NULL;
  CHECK(session != NULL);
  const float* logits = NULL;
  CHECK(pith_session_prefill(session, ids, count, &logits, NULL) == PITH_OK);
  CHECK(pith_session_tokens(session) == count);
  const size_t bytes = vocab * sizeof(float);
  float* before = malloc(bytes);
  CHECK(before != NULL);
  memcpy(before, logits, bytes);

  CHECK(pith_session_fork(session, &fork, NULL) == PITH_OK);
  const float* after = NULL;
  CHECK(pith_session_prefill(session, ids, 1, &logits, NULL) == PITH_OK);
  CHECK(pith_session_prefill(fork, ids, 1, &after, NULL) == PITH_OK);
  CHECK(memcmp(logits, after, bytes) == 0 && memcmp(before, after, bytes) != 0);
  free(before);

  pith_sampling_options greedy;
  pith_generate_options options;
  pith_sampling_defaults(&greedy, sizeof(greedy));
  pith_generate_defaults(&options, sizeof(options));
  greedy.temperature = 0;
  options.sampling = &greedy;
  options.max_tokens = 12;
  options.on_text = collect;
  pith_generate_result result = {.size = sizeof(result)};
  struct text first = {.stop_after = 0}, second = {.stop_after = 0}, cut = {.stop_after = 1};
  options.user = &first;
  CHECK(pith_generate(session, ids, 4, &options, &result, NULL) == PITH_OK);
  CHECK(result.prompt_tokens == 4 && result.sampled_tokens > 0 && first.size > 0);
  CHECK(result.last_token >= 0 && (size_t)result.last_token < vocab);
  options.user = &second;
  CHECK(pith_generate(fork, ids, 4, &options, NULL, NULL) == PITH_OK);
  CHECK(first.size == second.size && memcmp(first.bytes, second.bytes, first.size) == 0);
  options.user = &cut;
  CHECK(pith_generate(fork, ids, 4, &options, &result, NULL) == PITH_OK);
  CHECK(result.reason == PITH_STOP_CANCELLED && cut.calls == 1);
  pith_session_free(session);
  pith_session_free(fork);
  return 0;
}

/* What a session tells: its bytes and rows, the probe, the policy; and tokens that it protects. */
static int reports(const pith_engine* engine, int32_t layers, const int32_t* ids, size_t count) {
  pith_error error = PITH_ERROR_INIT;
  pith_session_options options;
  pith_session* session = NULL;
  const int64_t protect[] = {2, 4};
  pith_session_defaults(&options, sizeof(options));
  options.policy = "keydiff(budget=4),sink=0,window=2";
  options.context = 400;
  options.protect = protect;
  options.protect_count = 1;
  options.probe_rows = 64;
  options.probe_every = 1;
  CHECK(pith_session_create(engine, &options, &session, &error) == PITH_OK);
  for (int i = 0; i < 8; ++i)
    CHECK(pith_session_prefill(session, ids, count, NULL, &error) == PITH_OK);
  const int64_t more[] = {(int64_t)(8 * count), (int64_t)(8 * count + 1)};
  CHECK(pith_session_protect(session, more, 1, &error) == PITH_OK);
  CHECK(pith_session_protect(session, protect, 1, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_reserve(session, 1000, &error) == PITH_CONTEXT_FULL);
  CHECK(pith_session_reserve(NULL, 1, &error) == PITH_INVALID_ARGUMENT);
  size_t room = 0;
  CHECK(pith_session_room(session, 1000, &room, &error) == PITH_CONTEXT_FULL);
  CHECK(pith_session_room(session, 20, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_room(session, 20, &room, &error) == PITH_OK && room > 0);
  CHECK(pith_session_reserve(session, 20, &error) == PITH_OK);
  for (int i = 0; i < 4; ++i) CHECK(pith_session_prefill(session, ids, 1, NULL, &error) == PITH_OK);
  pith_engine_info info = {.size = sizeof(info)};
  CHECK(pith_engine_get_info(engine, &info, &error) == PITH_OK && info.bytes_reserved > 0 &&
        info.bytes_reserved <= room);
  CHECK(pith_engine_set_memory_limit(engine, 1, &error) == PITH_OK);
  CHECK(pith_session_prefill(session, ids, 1, NULL, &error) == PITH_OK); /* its room is there */
  CHECK(pith_session_reserve(session, 100, &error) == PITH_OUT_OF_MEMORY);
  CHECK(pith_engine_set_memory_limit(engine, 0, &error) == PITH_OK);
  CHECK(pith_session_reserve(session, 0, &error) == PITH_OK);
  CHECK(pith_engine_get_info(engine, &info, &error) == PITH_OK && info.bytes_reserved == 0);

  pith_ledger ledger = {.size = sizeof(ledger)};
  CHECK(pith_session_ledger(session, &ledger, NULL) == PITH_OK);
  CHECK(ledger.payload > 0 && ledger.effective_bits > 0 && ledger.rows_kept <= ledger.rows_seen);
  CHECK(ledger.tokens == pith_session_tokens(session) && ledger.probe > 0);

  int64_t positions[400];
  float weights[400];
  int32_t roles[400];
  pith_rows rows = {.size = sizeof(rows), .capacity = 3, .positions = positions};
  CHECK(pith_session_rows(session, 0, 0, &rows, &error) == PITH_BUFFER_TOO_SMALL);
  CHECK(rows.count > 3 && rows.count < ledger.tokens);
  rows.capacity = 400;
  rows.log_weights = weights;
  rows.roles = roles;
  CHECK(pith_session_rows(session, 0, 0, &rows, &error) == PITH_OK);
  int found = 0;
  for (size_t i = 0; i < rows.count; ++i) {
    CHECK(i == 0 || positions[i] > positions[i - 1]);
    CHECK(weights[i] == 0 && roles[i] == PITH_ROLE_BOTH);
    found += positions[i] == 2 || positions[i] == 3 || positions[i] == more[0];
  }
  CHECK(found == 3);
  CHECK(pith_session_rows(session, layers, 0, &rows, &error) == PITH_INVALID_ARGUMENT);

  CHECK(pith_session_probed_layers(session) > 0);
  pith_attention_error estimate = {.size = sizeof(estimate)};
  CHECK(pith_session_attention_error(session, 0, &estimate, &error) == PITH_OK);
  CHECK(estimate.steps > 0 && estimate.estimate > 0 && estimate.high >= estimate.low);
  CHECK(pith_session_attention_error(session, 100, &estimate, &error) == PITH_INVALID_ARGUMENT);

  char text[4096];
  size_t size = 0;
  CHECK(pith_session_describe(session, text, sizeof(text) - 1, &size, &error) == PITH_OK);
  text[size] = 0;
  CHECK(strstr(text, "keydiff") != NULL);
  pith_session_free(session);
  return 0;
}

/* Progress, prompts in pieces, and a batch: each session says what it says alone. */
static int batches(const pith_engine* engine, size_t vocab, const int32_t* ids, size_t count) {
  enum { kSessions = 3 };
  pith_error error = PITH_ERROR_INIT;
  const char* policies[kSessions] = {"exact", "keydiff(budget=8)+int4,window=4", "exact+int8"};
  pith_work works[kSessions];
  pith_session *alone[kSessions], *batched[kSessions];
  pith_sampler* samplers[kSessions];
  pith_sampling_options sampling;
  pith_sampling_defaults(&sampling, sizeof(sampling));
  float* logits = malloc(kSessions * vocab * sizeof(float));
  CHECK(logits != NULL);
  memset(works, 0, sizeof(works));
  for (size_t i = 0; i < kSessions; ++i) {
    alone[i] = reader(engine, policies[i], ids, count);
    batched[i] = reader(engine, policies[i], NULL, 0);
    CHECK(alone[i] != NULL && batched[i] != NULL);
    /* In pieces; the whole prompt is one chunk of the engine. */
    CHECK(pith_engine_next_chunk(engine, count) == count);
    CHECK(pith_session_append(batched[i], ids, count, 4, NULL, NULL, &error) ==
          PITH_INVALID_ARGUMENT);
    CHECK(pith_session_append(batched[i], ids, count, PITH_APPEND_PROMPT_ENDS, NULL, NULL,
                              &error) == PITH_OK);
    CHECK(pith_sampler_create(&sampling, &samplers[i], &error) == PITH_OK);
    works[i] = (pith_work){.size = sizeof(pith_work),
                           .session = batched[i],
                           .tokens = ids + i,
                           .count = 1,
                           .logits = logits + i * vocab,
                           .sampler = samplers[i]};
  }
  CHECK(pith_engine_step(engine, works, kSessions, &error) == PITH_OK);
  for (size_t i = 0; i < kSessions; ++i) {
    const float* expected = NULL;
    CHECK(works[i].status == PITH_OK && works[i].next >= 0 && works[i].appended);
    CHECK(pith_session_prefill(alone[i], ids + i, 1, &expected, &error) == PITH_OK);
    CHECK(memcmp(expected, works[i].logits, vocab * sizeof(float)) == 0);
    pith_sampler* again = NULL;
    int32_t token = -1;
    CHECK(pith_sampler_create(&sampling, &again, &error) == PITH_OK);
    CHECK(pith_session_sample(alone[i], again, &token, &error) == PITH_OK);
    CHECK(token == works[i].next);
    pith_sampler_free(again);
  }
  /* One that fails ends alone; works that make no sense together are refused together. */
  const int32_t wrong = -1;
  pith_error of_work = PITH_ERROR_INIT;
  works[1].tokens = &wrong;
  works[1].error = &of_work;
  CHECK(pith_engine_step(engine, works, kSessions, &error) == PITH_OK);
  CHECK(works[0].status == PITH_OK && works[1].status == PITH_INVALID_ARGUMENT);
  CHECK(of_work.status == PITH_INVALID_ARGUMENT && works[1].next == -1);
  works[1].session = works[0].session;
  CHECK(pith_engine_step(engine, works, kSessions, &error) == PITH_INVALID_ARGUMENT);
  works[1].size = 24;
  CHECK(pith_engine_step(engine, works, kSessions, &error) == PITH_INVALID_ARGUMENT);

  size_t left = 1;
  const size_t before = pith_session_tokens(alone[0]);
  CHECK(pith_session_append(alone[0], ids, count, PITH_APPEND_WHOLE, count_and_stop, &left,
                            &error) == PITH_OK);
  CHECK(left == 0 && pith_session_tokens(alone[0]) == before + count);

  pith_engine_info info = {.size = sizeof(info)};
  CHECK(pith_engine_get_info(engine, &info, &error) == PITH_OK);
  CHECK(info.scratch > 0 && info.bytes_in_use > info.scratch && info.peak_bytes > 0);
  CHECK(info.device == PITH_CPU && info.threads == 2 && strlen(info.isa) > 0);
  for (size_t i = 0; i < kSessions; ++i) {
    pith_session_free(alone[i]);
    pith_session_free(batched[i]);
    pith_sampler_free(samplers[i]);
  }
  free(logits);
  return 0;
}

int main(int argc, char** argv) {
  CHECK(argc == 2 && strlen(pith_version()) > 0);
  pith_model* model = NULL;
  pith_engine* engine = NULL;
  pith_error error = PITH_ERROR_INIT;
  size_t calls = 100000;
  pith_model_options options;
  pith_engine_options of_engine;
  pith_model_defaults(&options, sizeof(options));
  options.progress = count_and_stop;
  options.user = &calls;
  pith_engine_defaults(&of_engine, sizeof(of_engine));
  of_engine.threads = 2;
  if (pith_model_load(argv[1], &options, &model, &error) != PITH_OK ||
      pith_engine_create(model, &of_engine, &engine, &error) != PITH_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  CHECK(calls < 100000);
  pith_model_info info = {.size = sizeof(info)};
  CHECK(pith_model_get_info(model, &info, &error) == PITH_OK);
  CHECK(info.layers > 0 && info.vocab > 256 && info.weight_bytes > 0);
  CHECK(strstr(info.architecture, "ForCausalLM") != NULL);
  const size_t vocab = (size_t)info.vocab;
  int32_t ids[100];
  size_t count = 0;
  const int failed = refusals(model, engine) || other_sizes(model, engine) ||
                     round_trip(model, ids, &count) || conversation(engine, vocab, ids, count) ||
                     saved(engine, vocab, ids, count) || reports(engine, info.layers, ids, count) ||
                     batches(engine, vocab, ids, count);
  pith_engine_free(engine);
  pith_model_free(model);
  return failed;
}
