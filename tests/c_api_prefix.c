/* pith_prefix.h from C11: prefix trees, prompts in works, saved files, and what is refused. Exits
 * with 0 if all of it holds; arguments: the demo model's folder. */

#include <stdio.h>
#include <string.h>

#include "c_engine.h"
#include "pith/pith_prefix.h"

static int prefixes(const pith_model* model, const pith_engine* engine) {
  pith_error error = PITH_ERROR_INIT;
  pith_model_info info = {.size = sizeof(info)};
  CHECK(pith_model_get_info(model, &info, &error) == PITH_OK);
  pith_prefix_tree_options of_tree;
  pith_prefix_tree_defaults(&of_tree, sizeof(of_tree));
  of_tree.max_bytes = 64 << 20;
  pith_prefix_tree* tree = NULL;
  CHECK(pith_prefix_tree_create(engine, &of_tree, &tree, &error) == PITH_OK);
  int32_t ids[200];
  for (int i = 0; i < 200; ++i) ids[i] = (i * 37 + 5) % info.vocab;
  const size_t fork = 120;
  pith_prompt prompt = {.size = sizeof(prompt),
                        .tokens = ids,
                        .count = 200,
                        .fork_points = &fork,
                        .fork_point_count = 1,
                        .conversation = "7f3a"};
  pith_session_options options;
  pith_session_defaults(&options, sizeof(options));
  options.policy = "keydiff(budget=64)+int4,window=16";
  options.context = 512;
  pith_session *cold = NULL, *warm = NULL;
  pith_reuse reuse = {.size = sizeof(reuse)};
  CHECK(pith_prefix_tree_begin(tree, &options, &prompt, &cold, &reuse, &error) == PITH_OK);
  CHECK(reuse.tokens == 0 && reuse.kind == PITH_REUSE_NONE && strlen(reuse.reason) > 0);
  CHECK(pith_prefix_tree_read(tree, cold, &prompt, NULL, NULL, &error) == PITH_OK);
  CHECK(pith_session_tokens(cold) == 200);

  /* The same in works, from the snapshot: the same bits. */
  CHECK(pith_prefix_tree_begin(tree, &options, &prompt, &warm, &reuse, &error) == PITH_OK);
  CHECK(reuse.tokens == fork && reuse.kind == PITH_REUSE_PROMPT);
  pith_prompt_reader* reader = NULL;
  CHECK(pith_prompt_reader_create(warm, &prompt, &reader, &error) == PITH_OK);
  while (!pith_prompt_reader_done(reader)) {
    pith_work work;
    int at_fork = -1;
    memset(&work, 0, sizeof(work));
    work.size = sizeof(work);
    CHECK(pith_prompt_reader_next(reader, warm, &work, &error) == PITH_OK);
    CHECK(pith_engine_step(engine, &work, 1, &error) == PITH_OK && work.status == PITH_OK);
    CHECK(pith_prompt_reader_took(reader, &work, &at_fork, &error) == PITH_OK && at_fork == 0);
    CHECK(pith_prompt_reader_took(reader, &work, NULL, &error) == PITH_INVALID_ARGUMENT);
  }
  const float *a = NULL, *b = NULL;
  CHECK(pith_session_prefill(cold, ids, 1, &a, &error) == PITH_OK);
  CHECK(pith_session_prefill(warm, ids, 1, &b, &error) == PITH_OK);
  CHECK(memcmp(a, b, (size_t)info.vocab * sizeof(float)) == 0);
  pith_prompt_reader_free(reader);

  int kept = 0;
  CHECK(pith_prefix_tree_keep(tree, warm, &prompt, &kept, &error) == PITH_OK && kept == 1);
  size_t tokens = 0, freed = 0;
  CHECK(pith_prefix_tree_longest(tree, &options, &prompt, &tokens, &error) == PITH_OK);
  CHECK(tokens == fork);
  pith_prefix_statistics statistics = {.size = sizeof(statistics)};
  CHECK(pith_prefix_tree_get_statistics(tree, &statistics, &error) == PITH_OK);
  CHECK(statistics.snapshots == 2 && statistics.prompt_hits == 1 && statistics.misses == 1);
  CHECK(pith_prefix_tree_forget(tree, NULL, "7f3a", &freed, &error) == PITH_OK && freed > 0);
  CHECK(pith_prefix_tree_shrink(tree, SIZE_MAX, NULL, &error) == PITH_OK);
  CHECK(pith_prefix_tree_get_statistics(tree, &statistics, &error) == PITH_OK);
  CHECK(statistics.snapshots == 0 && statistics.bytes == 0);

  CHECK(pith_prefix_tree_begin(tree, NULL, NULL, &warm, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_prefix_tree_read(tree, NULL, &prompt, NULL, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_prefix_tree_read(tree, cold, &prompt, NULL, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_prefix_tree_keep(NULL, cold, &prompt, NULL, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_prompt_reader_create(cold, &prompt, &reader, &error) == PITH_INVALID_ARGUMENT);
  CHECK(reader == NULL && pith_prompt_reader_done(NULL) == 1);
  const size_t back[2] = {150, 100};
  prompt.fork_points = back;
  prompt.fork_point_count = 2;
  pith_session* none = NULL;
  CHECK(pith_prefix_tree_begin(tree, &options, &prompt, &none, NULL, &error) == PITH_OK);
  CHECK(pith_prefix_tree_read(tree, none, &prompt, NULL, NULL, &error) == PITH_INVALID_ARGUMENT);
  pith_session_free(none);
  pith_prefix_tree_free(tree);
  pith_prefix_tree_free(NULL);
  pith_session_free(cold);
  return 0;
}

struct bytes {
  unsigned char data[1 << 20];
  size_t size, most;
};

static int take(const void* from, size_t size, void* user) {
  struct bytes* to = user;
  if (to->size + size > to->most) return 1;
  memcpy(to->data + to->size, from, size);
  to->size += size;
  return 0;
}

static int saved(const pith_engine* engine) {
  static struct bytes bytes = {.most = sizeof(bytes.data)};
  pith_error error = PITH_ERROR_INIT;
  pith_session_options of_session;
  pith_session_defaults(&of_session, sizeof(of_session));
  of_session.policy = "keydiff(budget=64)+int4,window=16";
  of_session.context = 512;
  pith_session* session = NULL;
  CHECK(pith_session_create(engine, &of_session, &session, &error) == PITH_OK);
  const int32_t ids[5] = {1, 2, 3, 4, 5};
  CHECK(pith_session_prefill(session, ids, 5, NULL, &error) == PITH_OK);
  pith_save_options options = {
      .size = sizeof(options), .sink = take, .user = &bytes, .note = "mine"};
  CHECK(pith_session_save_as(session, &options, &error) == PITH_OK && bytes.size > 0);

  pith_session* again = NULL;
  CHECK(pith_session_restore_bytes(engine, bytes.data, bytes.size, &of_session, &again, &error) ==
        PITH_OK);
  CHECK(pith_session_tokens(again) == 5);
  pith_session_free(again);
  bytes.data[bytes.size / 2] ^= 1;
  CHECK(pith_session_restore_bytes(engine, bytes.data, bytes.size, &of_session, &again, &error) ==
        PITH_CORRUPT);
  CHECK(again == NULL);
  bytes.size = 0;
  bytes.most = 10;
  CHECK(pith_session_save_as(session, &options, &error) == PITH_IO);

  const char* path = "c_api_prefix_test.session";
  pith_saved* file = NULL;
  options.sink = NULL;
  CHECK(pith_session_save_as(session, &options, &error) == PITH_INVALID_ARGUMENT);
  CHECK(pith_session_save_as(session, NULL, &error) == PITH_INVALID_ARGUMENT);
  options.path = path;
  options.replace = 1;
  CHECK(pith_session_save_as(session, &options, &error) == PITH_OK);
  CHECK(pith_saved_read(path, 1, &file, &error) == PITH_OK);
  pith_saved_info info = {.size = sizeof(info)};
  CHECK(pith_saved_get_info(file, &info, &error) == PITH_OK);
  CHECK(info.token_count == 5 && memcmp(info.tokens, ids, sizeof(ids)) == 0);
  CHECK(strcmp(info.note, "mine") == 0 && info.bytes > 100 && info.version > 0);
  const char *name = NULL, *value = NULL;
  int found = 0;
  for (size_t i = 0; i < info.field_count; ++i) {
    CHECK(pith_saved_field(file, i, &name, &value, &error) == PITH_OK);
    found += strcmp(name, "policy") == 0 && strstr(value, "keydiff") != NULL;
  }
  CHECK(found == 1);
  CHECK(pith_saved_field(file, info.field_count, &name, &value, &error) == PITH_INVALID_ARGUMENT);
  pith_saved_free(file);
  pith_saved_free(NULL);
  CHECK(remove(path) == 0);
  CHECK(pith_saved_read(path, 0, &file, &error) == PITH_NOT_FOUND && file == NULL);
  CHECK(pith_saved_read(NULL, 0, &file, &error) == PITH_INVALID_ARGUMENT);
  pith_session_free(session);
  return 0;
}

static int all(pith_model* model, pith_engine* engine) {
  return prefixes(model, engine) || saved(engine);
}

int main(int argc, char** argv) { return with_engine(argc, argv, all); }
