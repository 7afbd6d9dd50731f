/* pith_chat.h from C11: tokens, chat templates, forms, steppers beside each other in one step,
 * logits of every position, and what is refused. Exits with 0 if all of it holds; arguments: the
 * demo model's folder. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_engine.h"
#include "pith/pith_chat.h"

static const char* kMessages =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Ship\"}]";

static int tokens(const pith_model* model) {
  pith_error error = PITH_ERROR_INIT;
  pith_token_info info = {.size = sizeof(info)};
  CHECK(pith_model_get_tokens(model, &info, &error) == PITH_OK);
  CHECK(info.vocab > 256 && info.bos >= -1 && info.bos < info.vocab);
  for (size_t i = 0; i < info.end_count; ++i) CHECK(info.ends[i] >= 0 && info.ends[i] < info.vocab);

  int32_t ids[64];
  size_t count = 0, size = 0;
  const char* text = "The ship lay at anchor";
  char all[256], piece[64];
  CHECK(pith_tokenize_plain(model, text, strlen(text), ids, 64, &count, &error) == PITH_OK);
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    int special = -1;
    CHECK(pith_token_piece(model, ids[i], piece, sizeof(piece), &size, &special, &error) ==
          PITH_OK);
    CHECK(special == 0 && at + size < sizeof(all));
    memcpy(all + at, piece, size);
    at += size;
  }
  CHECK(at >= strlen(text) && memcmp(all + at - strlen(text), text, strlen(text)) == 0);
  CHECK(pith_token_piece(model, ids[0], piece, 0, &size, NULL, &error) == PITH_BUFFER_TOO_SMALL);
  CHECK(size > 0);
  CHECK(pith_token_piece(model, info.vocab, piece, 64, &size, NULL, &error) ==
        PITH_INVALID_ARGUMENT);
  CHECK(pith_token_piece(NULL, 0, piece, 64, &size, NULL, &error) == PITH_INVALID_ARGUMENT);

  int32_t id = 7;
  CHECK(pith_token_find(model, "<no such token>", &id, &error) == PITH_OK && id == -1);
  CHECK(pith_token_find(model, NULL, &id, &error) == PITH_INVALID_ARGUMENT);
  if (info.end_count > 0) { /* a special token spelled out is one id, or plain text */
    int special = 0;
    CHECK(pith_token_piece(model, info.ends[0], piece, sizeof(piece), &size, &special, &error) ==
          PITH_OK);
    CHECK(special == 1);
    CHECK(pith_tokenize(model, piece, size, 0, ids, 64, &count, &error) == PITH_OK);
    CHECK(count == 1 && ids[0] == info.ends[0]);
    CHECK(pith_tokenize_plain(model, piece, size, ids, 64, &count, &error) == PITH_OK);
    for (size_t i = 0; i < count; ++i) CHECK(ids[i] != info.ends[0]);
  }
  CHECK(pith_model_get_tokens(NULL, &info, &error) == PITH_INVALID_ARGUMENT);
  info.size = 0;
  CHECK(pith_model_get_tokens(model, &info, &error) == PITH_INVALID_ARGUMENT);
  return 0;
}

