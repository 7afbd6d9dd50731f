// The statements of docs/embedding.md that its own programs do not show, in its order, against an
// installed library.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pith/error.h"
#include "pith/generate.h"
#include "pith/layer_cache.h"
#include "pith/pith.h"
#include "pith/prefix_tree.h"
#include "pith/tokenizer.h"

namespace {

using Floats = std::vector<float>;
using Ids = std::vector<int32_t>;

int failures = 0;
void need(bool holds, const char* statement) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "not so: %s\n", statement);
}

/// The code of the error that f throws, or -1.
template <class F>
int code_of(F&& f) {
  try {
    f();
  } catch (const pith::Error& e) {
    return static_cast<int>(e.code());
  }
  return -1;
}
constexpr int code(pith::ErrorCode c) { return static_cast<int>(c); }

struct Place {
  std::shared_ptr<const pith::Model> model;
  std::shared_ptr<pith::Engine> engine;

  pith::Session session(const char* policy = "exact", size_t context = 400) const {
    return {engine, {.policy = pith::Policy::parse(policy), .context = context}};
  }
  Ids ids(const std::string& text) const { return model->tokenizer().encode(text); }
  Ids some(size_t count, int32_t from) const {
    Ids all(count);
    for (size_t i = 0; i < count; ++i) all[i] = 3 + (from + 7 * static_cast<int32_t>(i)) % 200;
    return all;
  }
  size_t vocabulary() const { return static_cast<size_t>(model->config().vocab); }
};

Floats logits_after(pith::Session& session, const Ids& ids) {
  const auto logits = session.prefill(ids);
  return {logits.begin(), logits.end()};
}

void in_c(const char* path) {
  pith_error error = PITH_ERROR_INIT;
  pith_model* model = nullptr;
  pith_engine* engine = nullptr;
  need(pith_model_load(path, nullptr, &model, &error) == PITH_OK, "C loads a model");
  struct Newer {
    pith_engine_options options;
    size_t more;
  } newer = {};
  pith_engine_defaults(&newer.options, sizeof(newer.options));
  newer.options.size = sizeof(newer);
  newer.more = 1;
  need(pith_engine_create(model, &newer.options, &engine, &error) == PITH_UNSUPPORTED,
       "fields that the library does not know must be 0");
  newer.more = 0;
  need(pith_engine_create(model, &newer.options, &engine, &error) == PITH_OK,
       "a larger struct whose new fields are 0 is taken");
  pith_engine_free(engine);
  pith_engine_options older = {};
  older.size = offsetof(pith_engine_options, chunk);  // chunk has its default
  need(pith_engine_create(model, &older, &engine, &error) == PITH_OK,
       "fields that a struct lacks have their defaults");
  pith_engine_free(engine);
  pith_model_free(model);
}

