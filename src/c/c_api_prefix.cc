// The C face: prefix trees, prompts in works, and saved sessions.

#include "pith/prefix_tree.h"

#include "c/c_api.h"
#include "pith/pith_prefix.h"
#include "pith/saved.h"

// NOLINTBEGIN(readability-identifier-naming): the names of pith_prefix.h.
struct pith_prefix_tree {
  pith::PrefixTree tree;
};

struct pith_prompt_reader {
  std::vector<int32_t> tokens;
  pith::PromptReader reader;
};

struct pith_saved {
  pith::SavedSession saved;
};
// NOLINTEND(readability-identifier-naming)

namespace pith::c_api {
namespace {

pith_prefix_tree_options tree_defaults() {
  const PrefixTreeOptions o;
  return {sizeof(pith_prefix_tree_options), o.max_bytes, o.max_snapshot_bytes, o.answers};
}

Prompt prompt_of(const pith_prompt* from) {
  const pith_prompt p = read(&given(from, "the prompt"), pith_prompt{}, "the prompt");
  return {.tokens = span_of(p.tokens, p.count, "the prompt's tokens"),
          .fork_points = span_of(p.fork_points, p.fork_point_count, "the fork points"),
          .tenant = text_or_none(p.tenant),
          .conversation = text_or_none(p.conversation)};
}

PrefixTree& tree_of(pith_prefix_tree* tree) { return given(tree, "the tree").tree; }
const PrefixTree& tree_of(const pith_prefix_tree* tree) { return given(tree, "the tree").tree; }

void write_reuse(pith_reuse* to, const Reuse& reuse) {
  static_assert(PITH_REUSE_ANSWER == static_cast<int>(Reuse::Kind::kAnswer));
  pith_reuse r = {sizeof(pith_reuse), reuse.tokens, static_cast<int32_t>(reuse.kind), {}};
  copy_text(r.reason, sizeof(r.reason), reuse.reason.c_str());
  write(to, r, "the place for what is reused");
}

/// By `restore`, which is given the path or the source.
template <class F>
Session restored(const pith_restore_options* from, const F& restore) {
  const pith_restore_options o = read(&given(from, "the options of restoring"),
                                      pith_restore_options{}, "the options of restoring");
  if (!o.path == !o.source)
    throw Error(ErrorCode::kInvalidArgument, "restoring takes a path or a source, one of the two");
  if (o.path) return restore(std::filesystem::path(o.path));
  return restore(StateSource([&](std::span<std::byte> to) {
    size_t came = 0;
    if (o.source(to.data(), to.size(), &came, o.user) != 0)
      throw Error(ErrorCode::kIo, "the program's source gave no more bytes");
    return came;
  }));
}

}  // namespace
}  // namespace pith::c_api

using namespace pith::c_api;  // NOLINT(google-build-using-namespace): all functions are of it

void pith_prefix_tree_defaults(pith_prefix_tree_options* options, size_t size) {
  fill(options, size, tree_defaults());
}

pith_status pith_prefix_tree_create(const pith_engine* engine,
                                    const pith_prefix_tree_options* options,
                                    pith_prefix_tree** tree, pith_error* error) {
  return guarded(error, [&] {
    given(tree, "the place for the tree") = nullptr;
    const pith_prefix_tree_options o = read(options, tree_defaults(), "the tree's options");
    *tree = new pith_prefix_tree{{given(engine, "the engine").engine,
                                  {.max_bytes = o.max_bytes,
                                   .max_snapshot_bytes = o.max_snapshot_bytes,
                                   .answers = o.answers}}};
  });
}

void pith_prefix_tree_free(pith_prefix_tree* tree) { delete tree; }

pith_status pith_prefix_tree_begin(pith_prefix_tree* tree, const pith_session_options* options,
                                   const pith_prompt* prompt, pith_session** session,
                                   pith_reuse* reuse, pith_error* error) {
  return guarded(error, [&] {
    given(session, "the place for the session") = nullptr;
    if (reuse) check_size(reuse->size, "the place for what is reused");
    pith::Reuse found;
    *session =
        new pith_session{tree_of(tree).begin(options_of(options), prompt_of(prompt), &found)};
    if (reuse) write_reuse(reuse, found);
  });
}

pith_status pith_prefix_tree_read(pith_prefix_tree* tree, pith_session* session,
                                  const pith_prompt* prompt, pith_progress progress, void* user,
                                  pith_error* error) {
  return guarded(error, [&] {
    pith::Progress pass_on;
    if (progress) {
      pass_on = [&](size_t done, size_t total) { return progress(done, total, user) == 0; };
    }
    tree_of(tree).read(given(session, "the session").session, prompt_of(prompt), pass_on);
  });
}

