/* pith_layer.h and the policies of pith.h from C11: layers of one's own, what methods and policies
 * tell of themselves, and which policy is the best for a budget. Exits with 0 if all of it holds;
 * arguments: the demo model's folder. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_check.h"
#include "pith/pith.h"
#include "pith/pith_layer.h"

static const char* kPolicy = "keydiff(budget=8)+int4,window=4";

/* What policies are there, what they cost, and which is the best for a budget. */
static int policies(const pith_model* model) {
  pith_error error = PITH_ERROR_INIT;
  int selectors = 0, keydiff = 0;
  pith_method method = {.size = sizeof(method)};
  for (size_t m = 0; m < pith_method_count(); ++m) {
    CHECK(pith_method_get(m, &method, &error) == PITH_OK && strlen(method.summary) > 0);
    selectors += method.is_selector;
    CHECK((strlen(method.needs) > 0) == (method.is_selector != 0));
    CHECK((strlen(method.offers) > 0) == (method.block_rows > 0) &&
          (method.block_rows > 0) == !method.is_selector);
    if (strcmp(method.name, "kivi") == 0) CHECK(method.shares && method.block_rows == 32);
    if (strcmp(method.name, "keydiff") != 0) continue;
    pith_parameter parameter = {.size = sizeof(parameter)};
    CHECK(strcmp(method.size_parameter, "budget") == 0);
    for (size_t p = 0; p < method.parameters; ++p) {
      CHECK(pith_method_parameter(m, p, &parameter, &error) == PITH_OK);
      keydiff += strcmp(parameter.name, "budget") == 0 && strlen(parameter.help) > 0;
    }
    CHECK(pith_method_parameter(m, method.parameters, &parameter, &error) == PITH_INVALID_ARGUMENT);
  }
  CHECK(selectors > 10 && keydiff == 1);
  CHECK(pith_method_get(pith_method_count(), &method, &error) == PITH_INVALID_ARGUMENT);

  char text[200];
  size_t size = 0;
  CHECK(pith_policy_text("keydiff+int4", "25%", text, sizeof(text) - 1, &size, &error) == PITH_OK);
  text[size] = 0;
  CHECK(strstr(text, "budget=25%") != NULL);
  CHECK(pith_policy_text("keydif+int4", NULL, text, 10, &size, &error) == PITH_INVALID_ARGUMENT);

  pith_ledger exact = {.size = sizeof(exact)}, small = {.size = sizeof(small)};
  pith_session_options options;
  pith_session_defaults(&options, sizeof(options));
  options.context = 2000;
  CHECK(pith_estimate(model, &options, PITH_CPU, 2000, &exact, &error) == PITH_OK);
  options.policy = kPolicy;
  CHECK(pith_estimate(model, &options, PITH_CPU, 2000, &small, &error) == PITH_OK);
  CHECK(small.payload > 0 && 20 * small.payload < exact.payload && exact.tokens == 2000);

  pith_preset_request request;
  pith_preset_choice choice = {.size = sizeof(choice)};
  pith_preset_defaults(&request, sizeof(request));
  options.context = 8000;
  request.session = &options;
  request.budget = "25%";
  CHECK(pith_preset_choose(model, &request, &choice, &error) == PITH_OK);
  CHECK(choice.bytes <= choice.budget_bytes && choice.fitting > 0 && strlen(choice.why) > 20);
  pith_preset preset = {.size = sizeof(preset)};
  CHECK(pith_preset_get(choice.preset, &preset, &error) == PITH_OK);
  options.policy = preset.policy;
  CHECK(pith_estimate(model, &options, PITH_CPU, 8000, &small, &error) == PITH_OK);
  CHECK(small.payload + small.metadata + small.shared == choice.bytes);
  request.budget = "1%";
  CHECK(pith_preset_choose(model, &request, &choice, &error) == PITH_INVALID_ARGUMENT);
  request.budget = NULL;
  CHECK(pith_preset_choose(model, &request, &choice, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_preset_get(pith_preset_count(), &preset, &error) == PITH_INVALID_ARGUMENT);
  return 0;
}

enum { kHeads = 4, kKvHeads = 2, kDim = 32, kRows = 60 };

static pith_tensor tensor(void* data, size_t heads) {
  const pith_tensor t = {sizeof(t), data, (ptrdiff_t)heads * kDim, kDim, PITH_F32};
  return t;
}

/* Rows and queries that differ from token to token. */
static void numbers(float* x, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1;
  }
}