void bits_and_failures(const Place& p) {
  const Ids first = p.some(90, 1), second = p.some(70, 2);
  auto alone = p.session(), one = p.session(), other = p.session("keydiff(budget=64)+int4");
  alone.append(first), one.append(first), other.append(second);
  const int32_t next = 5;
  const Floats want = logits_after(alone, {next});
  Floats got(p.vocabulary());
  std::vector<pith::Work> works(2);
  works[0] = {.session = &other, .tokens = {&next, 1}};
  works[1] = {.session = &one, .tokens = {&next, 1}, .logits = got.data()};
  p.engine->step(works);
  need(!works[0].failure && !works[1].failure && got == want,
       "an answer does not depend on the other sessions of a step");

  const Ids unknown = {static_cast<int32_t>(p.vocabulary())}, much = p.some(400, 3);
  works[0] = {.session = &other, .tokens = much};
  works[1] = {.session = &one, .tokens = unknown};
  const size_t before = one.tokens();
  p.engine->step(works);
  need(works[0].failure && works[0].failure->code() == pith::ErrorCode::kContextFull &&
           works[1].failure && works[1].failure->code() == pith::ErrorCode::kInvalidArgument,
       "a work is refused for a full context, and for an unknown token");
  need(one.tokens() == before && !works[1].appended &&
           logits_after(one, {next}) == logits_after(alone, {next}),
       "a refused work leaves its session as it was");

  pith::Sampler none({});
  const uint32_t no_token = 0;
  none.set_mask({&no_token, 1});
  pith::Work drawn{.session = &one, .tokens = {&next, 1}, .sampler = &none};
  const size_t had = one.tokens();
  p.engine->step({&drawn, 1});
  need(drawn.failure && drawn.appended && one.tokens() == had + 1,
       "appended tells that the tokens are in where a draw fails");

  const Ids prompt = p.some(300, 4);
  const auto small = std::make_shared<pith::Engine>(p.model, pith::EngineOptions{.chunk = 64});
  pith::Session by_chunks(small, {.context = 400}), at_once(small, {.context = 400});
  Floats last(p.vocabulary());
  for (size_t at = 0; at < prompt.size();) {
    const size_t n = small->next_chunk(prompt.size() - at);
    const bool ends = at + n == prompt.size();
    pith::Work work{.session = &by_chunks,
                    .tokens = {prompt.data() + at, n},
                    .append = ends ? pith::Append::kPromptEnds : pith::Append::kMore,
                    .logits = last.data()};
    small->step({&work, 1});
    need(!work.failure, "a prompt comes in pieces");
    at += n;
  }
  need(last == logits_after(at_once, prompt), "pieces of next_chunk have the bits of the prompt");
}

void memory(const Place& p) {
  const auto engine = std::make_shared<pith::Engine>(p.model);
  pith::Session session(engine, {.context = 400});
  session.append(p.some(100, 1));
  const size_t held = engine->bytes_in_use();
  {
    const pith::Session fork = session.fork();
    need(engine->bytes_in_use() < held + 1024, "an idle fork takes next to nothing");
  }
  engine->set_memory_limit(held + 1000);
  need(code_of([&] { session.append(p.some(200, 2)); }) == code(pith::ErrorCode::kOutOfMemory) &&
           session.tokens() == 100,
       "a limit refuses a call, and nothing changes");
  need(!session.try_reserve(200), "there is no room to reserve");
  engine->set_memory_limit(0);
  need(session.try_reserve(200) && session.room(200) > session.ledger().cache_bytes() &&
           engine->bytes_reserved() > 0,
       "room is set aside");
  engine->set_memory_limit(engine->bytes_in_use() + engine->bytes_reserved());
  session.append(p.some(200, 2));
  need(session.tokens() == 300, "what was reserved is not refused");
  pith::Session limited(p.engine, {.context = 400, .cache_limit = 20000});
  need(code_of([&] { limited.append(p.some(300, 1)); }) == code(pith::ErrorCode::kOutOfMemory),
       "cache_limit bounds one session");

  const auto shares = std::make_shared<pith::Engine>(p.model);
  const pith::SessionOptions options{.policy = pith::Policy::parse("exact+qjl(paper=true)"),
                                     .context = 400};
  const pith::Session first(shares, options);
  const size_t with_one = shares->bytes_in_use();
  const pith::Session second(shares, options);
  need(first.ledger().shared > 0 && shares->bytes_in_use() < with_one + first.ledger().shared,
       "sessions of one policy, context and seed share projections");

  engine->set_memory_limit(0);
  Floats got[2];
  std::vector<std::thread> threads;
  for (Floats& logits : got)
    threads.emplace_back([&] {
      pith::Session own(engine, {.context = 100});
      logits = logits_after(own, p.some(60, 9));
    });
  for (auto& t : threads) t.join();
  need(!got[0].empty() && got[0] == got[1], "any thread may call an engine");
}

