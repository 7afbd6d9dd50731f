#include <stdio.h>
#include <string.h>

#include "pith/pith.h"

static int print(const char* text, size_t size, void* user) {
  fwrite(text, 1, size, stdout);
  *(size_t*)user += size;
  return 0;
}

int main(int argc, char** argv) {
  pith_error error = PITH_ERROR_INIT;
  pith_model* model = NULL;
  pith_engine* engine = NULL;
  pith_session* session = NULL;
  const char* text = "The old house";
  int32_t ids[16];
  size_t count = 0, printed = 0;
  pith_session_options options;
  pith_generate_options generate;
  pith_session_defaults(&options, sizeof(options));
  pith_generate_defaults(&generate, sizeof(generate));
  options.policy = "uniform(budget=64)+int4";
  generate.max_tokens = 8;
  generate.on_text = print;
  generate.user = &printed;
  if (argc != 2 || pith_model_load(argv[1], NULL, &model, &error) ||
      pith_engine_create(model, NULL, &engine, &error) ||
      pith_session_create(engine, &options, &session, &error) ||
      pith_tokenize(model, text, strlen(text), 1, ids, 16, &count, &error) ||
      pith_generate(session, ids, count, &generate, NULL, &error)) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  pith_session_free(session);
  pith_engine_free(engine);
  pith_model_free(model);
  return printed == 0;
}
