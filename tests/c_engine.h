#ifndef PITH_TESTS_C_ENGINE_H_
#define PITH_TESTS_C_ENGINE_H_

#include <stdio.h>

#include "c_check.h"
#include "pith/pith.h"

/* Runs a test on the model that the program's one argument names, and an engine of two threads;
 * returns the exit code. */
static int with_engine(int argc, char** argv, int (*test)(pith_model*, pith_engine*)) {
  CHECK(argc == 2);
  pith_model* model = NULL;
  pith_engine* engine = NULL;
  pith_error error = PITH_ERROR_INIT;
  pith_engine_options options;
  pith_engine_defaults(&options, sizeof(options));
  options.threads = 2;
  if (pith_model_load(argv[1], NULL, &model, &error) != PITH_OK ||
      pith_engine_create(model, &options, &engine, &error) != PITH_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  const int failed = test(model, engine);
  pith_engine_free(engine);
  pith_model_free(model);
  return failed;
}

#endif /* PITH_TESTS_C_ENGINE_H_ */