static int chat(const pith_model* model) {
  pith_error error = PITH_ERROR_INIT;
  pith_chat_template* chat = NULL;
  size_t known = 0;
  for (size_t i = 0; pith_chat_built_in(i); ++i)
    known += strcmp(pith_chat_built_in(i), "chatml") == 0;
  CHECK(known == 1 && pith_chat_built_in(10000) == NULL);
  CHECK(pith_chat_template_create(model, "no template", &chat, &error) == PITH_NOT_FOUND);
  CHECK(chat == NULL && strstr(error.message, "chatml") != NULL);
  CHECK(pith_chat_template_create(model, "chatml", &chat, &error) == PITH_OK);

  pith_chat_request request = {.size = sizeof(request), .messages = kMessages};
  char text[512];
  int32_t ids[512];
  size_t size = 0, count = 0;
  CHECK(pith_chat_render(chat, &request, NULL, 0, &size, &error) == PITH_BUFFER_TOO_SMALL);
  CHECK(pith_chat_render(chat, &request, text, sizeof(text) - 1, &size, &error) == PITH_OK);
  text[size] = 0;
  CHECK(strstr(text, "Be brief.") != NULL && strstr(text, "<|im_start|>assistant") != NULL);
  request.no_answer_prompt = 1;
  CHECK(pith_chat_render(chat, &request, text, sizeof(text) - 1, &size, &error) == PITH_OK);
  text[size] = 0;
  CHECK(strstr(text, "assistant") == NULL);
  CHECK(pith_chat_encode(chat, &request, ids, 512, &count, &error) == PITH_OK && count > 4);
  pith_chat_end end = {.size = sizeof(end)};
  CHECK(pith_chat_turn_end(chat, &end, &error) == PITH_OK);
  CHECK(end.token_count > 0 || strcmp(end.text, "<|im_end|>") == 0);

  request.messages = "[{\"role\":";
  CHECK(pith_chat_encode(chat, &request, ids, 512, &count, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_chat_encode(chat, NULL, ids, 512, &count, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_chat_encode(NULL, &request, ids, 512, &count, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_chat_render(chat, &request, text, 9, NULL, &error) == PITH_INVALID_ARGUMENT);
  pith_chat_template_free(chat);
  pith_chat_template_free(NULL);

  const char* own = "{% for t in tools %}{{ t.function.name }};{% endfor %}{{ mood }}";
  CHECK(pith_chat_template_parse(model, own, strlen(own), NULL, &chat, &error) == PITH_OK);
  request.messages = kMessages;
  request.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"weather\"}}]";
  request.variables = "{\"mood\":\"calm\"}";
  CHECK(pith_chat_render(chat, &request, text, sizeof(text), &size, &error) == PITH_OK);
  CHECK(size == 12 && memcmp(text, "weather;calm", 12) == 0);
  pith_chat_template_free(chat);
  CHECK(pith_chat_template_parse(model, "{% if %}", 8, "mine", &chat, &error) == PITH_CORRUPT);
  CHECK(chat == NULL && strstr(error.message, "mine") != NULL);
  CHECK(pith_chat_template_parse(model, NULL, 8, NULL, &chat, &error) == PITH_INVALID_ARGUMENT);
  return 0;
}

struct text {
  char bytes[4096];
  size_t size;
};

static int collect(const char* text, size_t size, void* user) {
  struct text* to = user;
  if (to->size + size > sizeof(to->bytes)) return 1;
  memcpy(to->bytes + to->size, text, size);
  to->size += size;
  return 0;
}

static pith_session* session_of(const pith_engine* engine) {
  pith_session_options options;
  pith_session* session = NULL;
  pith_session_defaults(&options, sizeof(options));
  options.policy = "keydiff(budget=64)+int4,window=16";
  options.context = 512;
  return pith_session_create(engine, &options, &session, NULL) == PITH_OK ? session : NULL;
}

static int forms(const pith_model* model, const pith_engine* engine) {
  pith_error error = PITH_ERROR_INIT;
  pith_form* form = NULL;
  CHECK(pith_form_json(model, "{\"enum\":[\"sun\",\"rain\"]}", &form, &error) == PITH_OK);
  struct text text = {.size = 0};
  pith_generate_options options;
  pith_generate_defaults(&options, sizeof(options));
  options.max_tokens = 40;
  options.form = form;
  options.on_text = collect;
  options.user = &text;
  int32_t ids[64];
  size_t count = 0;
  CHECK(pith_tokenize(model, "The sky", 7, 1, ids, 64, &count, &error) == PITH_OK);
  pith_session* session = session_of(engine);
  CHECK(session && pith_generate(session, ids, count, &options, NULL, &error) == PITH_OK);
  CHECK((text.size == 5 && memcmp(text.bytes, "\"sun\"", 5) == 0) ||
        (text.size == 6 && memcmp(text.bytes, "\"rain\"", 6) == 0));
  pith_session_free(session);
  pith_form_free(form);

  const pith_tool tool = {.size = sizeof(tool), .name = "now", .parameters = NULL};
  const pith_form_calls calls = {
      .size = sizeof(calls), .opens = "<call>", .closes = "</call>", .begun = 1, .once = 1};
  CHECK(pith_form_tools(model, &tool, 1, &calls, &form, &error) == PITH_OK);
  text.size = 0;
  options.form = form;
  session = session_of(engine);
  options.max_tokens = 200;
  CHECK(session && pith_generate(session, ids, count, &options, NULL, &error) == PITH_OK);
  CHECK(text.size > 16 && memcmp(text.bytes, "{\"name\": \"now\"", 14) == 0);
  pith_session_free(session);
  pith_form_free(form);

  CHECK(pith_form_json(model, "{\"type\":", &form, &error) == PITH_CORRUPT && form == NULL);
  CHECK(pith_form_json(NULL, NULL, &form, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_form_json(model, NULL, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_form_tools(model, NULL, 1, NULL, &form, &error) == PITH_INVALID_ARGUMENT);
  const pith_tool nameless = {.size = sizeof(nameless)};
  CHECK(pith_form_tools(model, &nameless, 1, NULL, &form, &error) == PITH_INVALID_ARGUMENT);
  pith_form_free(NULL);
  return 0;
}

enum { kTalks = 3 };

/* Conversations side by side give the texts of each alone. */
static int talks(const pith_model* model, const pith_engine* engine) {
  pith_error error = PITH_ERROR_INIT;
  const char* prompts[kTalks] = {"The ship", "An old man said", "In the harbour there"};
  struct text alone[kTalks] = {{.size = 0}}, together[kTalks] = {{.size = 0}};
  pith_generate_options options;
  pith_generate_defaults(&options, sizeof(options));
  pith_sampling_options sampling;
  pith_sampling_defaults(&sampling, sizeof(sampling));
  sampling.seed = 5;
  options.sampling = &sampling;
  options.max_tokens = 12;
  pith_session* sessions[kTalks];
  pith_stepper* steppers[kTalks];
  pith_sampler* samplers[kTalks];
  pith_work works[kTalks];
  int32_t ids[kTalks][64], last[kTalks];
  size_t counts[kTalks];
  int running = 1;
  for (int i = 0; i < kTalks; ++i) {
    CHECK(pith_tokenize(model, prompts[i], strlen(prompts[i]), 1, ids[i], 64, &counts[i], &error) ==
          PITH_OK);
    sessions[i] = session_of(engine);
    options.on_text = collect;
    options.user = &alone[i];
    CHECK(sessions[i] &&
          pith_generate(sessions[i], ids[i], counts[i], &options, NULL, &error) == PITH_OK);
    pith_session_free(sessions[i]);
    sessions[i] = session_of(engine);
    CHECK(pith_stepper_create(model, &options, &steppers[i], &error) == PITH_OK);
    CHECK(pith_stepper_sampler(steppers[i], &samplers[i], &error) == PITH_OK);
    memset(&works[i], 0, sizeof(works[i]));
    works[i].size = sizeof(works[i]);
    works[i].session = sessions[i];
    works[i].tokens = ids[i];
    works[i].count = counts[i];
    works[i].sampler = samplers[i];
  }
  while (running) {
    for (int i = 0; i < kTalks; ++i)
      CHECK(pith_stepper_mask(steppers[i], works[i].sampler, &error) == PITH_OK);
    CHECK(pith_engine_step(engine, works, kTalks, &error) == PITH_OK);
    for (int i = 0; i < kTalks; ++i) {
      pith_stepper_out out = {.size = sizeof(out)};
      const size_t room = 512 - pith_session_tokens(works[i].session);
      CHECK(works[i].status == PITH_OK && works[i].goes_on == 0);
      CHECK(pith_stepper_push(steppers[i], works[i].next, room, &out, &error) == PITH_OK);
      CHECK(collect(out.text, out.text_size, &together[i]) == 0);
      last[i] = works[i].next;
      works[i].tokens = &last[i];
      works[i].count = 1;
      if (out.stop >= 0) running = 0; /* all of them stop by their number of tokens */
    }
  }
  for (int i = 0; i < kTalks; ++i) {
    CHECK(together[i].size > 0 && together[i].size == alone[i].size);
    CHECK(memcmp(together[i].bytes, alone[i].bytes, alone[i].size) == 0);
    pith_stepper_out out = {.size = sizeof(out)};
    CHECK(pith_stepper_finish(steppers[i], &out, &error) == PITH_OK && out.stop == -1);
    pith_stepper_free(steppers[i]);
    pith_sampler_free(samplers[i]);
    pith_session_free(sessions[i]);
  }
  CHECK(pith_stepper_push(NULL, 1, 1, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_stepper_create(NULL, NULL, &steppers[0], &error) == PITH_INVALID_ARGUMENT);
  pith_stepper_free(NULL);
  return 0;
}

struct scored {
  const int32_t* ids;
  size_t vocab, seen;
  double sum;
};

static void score(size_t first, size_t count, const float* logits, void* user) {
  struct scored* to = user;
  for (size_t i = 0; i < count; ++i) {
    float logprob = 0;
    if (pith_log_probabilities(logits + i * to->vocab, to->vocab, to->ids[first + i + 1], &logprob,
                               NULL, NULL, 0, NULL) != PITH_OK)
      return;
    to->sum += logprob;
    ++to->seen;
  }
}

static int every_position(const pith_model* model, const pith_engine* engine) {
  pith_error error = PITH_ERROR_INIT;
  pith_model_info info = {.size = sizeof(info)};
  int32_t ids[64];
  float logprobs[64];
  size_t count = 0;
  const char* text = "The ship lay at anchor, and the old man";
  CHECK(pith_model_get_info(model, &info, &error) == PITH_OK);
  CHECK(pith_tokenize(model, text, strlen(text), 1, ids, 64, &count, &error) == PITH_OK);
  struct scored scored = {.ids = ids, .vocab = (size_t)info.vocab};
  pith_session* session = session_of(engine);
  CHECK(session &&
        pith_session_prefill_logits(session, ids, count - 1, score, &scored, &error) == PITH_OK);
  CHECK(scored.seen == count - 1);
  pith_session_free(session);
  session = session_of(engine);
  CHECK(pith_session_score(session, ids, count, logprobs, NULL, &error) == PITH_OK);
  double sum = 0;
  for (size_t i = 1; i < count; ++i) sum += logprobs[i];
  CHECK(sum - scored.sum < 1e-3 && scored.sum - sum < 1e-3);
  CHECK(pith_session_prefill_logits(session, ids, 1, NULL, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_prefill_logits(NULL, ids, 1, score, NULL, &error) == PITH_INVALID_ARGUMENT);
  pith_session_free(session);
  return 0;
}

static int all(pith_model* model, pith_engine* engine) {
  return tokens(model) || chat(model) || forms(model, engine) || talks(model, engine) ||
         every_position(model, engine);
}

int main(int argc, char** argv) { return with_engine(argc, argv, all); }