pith_status pith_prefix_tree_keep(pith_prefix_tree* tree, const pith_session* session,
                                  const pith_prompt* prompt, int* kept, pith_error* error) {
  return guarded(error, [&] {
    const bool there = tree_of(tree).keep(given(session, "the session").session, prompt_of(prompt));
    if (kept) *kept = there;
  });
}

pith_status pith_prefix_tree_longest(const pith_prefix_tree* tree,
                                     const pith_session_options* options, const pith_prompt* prompt,
                                     size_t* tokens, pith_error* error) {
  return guarded(error, [&] {
    given(tokens, "the place for the number") =
        tree_of(tree).longest(options_of(options), prompt_of(prompt));
  });
}

pith_status pith_prefix_tree_forget(pith_prefix_tree* tree, const char* tenant,
                                    const char* conversation, size_t* freed, pith_error* error) {
  return guarded(error, [&] {
    const size_t bytes = tree_of(tree).forget(text_or_none(tenant), text_or_none(conversation));
    if (freed) *freed = bytes;
  });
}

pith_status pith_prefix_tree_shrink(pith_prefix_tree* tree, size_t bytes, size_t* freed,
                                    pith_error* error) {
  return guarded(error, [&] {
    const size_t became_free = tree_of(tree).shrink(bytes);
    if (freed) *freed = became_free;
  });
}

pith_status pith_prefix_tree_get_statistics(const pith_prefix_tree* tree,
                                            pith_prefix_statistics* statistics, pith_error* error) {
  return guarded(error, [&] {
    const pith::PrefixTree::Statistics s = tree_of(tree).statistics();
    write(statistics,
          {.size = sizeof(pith_prefix_statistics),
           .snapshots = s.snapshots,
           .bytes = s.bytes,
           .prompt_hits = s.prompt_hits,
           .answer_hits = s.answer_hits,
           .misses = s.misses,
           .tokens_reused = s.tokens_reused,
           .kept = s.kept,
           .evicted = s.evicted,
           .too_large = s.too_large},
          "the place for the statistics");
  });
}

pith_status pith_prompt_reader_create(const pith_session* session, const pith_prompt* prompt,
                                      pith_prompt_reader** reader, pith_error* error) {
  return guarded(error, [&] {
    given(reader, "the place for the reader") = nullptr;
    pith::Prompt own = prompt_of(prompt);
    std::vector<int32_t> tokens(own.tokens.begin(), own.tokens.end());
    own.tokens = tokens;  // a vector that moves keeps its numbers where they are
    pith::PromptReader made(given(session, "the session").session, own);
    *reader = new pith_prompt_reader{std::move(tokens), std::move(made)};
  });
}

void pith_prompt_reader_free(pith_prompt_reader* reader) { delete reader; }

int pith_prompt_reader_done(const pith_prompt_reader* reader) {
  return reader ? reader->reader.done() : 1;
}

pith_status pith_prompt_reader_next(const pith_prompt_reader* reader, pith_session* session,
                                    pith_work* work, pith_error* error) {
  return guarded(error, [&] {
    const pith::PromptReader& r = given(reader, "the reader").reader;
    if (r.done())
      throw pith::Error(pith::ErrorCode::kInvalidArgument, "the prompt was read to its end");
    const pith::Work next = r.next(given(session, "the session").session);
    pith_work w = read(&given(work, "the work"), pith_work{}, "the work");
    w.session = session;
    w.tokens = next.tokens.data();
    w.count = next.tokens.size();
    w.how = static_cast<int32_t>(next.append);
    write(work, w, "the work");
  });
}

pith_status pith_prompt_reader_took(pith_prompt_reader* reader, const pith_work* work,
                                    int* fork_point, pith_error* error) {
  return guarded(error, [&] {
    pith_prompt_reader& r = given(reader, "the reader");
    const pith_work w = read(&given(work, "the work"), pith_work{}, "the work");
    const size_t at = r.reader.at();
    if (w.tokens != r.tokens.data() + at || w.count > r.tokens.size() - at || w.count == 0)
      throw pith::Error(pith::ErrorCode::kInvalidArgument,
                        "a work that is not the reader's next one; pass what "
                        "pith_prompt_reader_next filled in");
    pith::Work took;
    took.tokens = {w.tokens, w.count};
    took.append = static_cast<pith::Append>(one_of(w.how, 4, "how tokens come:"));
    const bool ends_piece = r.reader.took(took);
    if (fork_point) *fork_point = ends_piece;
  });
}

