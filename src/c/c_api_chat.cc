// The C face: tokens, chat templates, forms and steppers.

#include "pith/chat.h"

#include "c/c_api.h"
#include "pith/pith_chat.h"
#include "pith/tokenizer.h"

// NOLINTBEGIN(readability-identifier-naming): the names of pith_chat.h.
struct pith_chat_template {
  std::shared_ptr<const pith::Model> model;
  pith::ChatTemplate chat;
  pith::ChatTurnEnd end;
};

struct pith_stepper {
  std::shared_ptr<const pith::Model> model;
  pith::Stepper stepper;
  std::string text;  // of the last call
};
// NOLINTEND(readability-identifier-naming)

namespace pith::c_api {
namespace {

const Tokenizer& tokenizer_of(const pith_model* model) {
  return given(model, "the model").model->tokenizer();
}

pith_chat_template* made(const pith_model* model, ChatTemplate chat) {
  const std::shared_ptr<const Model>& of = model->model;
  ChatTurnEnd end = chat.turn_end(of->tokenizer());
  return new pith_chat_template{of, std::move(chat), std::move(end)};
}

ChatRequest request_of(const pith_chat_request* from) {
  const pith_chat_request r = read(&given(from, "the request"), pith_chat_request{}, "the request");
  ChatRequest request;
  if (r.messages && *r.messages) request.messages = r.messages;
  request.tools = text_or_none(r.tools);
  request.documents = text_or_none(r.documents);
  request.variables = text_or_none(r.variables);
  request.add_generation_prompt = r.no_answer_prompt == 0;
  return request;
}

pith_form_calls calls_defaults() {
  return {sizeof(pith_form_calls), "<tool_call>", "</tool_call>", 0, 0};
}

FormCalls calls_of(const pith_form_calls* from) {
  const pith_form_calls c = read(from, calls_defaults(), "how tools are called");
  return {.opens = &given(c.opens, "the word that opens a call"),
          .closes = &given(c.closes, "the word that closes a call"),
          .begun = c.begun != 0,
          .many = c.once == 0};
}

void hand_out(pith_stepper& stepper, std::string text, int32_t stop, pith_stepper_out* out) {
  check_size(given(out, "the place for what came out").size, "the place for what came out");
  stepper.text = std::move(text);
  write(out, {sizeof(pith_stepper_out), stepper.text.data(), stepper.text.size(), stop},
        "the place for what came out");
}

}  // namespace
}  // namespace pith::c_api

using namespace pith::c_api;  // NOLINT(google-build-using-namespace): all functions are of it

pith_status pith_model_get_tokens(const pith_model* model, pith_token_info* info,
                                  pith_error* error) {
  return guarded(error, [&] {
    const pith::Tokenizer& t = tokenizer_of(model);
    write(info,
          {.size = sizeof(pith_token_info),
           .vocab = t.vocab_size(),
           .bos = t.bos(),
           .adds_bos = t.add_bos(),
           .ends = t.eos_ids().data(),
           .end_count = t.eos_ids().size()},
          "the place for the tokens");
  });
}

pith_status pith_token_piece(const pith_model* model, int32_t id, char* bytes, size_t capacity,
                             size_t* size, int* special, pith_error* error) {
  return guarded(error, [&] {
    const pith::Tokenizer& t = tokenizer_of(model);
    const std::string piece = t.piece(id);
    if (special) *special = t.is_special(id);
    hand_out(piece, bytes, capacity, size, "bytes");
  });
}

pith_status pith_token_find(const pith_model* model, const char* token, int32_t* id,
                            pith_error* error) {
  return guarded(error, [&] {
    given(id, "the place for the token") = -1;
    *id = tokenizer_of(model).find(&given(token, "the token's spelling")).value_or(-1);
  });
}

pith_status pith_tokenize_plain(const pith_model* model, const char* text, size_t size,
                                int32_t* ids, size_t capacity, size_t* count, pith_error* error) {
  return guarded(error, [&] {
    const auto bytes = span_of(text, size, "the text");
    hand_out(tokenizer_of(model).encode({bytes.data(), bytes.size()}, false), ids, capacity, count,
             "ids");
  });
}

pith_status pith_session_prefill_logits(pith_session* session, const int32_t* tokens, size_t count,
                                        pith_logits_callback sink, void* user, pith_error* error) {
  return guarded(error, [&] {
    if (!sink)
      throw pith::Error(pith::ErrorCode::kInvalidArgument,
                        "no function for the logits; pass one, or call pith_session_prefill");
    given(session, "the session")
        .session.prefill_logits(
            span_of(tokens, count, "the tokens"),
            [&](size_t first, size_t n, const float* logits) { sink(first, n, logits, user); });
  });
}

const char* pith_chat_built_in(size_t index) {
  // Literals: each name is terminated.
  const auto names = pith::ChatTemplate::built_in_names();
  return index < names.size() ? names[index].data() : nullptr;
}

pith_status pith_chat_template_create(const pith_model* model, const char* name,
                                      pith_chat_template** chat, pith_error* error) {
  return guarded(error, [&] {
    given(chat, "the place for the template") = nullptr;
    const pith::Tokenizer& t = tokenizer_of(model);
    *chat = made(model, name ? pith::ChatTemplate::built_in(name, t)
                             : pith::ChatTemplate::of(model->path, t));
  });
}

