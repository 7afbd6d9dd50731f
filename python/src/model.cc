// Models and what reads text for them: tokenizers, chat templates, the catalogue.

#include <algorithm>

#include "binding.h"
#include "pith/chat.h"
#include "pith/model.h"
#include "pith/presets.h"
#include "pith/tokenizer.h"
#include "pith_tools/catalogue.h"

namespace pith::python {
namespace {

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

/// Bytes that are no UTF-8 are replaced.
nb::object text_of(const std::string& bytes) {
  return nb::steal(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

void bind_tokenizer(nb::module_& m) {
  nb::class_<Tokenizer>(m, "Tokenizer", "Text to token ids and back.")
      .def_static(
          "load",
          [](const std::filesystem::path& model) {
            return std::shared_ptr<Tokenizer>(load_tokenizer(model));
          },
          "model"_a, "Of a folder or a GGUF file, without the weights.")
      .def(
          "encode",
          [](const Tokenizer& t, const std::string& text, bool parse_special, bool add_bos) {
            Ids ids = unlocked([&] { return t.encode(text, parse_special); });
            return add_bos ? begun(t, std::move(ids)) : ids;
          },
          "text"_a, "parse_special"_a = true, "add_bos"_a = false,
          "Token ids. parse_special: special tokens spelled out in the text become their ids. "
          "add_bos: the token that begins a text comes first, if the model expects one.")
      .def(
          "decode",
          [](const Tokenizer& t, const Ids& ids, bool skip_special) {
            return nb::str(text_of(t.decode(ids, skip_special)));
          },
          "ids"_a, "skip_special"_a = false, "Their text; what is no UTF-8 becomes U+FFFD.")
      .def(
          "decode_bytes",
          [](const Tokenizer& t, const Ids& ids, bool skip_special) {
            return bytes_of(t.decode(ids, skip_special));
          },
          "ids"_a, "skip_special"_a = false)
      .def(
          "piece", [](const Tokenizer& t, int32_t id) { return bytes_of(t.piece(id)); }, "id"_a,
          "The bytes of one token, maybe a part of a character.")
      .def(
          "find", [](const Tokenizer& t, const std::string& token) { return t.find(token); },
          "token"_a, "The id of a token as its file spells it, or None.")
      .def(
          "is_special", [](const Tokenizer& t, int32_t id) { return t.is_special(id); }, "id"_a)
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def_prop_ro("bos", &Tokenizer::bos, "the token that begins a text, or -1")
      .def_prop_ro("add_bos", &Tokenizer::add_bos)
      .def_prop_ro("eos_ids", [](const Tokenizer& t) { return t.eos_ids(); });
}

void bind_config(nb::module_& m) {
  nb::class_<ModelConfig>(m, "ModelConfig", "Shapes and constants of a model.")
      .def_ro("architecture", &ModelConfig::architecture)
      .def_ro("layers", &ModelConfig::layers)
      .def_ro("hidden", &ModelConfig::hidden)
      .def_ro("intermediate", &ModelConfig::intermediate)
      .def_ro("query_heads", &ModelConfig::query_heads)
      .def_ro("kv_heads", &ModelConfig::kv_heads)
      .def_ro("head_dim", &ModelConfig::head_dim)
      .def_ro("vocab", &ModelConfig::vocab)
      .def_ro("context", &ModelConfig::context, "longest position trained for")
      .def_ro("rope_theta", &ModelConfig::rope_theta)
      .def_ro("sliding_window", &ModelConfig::sliding_window)
      .def_ro("bos", &ModelConfig::bos)
      .def_ro("eos", &ModelConfig::eos)
      .def("__repr__", [](const ModelConfig& c) {
        return "ModelConfig(" + c.architecture + ", layers=" + std::to_string(c.layers) +
               ", query_heads=" + std::to_string(c.query_heads) +
               ", kv_heads=" + std::to_string(c.kv_heads) +
               ", head_dim=" + std::to_string(c.head_dim) +
               ", context=" + std::to_string(c.context) + ")";
      });
}

ChatRequest request_of(nb::handle messages, nb::handle tools, bool add_generation_prompt,
                       nb::handle variables) {
  ChatRequest request;
  request.messages = to_json(messages);
  if (!tools.is_none()) request.tools = to_json(tools);
  if (!variables.is_none()) request.variables = to_json(variables);
  request.add_generation_prompt = add_generation_prompt;
  return request;
}

void bind_models(nb::module_& m) {
  nb::class_<LoadedModel>(m, "Model", "The weights of a model; sessions and engines share it.")
      .def_static(
          "load",
          [](const std::string& model, bool check_finite, nb::object progress) {
            Watch watch(std::move(progress));
            LoadedModel loaded;
            loaded.path = resolve_model(model);
            try {
              loaded.model = unlocked(
                  [&] { return Model::load(loaded.path, check_finite, watch.progress()); });
            } catch (...) {
              watch.rethrow();
              throw;
            }
            watch.rethrow();
            return loaded;
          },
          "model"_a, "check_finite"_a = true, "progress"_a = nb::none(),
          "A folder in Hugging Face's layout, a GGUF file, or a name of pith.known_models(). "
          "progress(done, total) may return False to cancel.")
      .def_prop_ro("path", [](const LoadedModel& l) { return l.path; })
      .def_prop_ro("config", [](const LoadedModel& l) { return l.model->config(); })
      .def_prop_ro(
          "tokenizer",
          [](const LoadedModel& l) -> const Tokenizer& { return l.model->tokenizer(); },
          nb::rv_policy::reference_internal)
      .def_prop_ro("weight_bytes", [](const LoadedModel& l) { return l.model->weight_bytes(); })
      .def_prop_ro("fingerprint", [](const LoadedModel& l) { return model_fingerprint(l.path); })
      .def(
          "render_chat",
          [](const LoadedModel& l, nb::handle messages, nb::handle tools, bool generation,
             const std::string& chosen, nb::handle variables) {
            std::string text;
            for (const ChatRun& run :
                 template_of(l, chosen).render(request_of(messages, tools, generation, variables)))
              text += run.text;
            return text;
          },
          "messages"_a, "tools"_a = nb::none(), "add_generation_prompt"_a = true, "template"_a = "",
          "variables"_a = nb::none(),
          "The text that the chat template makes of messages. template: \"\" is the model's own; "
          "else the name of a built-in one or the source of one.")
      .def(
          "encode_chat",
          [](const LoadedModel& l, nb::handle messages, nb::handle tools, bool generation,
             const std::string& chosen, nb::handle variables) {
            return template_of(l, chosen).encode(
                l.model->tokenizer(), request_of(messages, tools, generation, variables));
          },
          "messages"_a, "tools"_a = nb::none(), "add_generation_prompt"_a = true, "template"_a = "",
          "variables"_a = nb::none(),
          "The ids of render_chat's text; special tokens in messages are text.")
      .def_static("supported_architectures", [] {
        std::vector<std::string> names;
        for (const auto name : Model::supported_architectures()) names.emplace_back(name);
        return names;
      });
  m.def("chat_template_names", [] {
    std::vector<std::string> names;
    for (const auto name : ChatTemplate::built_in_names()) names.emplace_back(name);
    return names;
  });
}

void bind_catalogue(nb::module_& m) {
  m.def(
      "known_models",
      [] {
        nb::list all;
        for (const KnownModel& known : known_models()) {
          nb::dict d;
          d["name"] = std::string(known.name), d["summary"] = std::string(known.summary);
          d["bytes"] = known.bytes, d["licence"] = std::string(known.licence);
          d["pulled"] = pulled_file(known).has_value();
          all.append(d);
        }
        return all;
      },
      "The models that pull() fetches.");
  m.def(
      "pull",
      [](const std::string& name, nb::object progress) {
        const KnownModel* known = known_model(name);
        if (known == nullptr)
          throw Error(ErrorCode::kInvalidArgument,
                      name + ": no model of the catalogue; known_models() lists them");
        if (const auto file = pulled_file(*known)) return *file;
        Watch watch(std::move(progress));
        PullOptions options;
        options.progress = watch.progress();
        try {
          return unlocked([&] { return pull_model(*known, models_folder(), options); });
        } catch (...) {
          watch.rethrow();
          throw;
        }
      },
      "name"_a, "progress"_a = nb::none(),
      "Fetches a model of known_models() by pip, once; returns its file.");
}

}  // namespace

Ids begun(const Tokenizer& t, Ids ids) {
  if (t.add_bos() && (ids.empty() || ids[0] != t.bos())) ids.insert(ids.begin(), t.bos());
  return ids;
}

ChatTemplate template_of(const LoadedModel& loaded, const std::string& chosen) {
  const Tokenizer& tokenizer = loaded.model->tokenizer();
  if (chosen.empty()) return ChatTemplate::of(loaded.path, tokenizer);
  const bool is_source = chosen.find("{%") != chosen.npos || chosen.find("{{") != chosen.npos;
  if (is_source) return ChatTemplate(chosen, "template", tokenizer);
  return ChatTemplate::built_in(chosen, tokenizer);
}

void bind_model(nb::module_& m) {
  bind_tokenizer(m);
  bind_config(m);
  bind_models(m);
  bind_catalogue(m);
}

}  // namespace pith::python
