#include "serve/model_endpoints.h"

#include <ctime>
#include <utility>

#include "pith/version.h"

namespace pith::serve {

ModelEndpoints::ModelEndpoints(std::shared_ptr<Engine> engine, const ServeOptions& options,
                               const Preparer& preparer)
    : engine_(std::move(engine)),
      options_(options),
      preparer_(preparer),
      created_(std::time(nullptr)) {}

Json ModelEndpoints::model_json(const Preset& preset) const {
  const ModelConfig& config = engine_->model()->config();
  const Ledger cost =
      estimate_ledger(config, preset.session, preparer_.context(), engine_->options().device);
  return {{"id", preset.id},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "pith"},
          {"max_model_len", preparer_.context()},
          {"meta",
           {{"n_ctx_train", config.context},
            {"n_vocab", config.vocab},
            {"n_embd", config.hidden},
            {"size", engine_->model()->weight_bytes()}}},
          {"pith",
           {{"policy", preset.session.policy.to_string()},
            {"context", preparer_.context()},
            {"bytes_worst_case", cost.total_bytes()},
            {"bits", cost.effective_bits()}}}};
}

void ModelEndpoints::models(Visit& v) {
  Json list = Json::array();
  for (const Preset& preset : preparer_.presets()) list.push_back(model_json(preset));
  v.reply->json({{"object", "list"}, {"data", list}});
}

void ModelEndpoints::one_model(Visit& v) {
  const std::string id = v.rest;
  const Preset& preset = preparer_.preset(id);
  Json json = model_json(preset);
  v.reply->json(json);
}

void ModelEndpoints::props(Visit& v) {
  v.reply->json({{"default_generation_settings",
                  {{"n_ctx", preparer_.context()},
                   {"params",
                    {{"temperature", options_.sampling.temperature},
                     {"top_k", options_.sampling.top_k},
                     {"top_p", options_.sampling.top_p},
                     {"min_p", options_.sampling.min_p}}}}},
                 {"total_slots", options_.parallel},
                 {"model_path", options_.name},
                 {"chat_template", preparer_.chat() ? preparer_.chat()->name() : ""},
                 {"build_info", "pith " PITH_VERSION},
                 {"pith",
                  {{"chunk", engine_->options().chunk},
                   {"prefill_share", options_.prefill_share},
                   {"queue", options_.queue},
                   {"queue_seconds", options_.queue_seconds}}}});
}

}  // namespace pith::serve