pith_status pith_engine_set_memory_limit(const pith_engine* engine, size_t bytes,
                                         pith_error* error) {
  return guarded(error, [&] { given(engine, "the engine").engine->set_memory_limit(bytes); });
}

pith_status pith_session_reserve(pith_session* session, size_t tokens, pith_error* error) {
  return guarded(error, [&] { given(session, "the session").session.reserve(tokens); });
}

pith_status pith_session_room(const pith_session* session, size_t tokens, size_t* bytes,
                              pith_error* error) {
  return guarded(error, [&] {
    given(bytes, "the place for the number") = given(session, "the session").session.room(tokens);
  });
}

pith_status pith_session_save_as(const pith_session* session, const pith_save_options* options,
                                 pith_error* error) {
  return guarded(error, [&] {
    const pith_save_options o = read(&given(options, "the options of saving"), pith_save_options{},
                                     "the options of saving");
    if (!o.path == !o.sink)
      throw pith::Error(pith::ErrorCode::kInvalidArgument,
                        "saving takes a path or a sink, one of the two");
    const pith::Session& of = given(session, "the session").session;
    const pith::SaveOptions how{.replace = o.replace != 0, .note = text_or_none(o.note)};
    if (o.path) return of.save(o.path, how);
    of.save(
        [&](std::span<const std::byte> bytes) {
          if (o.sink(bytes.data(), bytes.size(), o.user) != 0)
            throw pith::Error(pith::ErrorCode::kIo, "the program's sink took no more bytes");
        },
        how);
  });
}

pith_status pith_session_restore_bytes(const pith_engine* engine, const void* bytes, size_t size,
                                       const pith_session_options* options, pith_session** session,
                                       pith_error* error) {
  return guarded(error, [&] {
    given(session, "the place for the session") = nullptr;
    *session = new pith_session{pith::Session::restore(
        given(engine, "the engine").engine,
        span_of(static_cast<const std::byte*>(bytes), size, "the bytes"), options_of(options))};
  });
}

pith_status pith_session_restore_from(const pith_engine* engine, const pith_restore_options* from,
                                      const pith_session_options* options, pith_session** session,
                                      pith_error* error) {
  return guarded(error, [&] {
    given(session, "the place for the session") = nullptr;
    const auto& of = given(engine, "the engine").engine;
    const pith::SessionOptions o = options_of(options);
    *session = new pith_session{
        restored(from, [&](const auto& saved) { return pith::Session::restore(of, saved, o); })};
  });
}

pith_status pith_session_restore_into(pith_session* empty, const pith_restore_options* from,
                                      pith_error* error) {
  return guarded(error, [&] {
    pith::Session& session = given(empty, "the empty session").session;
    session = restored(
        from, [&](const auto& saved) { return pith::Session::restore(std::move(session), saved); });
  });
}

pith_status pith_saved_read(const char* path, int verify, pith_saved** saved, pith_error* error) {
  return guarded(error, [&] {
    given(saved, "the place for what was saved") = nullptr;
    *saved = new pith_saved{pith::read_saved(&given(path, "the file's name"), verify != 0)};
  });
}

void pith_saved_free(pith_saved* saved) { delete saved; }

pith_status pith_saved_get_info(const pith_saved* saved, pith_saved_info* info, pith_error* error) {
  return guarded(error, [&] {
    const pith::SavedSession& s = given(saved, "what was saved").saved;
    write(info,
          {.size = sizeof(pith_saved_info),
           .version = s.version,
           .created = s.created.c_str(),
           .written_by = s.written_by.c_str(),
           .note = s.note.c_str(),
           .bytes = s.bytes,
           .tokens = s.tokens.data(),
           .token_count = s.tokens.size(),
           .field_count = s.key.size()},
          "the place for what the file says");
  });
}

pith_status pith_saved_field(const pith_saved* saved, size_t index, const char** name,
                             const char** value, pith_error* error) {
  return guarded(error, [&] {
    const auto& key = given(saved, "what was saved").saved.key;
    if (index >= key.size())
      throw pith::Error(pith::ErrorCode::kInvalidArgument,
                        "field " + std::to_string(index) + " of " + std::to_string(key.size()));
    given(name, "the place for the name") = key[index].first.c_str();
    given(value, "the place for the value") = key[index].second.c_str();
  });
}