static int layers_of_ones_own(const pith_model* model) {
  pith_error error = PITH_ERROR_INIT;
  pith_compute_options of_compute;
  pith_layer_options options;
  pith_compute* compute = NULL;
  pith_layer *layer = NULL, *copy = NULL;
  pith_compute_defaults(&of_compute, sizeof(of_compute));
  of_compute.threads = 1;
  CHECK(pith_compute_create(&of_compute, &compute, &error) == PITH_OK);
  { /* an engine counts there, and cannot say otherwise */
    pith_engine_options of_engine;
    pith_engine* engine = NULL;
    pith_engine_defaults(&of_engine, sizeof(of_engine));
    of_engine.runtime = compute, of_engine.threads = 2;
    CHECK(pith_engine_create(model, &of_engine, &engine, &error) == PITH_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "threads 2 and a runtime of 1") != NULL);
    of_engine.threads = 0;
    CHECK(pith_engine_create(model, &of_engine, &engine, &error) == PITH_OK);
    CHECK(pith_compute_bytes_in_use(compute) > 0);
    pith_engine_free(engine);
    CHECK(pith_compute_bytes_in_use(compute) == 0);
  }
  pith_layer_defaults(&options, sizeof(options));
  CHECK(pith_layer_create(compute, &options, &layer, &error) == PITH_INVALID_ARGUMENT);
  options.policy = "knorm(budget=16,interval=4)+int8,window=8";
  options.query_heads = kHeads, options.kv_heads = kKvHeads, options.head_dim = kDim;
  options.context = 100;
  const float sinks[kHeads] = {
      0}; /* each head's sum has e^0 more: the first token's answer halves */
  options.sink_logits = sinks, options.sink_logit_count = kHeads - 1;
  CHECK(pith_layer_create(compute, &options, &layer, &error) == PITH_INVALID_ARGUMENT);
  CHECK(strstr(error.message, "sink logits") != NULL);
  options.sink_logits = NULL, options.sink_logit_count = kHeads;
  CHECK(pith_layer_create(compute, &options, &layer, &error) == PITH_INVALID_ARGUMENT);
  options.sink_logits = sinks, options.soft_cap = -1;
  CHECK(pith_layer_create(compute, &options, &layer, &error) == PITH_INVALID_ARGUMENT);
  options.soft_cap = 1e-3; /* its score is next to nothing then */
  CHECK(pith_layer_create(compute, &options, &layer, &error) == PITH_OK);
  {
    float row[kHeads * kDim], one[kHeads * kDim];
    numbers(row, kHeads * kDim, 4);
    pith_tensor of_row = tensor(row, kHeads), of_value = tensor(row, kKvHeads),
                to_one = tensor(one, kHeads);
    CHECK(pith_layer_step(layer, &to_one, &of_row, &of_value, &of_value, 1, &error) == PITH_OK);
    for (int c = 0; c < kDim; ++c)
      CHECK(one[c] - row[c] / 2 < 1e-2f && row[c] / 2 - one[c] < 1e-2f);
  }
  pith_layer_free(layer);
  options.sink_logits = NULL, options.sink_logit_count = 0, options.soft_cap = 0;
  const int64_t protect[] = {20, 22};
  options.protect = protect, options.protect_count = 1;
  options.probe_rows = 64, options.probe_every = 1;
  CHECK(pith_layer_create(compute, &options, &layer, &error) == PITH_OK);
  static float q[kRows * kHeads * kDim], k[kRows * kKvHeads * kDim], v[kRows * kKvHeads * kDim];
  static float out[kRows * kHeads * kDim], again[kHeads * kDim];
  numbers(q, sizeof(q) / sizeof(*q), 1);
  numbers(k, sizeof(k) / sizeof(*k), 2);
  numbers(v, sizeof(v) / sizeof(*v), 3);
  pith_tensor to = tensor(out, kHeads), from_q = tensor(q, kHeads);
  pith_tensor from_k = tensor(k, kKvHeads), from_v = tensor(v, kKvHeads);
  CHECK(pith_layer_step(layer, &to, &from_q, &from_k, &from_v, kRows, &error) == PITH_OK);
  CHECK(memcmp(out, v, kDim * sizeof(float)) == 0); /* the first token sees itself alone */
  CHECK(pith_layer_create(compute, &options, &copy, &error) == PITH_OK);
  static float together[kRows * kHeads * kDim];
  pith_tensor to_both = tensor(together, kHeads);
  pith_layer_step_args steps[2] = {
      {sizeof(*steps), copy, &to_both, &from_q, &from_k, &from_v, kRows},
      {sizeof(*steps), copy, &to_both, &from_q, &from_k, &from_v, 1}};
  CHECK(pith_compute_step(compute, steps, 2, &error) == PITH_INVALID_ARGUMENT);
  CHECK(strstr(error.message, "two steps") != NULL && pith_layer_tokens(copy) == 0);
  CHECK(pith_compute_step(compute, steps, 1, &error) == PITH_OK);
  CHECK(memcmp(out, together, sizeof(out)) == 0);
  pith_layer_free(copy);
  steps[0].layer = NULL;
  CHECK(pith_compute_step(compute, steps, 1, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_compute_step(compute, NULL, 1, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_layer_append(layer, &from_k, &from_v, 3, &error) == PITH_OK);
  CHECK(pith_layer_end_prompt(layer, &error) == PITH_OK);
  CHECK(pith_layer_tokens(layer) == kRows + 3);

  int64_t positions[100];
  pith_rows rows = {.size = sizeof(rows), .capacity = 100, .positions = positions};
  CHECK(pith_layer_rows(layer, 1, &rows, &error) == PITH_OK && rows.count < 40);
  int kept = 0;
  for (size_t i = 0; i < rows.count; ++i) kept += positions[i] == 20 || positions[i] == 21;
  CHECK(kept == 2);
  CHECK(pith_layer_rows(layer, 2, &rows, &error) == PITH_INVALID_ARGUMENT);
  static float held_k[100 * kDim], held_v[100 * kDim];
  double scores[100];
  size_t held = 0;
  CHECK(pith_layer_read_rows(layer, 1, held_k, held_v, 5, &held, &error) == PITH_BUFFER_TOO_SMALL);
  CHECK(held == rows.count);
  CHECK(pith_layer_read_rows(layer, 1, held_k, held_v, 100, &held, &error) == PITH_OK);
  CHECK(pith_layer_scores(layer, 1, scores, 100, &held, &error) == PITH_OK && held == rows.count);
  pith_ledger ledger = {.size = sizeof(ledger)};
  CHECK(pith_layer_ledger(layer, &ledger, &error) == PITH_OK);
  CHECK(ledger.tokens == kRows + 3 && ledger.payload > 0);
  CHECK(ledger.payload <= pith_compute_bytes_in_use(compute));
  char text[200] = {0};
  size_t written = 0;
  CHECK(pith_layer_describe(layer, text, sizeof(text) - 1, &written, &error) == PITH_OK);
  CHECK(written == strlen(text) && strstr(text, "knorm(budget=16,") != NULL);

  static char bytes[1 << 20];
  CHECK(pith_layer_save(layer, bytes, 10, &written, &error) == PITH_BUFFER_TOO_SMALL);
  CHECK(pith_layer_save(layer, bytes, sizeof(bytes), &written, &error) == PITH_OK);
  CHECK(pith_layer_restore(compute, &options, bytes, written, &copy, &error) == PITH_OK);
  pith_tensor to_again = tensor(again, kHeads);
  CHECK(pith_layer_attend(copy, &to_again, &from_q, 1, &error) == PITH_OK);
  pith_layer_free(copy);
  CHECK(pith_layer_clone(layer, &copy, &error) == PITH_OK);
  for (int i = 0; i < 3; ++i)
    CHECK(pith_layer_step(copy, &to, &from_q, &from_k, &from_v, 1, &error) == PITH_OK);
  CHECK(pith_layer_attend(layer, &to, &from_q, 1, &error) == PITH_OK);
  CHECK(memcmp(out, again, sizeof(again)) == 0);
  pith_attention_error estimate = {.size = sizeof(estimate)};
  CHECK(pith_layer_attention_error(copy, &estimate, &error) == PITH_OK && estimate.steps > 0);
  bytes[written / 2] ^= 1;
  pith_layer* damaged = NULL;
  CHECK(pith_layer_restore(compute, &options, bytes, written, &damaged, &error) == PITH_CORRUPT);
  CHECK(damaged == NULL);

  from_q.dtype = 3;
  CHECK(pith_layer_attend(layer, &to, &from_q, 1, &error) == PITH_INVALID_ARGUMENT);
  CHECK(strstr(error.message, "dtype") != NULL);
  CHECK(pith_layer_attend(layer, &to, NULL, 1, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_layer_use_stream(layer, &from_q, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_layer_protect(layer, protect, 1, &error) == PITH_INVALID_ARGUMENT);
  pith_compute_free(compute); /* layers keep it */
  pith_layer_free(copy);
  CHECK(pith_layer_append(layer, &from_k, &from_v, 1, &error) == PITH_OK);
  pith_layer_free(layer);
  return 0;
}
int main(int argc, char** argv) {
  CHECK(argc == 2);
  pith_model* model = NULL;
  pith_error error = PITH_ERROR_INIT;
  pith_model_options options;
  pith_model_defaults(&options, sizeof(options));
  if (pith_model_load(argv[1], &options, &model, &error) != PITH_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  const int failed = policies(model) || layers_of_ones_own(model);
  pith_model_free(model);
  return failed;
}
