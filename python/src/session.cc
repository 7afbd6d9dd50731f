// Engines and sessions.

#include <algorithm>
#include <charconv>
#include <span>

#include "binding.h"
#include "pith/engine.h"
#include "pith/saved.h"
#include "pith_tools/choose.h"
#include "pith_tools/screen.h"

namespace pith::python {
namespace {

constexpr size_t kProbeRows = 256;  // of a limit alone, as the program has it

struct SessionObject : Conversation {
  explicit SessionObject(Session s) : held(std::move(s)) {}
  Session& session() override { return *held; }
  void drop() override { held.reset(); }
  std::optional<Session> held;
};

std::shared_ptr<SessionObject> object_of(Session session, std::string why) {
  auto made = std::make_shared<SessionObject>(std::move(session));
  made->why = std::move(why);
  return made;
}

PresetGoal goal_of(const std::string& name) {
  if (name == "text") return PresetGoal::kText;
  if (name == "facts") return PresetGoal::kFacts;
  if (name == "both") return PresetGoal::kBoth;
  throw Error(ErrorCode::kInvalidArgument, "goal='" + name + "': there are text, facts and both");
}

PresetChoice choice_of(const LoadedEngine& engine, const SessionWords& words) {
  Watch watch;
  ChooseOptions choose;
  choose.model = engine.loaded.path;
  choose.budget = memory_budget(words.policy);
  choose.goal = goal_of(words.goal);
  choose.session.context = words.context;
  choose.session.threads = 1;
  if (words.measure)
    choose.measure = [&](std::span<const std::string> policies) {
      ScreenOptions s;
      s.model = engine.loaded.path.filename().string();
      s.fingerprint = model_fingerprint(engine.loaded.path);
      static_cast<EngineOptions&>(s.session) = engine.engine->options();
      return screen(engine.loaded.model, policies, s, watch.progress());
    };
  PresetChoice choice = unlocked([&] { return choose_policy(choose); });
  watch.rethrow();
  return choice;
}

LoadedEngine engine_of(nb::object from, const EngineOptions& options) {
  if (nb::isinstance<LoadedModel>(from)) {
    const LoadedModel loaded = nb::cast<LoadedModel>(from);
    return {loaded, unlocked([&] { return std::make_shared<Engine>(loaded.model, options); })};
  }
  if (!nb::isinstance<LoadedEngine>(from))
    throw nb::type_error("a pith.Engine or a pith.Model is needed; Model.load(folder) reads one");
  const EngineOptions none;
  if (options.device != none.device || options.threads != none.threads ||
      options.chunk != none.chunk || options.isa != none.isa ||
      options.memory_limit != none.memory_limit)
    throw Error(ErrorCode::kInvalidArgument,
                "device, threads, chunk, isa and memory_limit are the engine's: give them to "
                "pith.Engine");
  return nb::cast<LoadedEngine>(from);
}

void bind_engine(nb::module_& m) {
  nb::class_<LoadedEngine>(m, "Engine",
                           "What conversations share on one device: weights, threads, memory.")
      .def(
          "__init__",
          [](LoadedEngine* self, const LoadedModel& model, const std::string& device, int threads,
             size_t chunk, const std::string& isa, bool f32, size_t parallel, size_t limit,
             std::shared_ptr<Runtime> runtime) {
            EngineOptions o;
            o.device = device_of(device), o.threads = threads, o.chunk = chunk, o.isa = isa;
            o.f32_arithmetic = f32, o.parallel = parallel, o.memory_limit = limit;
            o.runtime = std::move(runtime);
            new (self) LoadedEngine{
                model, unlocked([&] { return std::make_shared<Engine>(model.model, o); })};
          },
          "model"_a, nb::kw_only(), "device"_a = "cpu", "threads"_a = 0, "chunk"_a = 512,
          "isa"_a = "", "f32_arithmetic"_a = false, "parallel"_a = 1, "memory_limit"_a = 0,
          "runtime"_a.none() = nb::none(),
          "runtime: shared with other engines and layers, in place of device, threads, isa and "
          "memory_limit.")
      .def_prop_ro("model", [](const LoadedEngine& e) { return e.loaded; })
      .def_prop_ro("threads", [](const LoadedEngine& e) { return e.engine->threads(); })
      .def_prop_ro("isa", [](const LoadedEngine& e) { return e.engine->isa(); })
      .def_prop_ro(
          "bytes_in_use", [](const LoadedEngine& e) { return e.engine->bytes_in_use(); },
          "of the engine and all its sessions, weights apart")
      .def_prop_ro("peak_bytes", [](const LoadedEngine& e) { return e.engine->peak_bytes(); });
}

void bind_conversation(nb::module_& m) {
  nb::class_<Conversation>(m, "Conversation", "What sessions and chats can be asked.")
      .def_prop_ro(
          "tokens", [](Conversation& c) { return c.asked().tokens(); }, "seen so far")
      .def_prop_ro("token_ids",
                   [](Conversation& c) {
                     const auto ids = c.asked().token_ids();
                     return Ids(ids.begin(), ids.end());
                   })
      .def_prop_ro("context", [](Conversation& c) { return c.asked().context(); })
      .def_prop_ro(
          "config", [](Conversation& c) { return c.asked().model().config(); }, "the model's")
      .def_prop_ro("policy", [](Conversation& c) { return c.asked().options().policy; })
      .def_ro("why", &Conversation::why,
              "of a policy that was chosen for a size: what it takes and what is expected of it")
      .def(
          "ledger", [](Conversation& c) { return c.asked().ledger(); },
          "Every byte of the cache, by what it is for.")
      .def(
          "rows", [](Conversation& c, int layer, int head) { return c.asked().rows(layer, head); },
          "layer"_a, "head"_a, "What one KV head of one layer holds now.")
      .def("attention_errors", [](Conversation& c) { return c.asked().attention_errors(); })
      .def(
          "describe", [](Conversation& c) { return c.asked().describe_policy(); },
          "The policy with every budget as rows and every default spelled out.")
      .def_prop_ro("closed", [](const Conversation& c) { return c.closed; })
      .def("close", &Conversation::close, "Frees its memory; may be called twice.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](Conversation& c, const nb::args&) { c.close(); });
}

std::shared_ptr<SessionObject> make_session(nb::object from, const SessionWords& words,
                                            const EngineOptions& engine_options) {
  const LoadedEngine engine = engine_of(std::move(from), engine_options);
  auto chosen = options_of(engine, words);
  return object_of(unlocked([&] { return Session(engine.engine, chosen.first); }),
                   std::move(chosen.second));
}

/// Appends without the lock and says what a signal or a callback raised.
template <class Append>
void read_tokens(SessionObject& s, nb::object progress, const Append& append) {
  const Entered entered(s);
  Watch watch(std::move(progress));
  unlocked([&] { append(watch.progress()); });
  watch.rethrow();
}

nb::tuple score(SessionObject& s, const Ids& ids) {
  const Entered entered(s);
  const auto scores = unlocked([&] { return s.session().score(ids); });
  std::vector<float> logprobs;
  std::vector<int32_t> likeliest;
  for (const TokenScore& score : scores) {
    logprobs.push_back(score.logprob);
    likeliest.push_back(score.likeliest);
  }
  return nb::make_tuple(array_of(std::move(logprobs)), array_of(std::move(likeliest)));
}

Matrix all_logits(SessionObject& s, const Ids& ids) {
  const Entered entered(s);
  const auto vocabulary = static_cast<size_t>(s.session().model().config().vocab);
  std::vector<float> out(ids.size() * vocabulary);
  unlocked([&] {
    s.session().prefill_logits(ids, [&](size_t first, size_t count, const float* logits) {
      std::copy_n(logits, count * vocabulary,
                  out.begin() + static_cast<ptrdiff_t>(first * vocabulary));
    });
  });
  return matrix_of(std::move(out), ids.size(), vocabulary);
}

void bind_reading(nb::class_<SessionObject, Conversation>& session) {
  session
      .def(
          "append",
          [](SessionObject& s, const Ids& ids, nb::object progress) {
            read_tokens(s, std::move(progress),
                        [&](const Progress& watch) { s.session().append(ids, watch); });
          },
          "ids"_a, "progress"_a = nb::none(),
          "Reads tokens. progress(done, total) may return False to stop between chunks.")
      .def(
          "prefill",
          [](SessionObject& s, const Ids& ids, nb::object progress) {
            std::span<const float> logits;
            read_tokens(s, std::move(progress),
                        [&](const Progress& watch) { logits = s.session().prefill(ids, watch); });
            return array_of(logits);
          },
          "ids"_a, "progress"_a = nb::none(),
          "Reads tokens; the logits after the last one, float32 [vocabulary].")
      .def(
          "decode",
          [](SessionObject& s, int32_t id) {
            const Entered entered(s);
            return array_of(unlocked([&] { return s.session().decode(id); }));
          },
          "id"_a, "Reads one token; the logits after it.")
      .def("logits", &all_logits, "ids"_a,
           "Reads tokens; the logits after each of them, float32 [tokens, vocabulary].")
      .def("score", &score, "ids"_a,
           "Reads tokens as one prompt: (logprobs float32 [tokens], likeliest int32 [tokens]): "
           "how likely each was after those before it, and which was likeliest. The first of a "
           "session scores (0, -1).")
      .def(
          "protect",
          [](SessionObject& s, const std::string& ranges) {
            const Entered entered(s);
            s.session().protect(parse_ranges(ranges));
          },
          "ranges"_a, "Tokens to come whose rows stay exact, e.g. \"0:120,500:620\".");
}

/// Per cent are of what the session's first prompt said.
size_t saved_percent_of(const std::filesystem::path& path) {
  const std::string field = read_saved(path).field("per cent of");
  size_t percent_of = 0;
  std::from_chars(field.data(), field.data() + field.size(), percent_of);
  return percent_of;
}

void bind_states(nb::class_<SessionObject, Conversation>& session) {
  session
      .def(
          "fork", [](SessionObject& s) { return object_of(s.asked().fork(), s.why); },
          "A second session with the same past; both continue independently.")
      .def(
          "save",
          [](SessionObject& s, const std::filesystem::path& path, bool replace,
             const std::string& note) {
            const Entered entered(s);
            unlocked([&] { s.session().save(path, {.replace = replace, .note = note}); });
          },
          "path"_a, "replace"_a = false, "note"_a = "",
          "Writes all that the conversation needs to continue in another process, bit for bit.")
      .def_static(
          "restore",
          [](const LoadedEngine& engine, const std::filesystem::path& path,
             const std::string& policy, size_t context, size_t percent_of, uint64_t seed,
             size_t cache_limit) {
            auto chosen = options_of(engine, {policy, context, percent_of, seed, cache_limit, "", 0,
                                              16, 0, "both", false});
            SessionOptions& options = chosen.first;
            if (percent_of == 0) options.percent_of = saved_percent_of(path);
            return object_of(
                unlocked([&] { return Session::restore(engine.engine, path, options); }),
                std::move(chosen.second));
          },
          "engine"_a, "path"_a, "policy"_a = "exact", nb::kw_only(), "context"_a = 0,
          "percent_of"_a = 0, "seed"_a = 0, "cache_limit"_a = 0,
          "A session that continues where save() was called, under the same options.");
}

}  // namespace

std::pair<SessionOptions, std::string> options_of(const LoadedEngine& engine,
                                                  const SessionWords& words) {
  SessionOptions o;
  std::string why;
  if (says_memory(words.policy)) {
    PresetChoice choice = choice_of(engine, words);
    o.policy = std::move(choice.policy);
    why = choice.why();
  } else {
    o.policy = Policy::parse(words.policy);
  }
  o.context = words.context, o.percent_of = words.percent_of, o.seed = words.seed;
  o.cache_limit = words.cache_limit;
  o.protect = parse_ranges(words.protect);
  o.error_probe = {words.probe_rows, words.probe_every, words.max_error};
  if (words.max_error > 0 && words.probe_rows == 0) o.error_probe.rows = kProbeRows;
  return {std::move(o), std::move(why)};
}

Session& Conversation::asked() {
  if (closed) throw Error(ErrorCode::kInvalidArgument, "it was closed; make another");
  if (busy_) raise_busy("another thread is in this session; fork() gives each thread its own");
  return session();
}

void Conversation::close() {
  if (closed) return;
  if (busy_) raise_busy("another thread is in this session; it cannot be closed now");
  closed = true;
  drop();
}

Entered::Entered(Conversation& conversation, const Generation* as) : conversation_(conversation) {
  conversation.asked();
  if (conversation.owner_ != nullptr && conversation.owner_ != as)
    raise_busy("a generation draws from this session: read it to its end, or close() it");
  conversation.busy_ = true;
}

Entered::~Entered() { conversation_.busy_ = false; }

void bind_session(nb::module_& m) {
  bind_engine(m);
  bind_conversation(m);
  nb::class_<SessionObject, Conversation> session(
      m, "Session", "A conversation: tokens go in, logits come out, the cache stays compressed.");
  session.def(
      nb::new_([](nb::object from, const std::string& policy, size_t context, size_t percent_of,
                  uint64_t seed, size_t cache_limit, const std::string& protect, size_t probe_rows,
                  size_t probe_every, double max_error, const std::string& goal, bool measure,
                  const std::string& device, int threads, size_t chunk, const std::string& isa,
                  size_t memory_limit) {
        EngineOptions engine;
        engine.device = device_of(device), engine.threads = threads, engine.chunk = chunk;
        engine.isa = isa, engine.memory_limit = memory_limit;
        return make_session(std::move(from),
                            {policy, context, percent_of, seed, cache_limit, protect, probe_rows,
                             probe_every, max_error, goal, measure},
                            engine);
      }),
      "engine"_a, "policy"_a = "exact", nb::kw_only(), "context"_a = 0, "percent_of"_a = 0,
      "seed"_a = 0, "cache_limit"_a = 0, "protect"_a = "", "probe_rows"_a = 0, "probe_every"_a = 16,
      "max_error"_a = 0.0, "goal"_a = "both", "measure"_a = false, "device"_a = "cpu",
      "threads"_a = 0, "chunk"_a = 512, "isa"_a = "", "memory_limit"_a = 0,
      "engine: a pith.Engine, or a pith.Model, for which one is made with device, threads, chunk, "
      "isa and memory_limit. policy: a policy, or the memory that the cache may take: \"half\", "
      "\"quarter\", \"tenth\", \"30%\" of what exact takes, or \"16MiB\"; the best measured policy "
      "for the goal (\"text\", \"facts\" or \"both\") is then chosen, and measure=True measures a "
      "model without figures first, for a minute or two. context: tokens, 0 = the model's.");
  bind_reading(session);
  bind_states(session);
  m.def("read_in_all", &read_in_all, "prompt"_a, "predict"_a, "context"_a,
        "What per cent budgets are of, for a prompt and an answer of so many tokens.");
  m.def(
      "estimate",
      [](const LoadedModel& model, const std::string& policy, size_t tokens, size_t context,
         const std::string& device) {
        SessionOptions o;
        o.policy = Policy::parse(policy), o.context = context;
        return estimate_ledger(model.model->config(), o, tokens, device_of(device));
      },
      "model"_a, "policy"_a, "tokens"_a, "context"_a = 0, "device"_a = "cpu",
      "The ledger of a policy after so many tokens, without running it: an upper bound.");
}

}  // namespace pith::python