void answers(const Place& p) {
  auto session = p.session();
  const Ids ids = p.ids("The ship lay at anchor");
  const auto scores = session.score(ids);
  auto again = p.session();
  const Floats logits = logits_after(again, Ids(ids.begin(), ids.end() - 1));
  const auto last = pith::log_probabilities(logits, ids.back(), 3);
  need(scores.size() == ids.size() && std::fabs(scores.back().logprob - last.logprob) < 1e-3f &&
           scores.back().likeliest == last.top[0].id,
       "score gives each token's log-probability, log_probabilities one's and the likeliest");

  pith::Sampler sampler({.temperature = 0});
  const int32_t only = 7;
  std::vector<uint32_t> mask(p.vocabulary() / 32 + 1);
  mask[only / 32] = 1u << only % 32;
  sampler.set_mask(mask);
  need(session.sample(sampler) == only, "a mask has one bit per token");

  pith::GenerateOptions options;
  options.stop = {"zzz"};
  pith::Stepper stepper(*p.model, options);
  std::string text;
  for (const int32_t id : p.ids("azzb")) text += stepper.push(id, 10).text;
  text += stepper.finish();
  need(text.find("zz") != std::string::npos && text == stepper.text(),
       "a stepper holds back what may become a stop string, and gives it in the end");
}

void prompts_alike(const Place& p) {
  pith::PrefixTree tree(p.engine, {.max_bytes = size_t{64} << 20});
  const pith::SessionOptions options{.policy = pith::Policy::parse("keydiff(budget=64)+int4"),
                                     .context = 400};
  const Ids ids = p.some(150, 6);
  const size_t fork = 100;
  const pith::Prompt prompt{.tokens = ids, .fork_points = {&fork, 1}, .conversation = "one"};
  pith::Reuse reuse;
  pith::Session cold = tree.begin(options, prompt, &reuse);
  need(reuse.tokens == 0 && !reuse.reason.empty(), "a reason tells why no more tokens were there");
  size_t from = 0;
  for (const size_t end : prompt_pieces(prompt)) {  // as a program does that steps
    const auto how = end == ids.size() ? pith::Append::kPromptEnds : pith::Append::kMore;
    cold.append(std::span(ids).subspan(from, end - from), how);
    if (end == fork) need(tree.keep(cold, prompt), "keep at a fork point");
    from = end;
  }
  pith::Session warm = tree.begin(options, prompt, &reuse);
  need(reuse.tokens == fork, "a snapshot is found");
  tree.read(warm, prompt);
  need(logits_after(warm, {5}) == logits_after(cold, {5}),
       "a session from a snapshot has the bits of a prompt that was read from the start");
  need(tree.keep(warm, prompt), "keep after an answer");
  Ids turn(warm.token_ids().begin(), warm.token_ids().end());
  turn.insert(turn.end(), {8, 9, 10});
  tree.begin(options, {.tokens = turn, .conversation = "one"}, &reuse);
  need(reuse.kind == pith::Reuse::Kind::kAnswer && reuse.tokens == warm.tokens(),
       "the conversation is there for its next turn");
}

struct Tensors {
  static constexpr int kHeads = 4, kKvHeads = 2, kDim = 64;
  explicit Tensors(size_t tokens) : q(tokens * 256), k(tokens * 128), v(k.size()), out(q.size()) {
    for (Floats* x : {&q, &k, &v})
      for (size_t i = 0; i < x->size(); ++i) (*x)[i] = std::sin(0.7f * static_cast<float>(i));
  }
  static pith::RowsView view(const Floats& x, size_t at, int heads) {
    return {x.data() + at * static_cast<size_t>(heads * kDim), pith::DType::kF32, heads * kDim,
            kDim};
  }
  pith::LayerStep step(pith::LayerCache& cache, size_t at, size_t tokens) {
    return {&cache,
            {out.data() + at * 256, pith::DType::kF32, kHeads * kDim, kDim},
            view(q, at, kHeads),
            view(k, at, kKvHeads),
            view(v, at, kKvHeads),
            tokens};
  }
  Floats q, k, v, out;
};

