// Sampling, generation and chats for Python.

#include "generation.h"
#include "pith/tokenizer.h"
#include "pith_tools/dialogue.h"

namespace pith::python {
namespace {

struct Chat : Conversation {
  Chat(LoadedEngine e, Dialogue d) : engine(std::move(e)), held(std::move(d)) {}
  Session& session() override { return held->session(); }
  void drop() override { held.reset(); }
  Dialogue& dialogue() {
    asked();
    return *held;
  }
  LoadedEngine engine;
  std::optional<Dialogue> held;
};

struct ChatListener : Listener {
  explicit ChatListener(std::shared_ptr<Chat> c) : chat(std::move(c)) {}
  void took(const GenerateResult& result) override { chat->held->took(result); }
  void take_back() override { chat->held->take_back(); }
  std::shared_ptr<Chat> chat;
};

/// Text as a prompt: the token that begins one comes first in a session that has seen nothing.
Ids prompt_of(const Session& session, nb::handle prompt) {
  if (!nb::isinstance<nb::str>(prompt)) return nb::cast<Ids>(prompt);
  const Tokenizer& t = session.model().tokenizer();
  Ids ids = t.encode(nb::cast<std::string>(prompt));
  return session.tokens() == 0 ? begun(t, std::move(ids)) : ids;
}

std::shared_ptr<Generation> generate_on(std::shared_ptr<Conversation> conversation,
                                        nb::handle prompt, const GenerateOptions& options,
                                        int top) {
  Ids ids = prompt_of(conversation->asked(), prompt);
  return std::make_shared<Generation>(std::move(conversation), std::move(ids), options, top,
                                      nullptr);
}

std::shared_ptr<Chat> make_chat(const LoadedEngine& engine, const SessionWords& words,
                                const std::string& chosen, std::optional<std::string> system,
                                nb::handle tools, nb::handle variables) {
  auto chosen_for = options_of(engine, words);
  const SessionOptions& options = chosen_for.first;
  DialogueSetup setup;
  setup.system = std::move(system);
  if (!tools.is_none()) setup.tools = to_json(tools);
  if (!variables.is_none()) setup.variables = to_json(variables);
  Session empty = unlocked([&] { return Session(engine.engine, options); });
  auto chat = std::make_shared<Chat>(
      engine, Dialogue(std::move(empty), template_of(engine.loaded, chosen), std::move(setup)));
  chat->why = std::move(chosen_for.second);
  return chat;
}

std::shared_ptr<Generation> ask(const std::shared_ptr<Chat>& chat, const std::string& text,
                                GenerateOptions options, int top) {
  Dialogue& dialogue = chat->dialogue();
  const auto end = dialogue.chat_template().turn_end(dialogue.session().model().tokenizer());
  options.ends.insert(options.ends.end(), end.tokens.begin(), end.tokens.end());
  if (!end.text.empty()) options.stop.push_back(end.text);
  { const Entered entered(*chat); }  // no other thread draws from it
  Dialogue::Asked asked = dialogue.ask(text);
  try {
    return std::make_shared<Generation>(chat, std::move(asked.prompt), std::move(options), top,
                                        std::make_unique<ChatListener>(chat));
  } catch (...) {
    dialogue.take_back();
    throw;
  }
}

void bind_sampling(nb::module_& m) {
  using Options = GenerateOptions;
  nb::class_<Options>(m, "GenerateOptions", "How tokens are drawn and what ends an answer.")
      .def(
          "__init__",
          [](Options* self, int64_t max_tokens, float temperature, int top_k, float top_p,
             float min_p, float repeat_penalty, float presence_penalty, float frequency_penalty,
             int repeat_last_n, uint64_t seed, const std::vector<std::string>& stop,
             const Ids& ends, bool ignore_eos,
             const std::vector<std::pair<int32_t, float>>& logit_bias) {
            new (self) Options();
            self->max_tokens = max_tokens, self->stop = stop, self->ends = ends;
            self->ignore_eos = ignore_eos;
            SamplingOptions& s = self->sampling;
            s.temperature = temperature, s.top_k = top_k, s.top_p = top_p, s.min_p = min_p;
            s.repeat_penalty = repeat_penalty, s.presence_penalty = presence_penalty;
            s.frequency_penalty = frequency_penalty, s.repeat_last_n = repeat_last_n;
            s.seed = seed, s.logit_bias = logit_bias;
          },
          nb::kw_only(), "max_tokens"_a = -1, "temperature"_a = 0.8f, "top_k"_a = 40,
          "top_p"_a = 0.95f, "min_p"_a = 0.05f, "repeat_penalty"_a = 1.0f,
          "presence_penalty"_a = 0.0f, "frequency_penalty"_a = 0.0f, "repeat_last_n"_a = 64,
          "seed"_a = 0, "stop"_a = std::vector<std::string>(), "ends"_a = Ids(),
          "ignore_eos"_a = false, "logit_bias"_a = std::vector<std::pair<int32_t, float>>(),
          "llama.cpp's names and defaults. temperature 0 is greedy; max_tokens -1: until the model "
          "or the context ends.")
      .def_ro("max_tokens", &Options::max_tokens)
      .def_ro("stop", &Options::stop);
}

void bind_generation(nb::module_& m) {
  nb::class_<Piece>(m, "Piece", "One token of an answer.")
      .def_ro("text", &Piece::text,
              "complete characters; empty while they may be a part of one, or of a stop string")
      .def_ro("token", &Piece::token)
      .def_prop_ro(
          "logprob",
          [](const Piece& p) -> std::optional<float> {
            if (!p.logprobs) return std::nullopt;
            return p.logprobs->logprob;
          },
          "of the token as the model has it, or None")
      .def_prop_ro(
          "top_logprobs",
          [](const Piece& p) {
            std::vector<std::pair<int32_t, float>> top;
            if (p.logprobs)
              for (const auto& entry : p.logprobs->top) top.emplace_back(entry.id, entry.logprob);
            return top;
          },
          "(token, logprob) of the likeliest")
      .def("__repr__", [](const Piece& p) {
        return "Piece(" + nb::cast<std::string>(nb::repr(nb::str(p.text.c_str()))) +
               ", token=" + std::to_string(p.token) + ")";
      });

  // Members of the whole answer run it to its end first.
  const auto whole = [](auto member) {
    return [member](Generation& g) {
      g.finish();
      return g.result().*member;
    };
  };
  nb::class_<Generation>(m, "Generation",
                         "An answer, token by token: an iterator of Piece. Its text and the like "
                         "run it to its end first.")
      .def("__iter__", [](nb::object self) { return self; })
      .def("__next__",
           [](Generation& g) {
             auto piece = g.next();
             if (!piece) throw nb::stop_iteration();
             return *std::move(piece);
           })
      .def_prop_ro("text", whole(&GenerateResult::text))
      .def_prop_ro("tokens", whole(&GenerateResult::tokens))
      .def_prop_ro("stop_reason",
                   [](Generation& g) {
                     g.finish();
                     return to_string(g.result().reason);
                   })
      .def_prop_ro("prompt_tokens", whole(&GenerateResult::prompt_tokens))
      .def_prop_ro("prompt_seconds", whole(&GenerateResult::prompt_seconds))
      .def_prop_ro("decode_seconds", whole(&GenerateResult::decode_seconds))
      .def_prop_ro("text_so_far", &Generation::text)
      .def_prop_ro("done", &Generation::done)
      .def_prop_ro("session", &Generation::conversation)
      .def("close", &Generation::close, "Ends it here; what was drawn is in the session.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](Generation& g, const nb::args&) { g.close(); })
      .def("__str__", [](Generation& g) {
        g.finish();
        return g.result().text;
      });
  m.def("generate", &generate_on, "session"_a, "prompt"_a, "options"_a, "top_logprobs"_a = -1,
        "Draws an answer to a prompt (text or token ids) behind what the session holds. "
        "top_logprobs: -1: no probabilities, 0: each token's, n: also the n likeliest.");
}

void bind_chat(nb::module_& m) {
  nb::class_<Chat, Conversation>(m, "Chat",
                                 "A conversation of messages: each turn reads only what is new.")
      .def(nb::new_([](const LoadedEngine& engine, const std::string& policy,
                       const std::string& chosen, std::optional<std::string> system,
                       nb::handle tools, nb::handle variables, size_t context, size_t percent_of,
                       uint64_t seed, size_t cache_limit, const std::string& protect,
                       size_t probe_rows, double max_error, const std::string& goal, bool measure) {
             return make_chat(engine,
                              {policy, context, percent_of, seed, cache_limit, protect, probe_rows,
                               16, max_error, goal, measure},
                              chosen, std::move(system), tools, variables);
           }),
           "engine"_a, "policy"_a = "exact", nb::kw_only(), "template"_a = "",
           "system"_a = nb::none(), "tools"_a = nb::none(), "variables"_a = nb::none(),
           "context"_a = 0, "percent_of"_a = 0, "seed"_a = 0, "cache_limit"_a = 0, "protect"_a = "",
           "probe_rows"_a = 0, "max_error"_a = 0.0, "goal"_a = "both", "measure"_a = false)
      .def("ask", &ask, "text"_a, "options"_a = GenerateOptions(), "top_logprobs"_a = -1,
           "Adds a user's message; the answer is in messages when it has ended.")
      .def_prop_ro("messages", [](Chat& c) { return from_json(c.dialogue().messages().dump()); })
      .def(
          "load",
          [](Chat& c, nb::handle messages) {
            const Entered entered(c);
            c.held->load(Dialogue::parse_messages(to_json(messages), "messages"));
          },
          "messages"_a, "Replaces the conversation; the next ask() reads it.")
      .def(
          "reset",
          [](Chat& c) {
            const Entered entered(c);
            c.held->reset();
          },
          "Forgets all but the system message.")
      .def(
          "set_policy",
          [](Chat& c, const std::string& policy) {
            const Entered entered(c);
            Watch watch;
            try {
              const Policy parsed = Policy::parse(policy);
              return unlocked([&] { return c.held->set_policy(parsed, watch.progress()); });
            } catch (...) {
              watch.rethrow();
              throw;
            }
          },
          "policy"_a, "Reads all again under another policy; returns how many tokens.")
      .def(
          "save",
          [](Chat& c, const std::filesystem::path& path, bool replace) {
            const Entered entered(c);
            unlocked([&] { c.held->save(path, replace); });
          },
          "path"_a, "replace"_a = false)
      .def(
          "resume",
          [](Chat& c, const std::filesystem::path& path) {
            const Entered entered(c);
            unlocked([&] { c.held->resume(path); });
          },
          "path"_a, "Goes on from a file of save(); nothing is read again.");
}

}  // namespace

void bind_generate(nb::module_& m) {
  bind_sampling(m);
  bind_generation(m);
  bind_chat(m);
}

}  // namespace pith::python