pith_status pith_chat_template_parse(const pith_model* model, const char* source, size_t size,
                                     const char* name, pith_chat_template** chat,
                                     pith_error* error) {
  return guarded(error, [&] {
    given(chat, "the place for the template") = nullptr;
    const auto text = span_of(source, size, "the template");
    *chat = made(model,
                 pith::ChatTemplate({text.data(), text.size()},
                                    name ? name : "the program's template", tokenizer_of(model)));
  });
}

void pith_chat_template_free(pith_chat_template* chat) { delete chat; }

pith_status pith_chat_render(const pith_chat_template* chat, const pith_chat_request* request,
                             char* text, size_t capacity, size_t* size, pith_error* error) {
  return guarded(error, [&] {
    std::string all;
    for (const pith::ChatRun& run : given(chat, "the template").chat.render(request_of(request)))
      all += run.text;
    hand_out(all, text, capacity, size, "bytes");
  });
}

pith_status pith_chat_encode(const pith_chat_template* chat, const pith_chat_request* request,
                             int32_t* ids, size_t capacity, size_t* count, pith_error* error) {
  return guarded(error, [&] {
    const pith_chat_template& of = given(chat, "the template");
    hand_out(of.chat.encode(of.model->tokenizer(), request_of(request)), ids, capacity, count,
             "ids");
  });
}

pith_status pith_chat_turn_end(const pith_chat_template* chat, pith_chat_end* end,
                               pith_error* error) {
  return guarded(error, [&] {
    const pith::ChatTurnEnd& e = given(chat, "the template").end;
    write(end, {sizeof(pith_chat_end), e.tokens.data(), e.tokens.size(), e.text.c_str()},
          "the place for the end of an answer");
  });
}

pith_status pith_form_json(const pith_model* model, const char* schema, pith_form** form,
                           pith_error* error) {
  return guarded(error, [&] {
    given(form, "the place for the form") = nullptr;
    const auto vocabulary = given(model, "the model").vocabulary();
    *form = new pith_form{schema ? pith::AnswerForm::json_schema(schema, vocabulary)
                                 : pith::AnswerForm::json_object(vocabulary)};
  });
}

pith_status pith_form_tools(const pith_model* model, const pith_tool* tools, size_t count,
                            const pith_form_calls* calls, pith_form** form, pith_error* error) {
  return guarded(error, [&] {
    given(form, "the place for the form") = nullptr;
    const Structs<const pith_tool> all(tools, count, "tool");
    std::vector<pith::FormTool> read_tools;
    for (size_t i = 0; i < all.size(); ++i) {
      const pith_tool tool = read(all.at(i), pith_tool{}, "a tool");
      read_tools.push_back({.name = &given(tool.name, "a tool's name"),
                            .parameters = text_or_none(tool.parameters),
                            .strict = tool.strict != 0});
    }
    *form = new pith_form{pith::AnswerForm::tool_calls(read_tools, calls_of(calls),
                                                       given(model, "the model").vocabulary())};
  });
}

void pith_form_free(pith_form* form) { delete form; }

pith_status pith_stepper_create(const pith_model* model, const pith_generate_options* options,
                                pith_stepper** stepper, pith_error* error) {
  return guarded(error, [&] {
    given(stepper, "the place for the stepper") = nullptr;
    const auto& of = given(model, "the model").model;
    *stepper = new pith_stepper{of, pith::Stepper(*of, options_of(options)), {}};
  });
}

void pith_stepper_free(pith_stepper* stepper) { delete stepper; }

pith_status pith_stepper_sampler(const pith_stepper* stepper, pith_sampler** sampler,
                                 pith_error* error) {
  return guarded(error, [&] {
    given(sampler, "the place for the sampler") = nullptr;
    *sampler = new pith_sampler{pith::Sampler(given(stepper, "the stepper").stepper.sampling())};
  });
}

pith_status pith_stepper_mask(pith_stepper* stepper, pith_sampler* sampler, pith_error* error) {
  return guarded(error, [&] {
    given(sampler, "the sampler").sampler.set_mask(given(stepper, "the stepper").stepper.mask());
  });
}

pith_status pith_stepper_push(pith_stepper* stepper, int32_t token, size_t room,
                              pith_stepper_out* out, pith_error* error) {
  return guarded(error, [&] {
    pith_stepper& to = given(stepper, "the stepper");
    check_size(given(out, "the place for what came out").size, "the place for what came out");
    const pith::Stepper::Out got = to.stepper.push(token, room);
    hand_out(to, got.text, got.stop ? static_cast<int32_t>(*got.stop) : -1, out);
  });
}

pith_status pith_stepper_finish(pith_stepper* stepper, pith_stepper_out* out, pith_error* error) {
  return guarded(error, [&] {
    pith_stepper& to = given(stepper, "the stepper");
    check_size(given(out, "the place for what came out").size, "the place for what came out");
    hand_out(to, to.stepper.finish(), -1, out);
  });
}