void layers() {
  const auto runtime = std::make_shared<pith::Runtime>(pith::RuntimeOptions{.threads = 2});
  pith::LayerCacheOptions options{.policy = pith::Policy::parse("keydiff(budget=32)+int4"),
                                  .query_heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 64,
                                  .context = 200};
  Tensors a(150), b(150);
  const auto run = [](Tensors& t, pith::LayerCache& cache, size_t at, size_t n) {
    const auto s = t.step(cache, at, n);
    cache.step(s.out, s.q, s.k, s.v, s.tokens);
  };
  pith::LayerCache cache(runtime, options);
  run(a, cache, 0, 100);
  auto copy = cache.clone();
  auto loaded = pith::LayerCache::restore(runtime, options, cache.save());
  const size_t rows = cache.rows(0).positions.size();
  Floats keys(rows * 64), values(rows * 64);
  cache.read_rows(0, keys.data(), values.data());
  need(cache.scores(0).size() == rows && std::isfinite(keys[0] + values[rows * 64 - 1]),
       "read_rows and scores are of the rows that are held");
  run(a, cache, 100, 50);
  for (pith::LayerCache* other : {&copy, &loaded}) {
    run(b, *other, 100, 50);
    need(std::equal(a.out.begin() + 100 * 256, a.out.end(), b.out.begin() + 100 * 256),
         "a clone and a restored cache continue bit for bit");
  }
  pith::LayerCache one(runtime, options), two(runtime, options);
  Tensors c(100), d(100);
  const std::vector<pith::LayerStep> steps = {c.step(one, 0, 100), d.step(two, 0, 100)};
  runtime->step(steps);
  need(c.out == d.out && std::equal(c.out.begin(), c.out.end(), a.out.begin()),
       "steps side by side have the bits of each alone");
  options.soft_cap = 30;
  options.sink_logits = {1, 1, 1, 1};
  pith::LayerCache capped(runtime, options);
  run(b, capped, 0, 100);
  need(b.out != a.out, "soft caps and sinks change the answer");
  options.error_probe.rows = 64;
  need(code_of([&] { pith::LayerCache(runtime, options); }) == code(pith::ErrorCode::kUnsupported),
       "the error probe refuses caps and sinks");
}

/// The page's own lines of it; where there is no GPU they are refused.
void on_the_gpu() {
  const pith::LayerCacheOptions options{
      .query_heads = 4, .kv_heads = 2, .head_dim = 64, .context = 100};
  void* const stream = nullptr;
  const pith::RowsOut out;
  const pith::RowsView q, k, v;
  const size_t tokens = 1;
  const int refused = code_of([&] {
#include "on_gpu.inc"
  });
  need(refused == code(pith::ErrorCode::kUnsupported) ||        // no GPU
           refused == code(pith::ErrorCode::kInvalidArgument),  // null is no device pointer
       "a layer on the GPU takes device pointers");
}

void runtimes(const Place& p) {
  const auto runtime = std::make_shared<pith::Runtime>();
  const auto shares =
      std::make_shared<pith::Engine>(p.model, pith::EngineOptions{.runtime = runtime});
  const auto other =
      std::make_shared<pith::Engine>(p.model, pith::EngineOptions{.runtime = runtime});
  pith::Session one(shares, {.context = 200}), two(other, {.context = 200});
  auto alone = p.session("exact", 200);
  const Floats want = logits_after(alone, p.some(80, 3));
  need(logits_after(one, p.some(80, 3)) == want && logits_after(two, p.some(80, 3)) == want,
       "answers have the bits of separate engines");
  runtime->set_memory_limit(runtime->bytes_in_use());
  need(code_of([&] { two.append(p.some(100, 1)); }) == code(pith::ErrorCode::kOutOfMemory),
       "a runtime's limit bounds its engines together");
  pith::Session by_itself(p.model, pith::StandaloneOptions());
  need(by_itself.tokens() == 0, "a session without an engine makes its own");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const auto model = pith::Model::load(argv[1]);
    const Place place{model, std::make_shared<pith::Engine>(model)};
    in_c(argv[1]);
    bits_and_failures(place);
    memory(place);
    answers(place);
    prompts_alike(place);
    layers();
    on_the_gpu();
    runtimes(place);
  } catch (const pith::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 10 + static_cast<int>(error.code());
  }
  return failures;
}
