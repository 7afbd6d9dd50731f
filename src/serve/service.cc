// Routes, refusals before a body is read, and the small answers.

#include "serve/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "pith/tokenizer.h"
#include "pith/version.h"
#include "serve/heap.h"
#include "serve/listener_agents.h"

namespace pith::serve {
namespace {

std::shared_ptr<ConversationFiles> files_of(const ServeOptions& o, const Model& model) {
  if (!o.autosave) return nullptr;
  ConversationFiles::Owners owners;
  for (size_t i = 0; i < o.keys.size(); ++i)
    owners.emplace_back(Guard::name_of_key(i),
                        digest_of(std::as_bytes(std::span(o.keys[i]))).text());
  ConversationFiles::Folders others;
  for (const auto& folder : o.take_over) others.push_back(folder / "idle");
  return std::make_shared<ConversationFiles>(o.save_folder / "idle", o.disk,
                                             model.config().fingerprint, std::move(owners),
                                             std::move(others));
}

SchedulerOptions scheduler_options(const ServeOptions& o, size_t memory,
                                   std::shared_ptr<ConversationFiles> files) {
  SchedulerOptions out;
  out.files = std::move(files);
  out.parallel = o.parallel;
  out.queue = o.queue;
  out.queue_seconds = o.queue_seconds;
  out.memory = memory;
  out.prefill_share = o.prefill_share;
  out.snapshot_bytes =
      static_cast<size_t>(static_cast<double>(memory) * std::clamp(o.snapshot_share, 0.0, 1.0));
  return out;
}

bool takes_more(std::string_view path) { return path.size() > 1 && path.ends_with('/'); }

/// In the form of the API that was asked.
void refuse(Visit& v, const Refusal& refusal) {
  http::Response response = response_of(refusal);
  if (v.request.path.starts_with("/v1/messages")) response.body = messages_error_json(refusal);
  v.reply->send(std::move(response));
}

GuardOptions guard_options(const ServeOptions& o) {
  return {o.address, o.hosts, o.keys, o.origins};
}

}  // namespace

Service::Service(const std::shared_ptr<Engine>& engine, std::shared_ptr<const ChatTemplate> chat,
                 const ServeOptions& options, size_t memory)
    : engine_(engine),
      options_(options),
      guard_(guard_options(options)),
      created_(std::time(nullptr)),
      preparer_(engine, std::move(chat), options),
      metrics_(options.name),
      files_(files_of(options, *engine->model())),
      scheduler_(engine, scheduler_options(options, memory, files_), metrics_),
      workers_(2) {}

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> kRoutes = {
      {"GET", "/", &Service::page},
      {"GET", "/page/", &Service::page},
      {"GET", "/health", &Service::health},
      {"GET", "/v1/health", &Service::health},
      {"GET", "/v1/models", &Service::models},
      {"GET", "/models", &Service::models},
      {"GET", "/v1/models/", &Service::one_model},
      {"POST", "/v1/chat/completions", &Service::chat},
      {"POST", "/chat/completions", &Service::chat},
      {"POST", "/v1/completions", &Service::completions},
      {"POST", "/completions", &Service::completions},
      {"POST", "/infill", &Service::infill},
      {"POST", "/v1/responses", &Service::responses},
      {"POST", "/responses", &Service::responses},
      {"POST", "/v1/messages", &Service::messages},
      {"POST", "/v1/messages/count_tokens", &Service::count_message_tokens},
      {"POST", "/tokenize", &Service::tokenize},
      {"POST", "/detokenize", &Service::detokenize},
      {"POST", "/apply-template", &Service::apply_template},
      {"POST", "/v1/chat/completions/input_tokens", &Service::count_tokens},
      {"GET", "/props", &Service::props},
      {"GET", "/metrics", &Service::metrics},
      {"GET", "/slots", &Service::slots},
      {"POST", "/slots/", &Service::change_slot},
      {"GET", "/v1/pith/status", &Service::status},
      {"GET", "/v1/pith/sessions", &Service::sessions},
      {"GET", "/v1/pith/sessions/", &Service::one_session},
      {"POST", "/v1/pith/sessions/", &Service::change_session},
      {"DELETE", "/v1/pith/sessions/", &Service::delete_session},
      {"POST", "/v1/pith/cache/clear", &Service::clear_cache},
  };
  return kRoutes;
}

const Service::Route* Service::find(const http::Request& request, bool* other_method) const {
  for (const Route& route : routes()) {
    const std::string_view path = route.path;
    const bool fits = takes_more(path)
                          ? request.path.starts_with(path) && request.path.size() > path.size()
                          : request.path == path;
    if (!fits) continue;
    const bool head = request.method == "HEAD" && std::string_view("GET") == route.method;
    if (head || request.method == route.method) return &route;
    if (other_method != nullptr) *other_method = true;
  }
  return nullptr;
}

std::vector<http::Header> Service::cors(const http::Request& request) const {
  const auto origin = guard_.allowed_origin(request);
  if (!origin) return {};
  return {{"Access-Control-Allow-Origin", *origin}, {"Vary", "Origin"}};
}

std::optional<http::Response> Service::admit(const http::Request& head) const {
  const auto with_cors = [&](http::Response response) {
    for (http::Header& header : cors(head)) response.headers.push_back(std::move(header));
    return response;
  };
  if (const auto refusal = guard_.refuse(head)) return with_cors(response_of(*refusal));
  if (head.method == "OPTIONS") {
    http::Response answer{204, {}, ""};
    if (!cors(head).empty())
      answer.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                        {"Access-Control-Allow-Headers", "Authorization, Content-Type"}};
    return with_cors(answer);
  }
  bool other_method = false;
  const Route* route = find(head, &other_method);
  if (route == nullptr)
    return with_cors(response_of(
        other_method ? Refusal(405, "method_not_allowed",
                               fmt::format("{} does not take {}", head.path, head.method))
                     : Refusal(404, "not_found", fmt::format("there is no {}", head.path))));
  if (head.method != "POST") return std::nullopt;
  if (const std::string* coding = head.find("Content-Encoding"); coding && *coding != "identity")
    return with_cors(
        response_of(Refusal(415, "unsupported_media_type", "a body may not be compressed")));
  const std::string* type = head.find("Content-Type");
  if (type == nullptr || !type->starts_with("application/json"))
    return with_cors(response_of(
        Refusal(415, "unsupported_media_type",
                "a body must be JSON and say so: -H 'Content-Type: application/json'")));
  return std::nullopt;
}

void Service::handle(http::Request request, std::shared_ptr<http::Exchange> exchange) {
  const Route* route = find(request);
  const std::string_view path = route->path;
  auto visit = std::make_shared<Visit>();
  visit->reply = std::make_shared<Reply>(std::move(exchange), request, guard_.tenant(request),
                                         cors(request), options_.log);
  if (takes_more(path)) visit->rest = request.path.substr(path.size());
  visit->request = std::move(request);
  const auto run = [this, route, visit] {
    try {
      (this->*route->handler)(*visit);
    } catch (const Refusal& refusal) {
      refuse(*visit, refusal);
    } catch (const Error& error) {
      refuse(*visit, refusal_of(error));
    } catch (const std::bad_alloc&) {
      visit->reply->refuse(Refusal(503, "out_of_memory", "the machine has no memory left"));
    } catch (const std::exception& error) {
      Refusal refusal(500, "internal", fmt::format("{} (a bug of pith's)", error.what()));
      refusal.senseless = true;
      visit->reply->refuse(refusal);
    }
  };
  // Probes come every few seconds and must not wait behind long prompts.
  route->handler == &Service::health ? run() : workers_.add(run);
}

GateOptions Service::gate_options() const {
  return {options_.sampling, preparer_.tokenizer().vocab_size(), preparer_.context(),
          options_.strict};
}

void Service::health(Visit& v) {
  if (scheduler_.draining()) throw Refusal(503, "draining", "the server is about to end");
  v.reply->send(json_response(R"({"status":"ok"})"));
}

Json Service::model_json(const Preset& preset) const {
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

void Service::models(Visit& v) {
  Json list = Json::array();
  for (const Preset& preset : preparer_.presets()) list.push_back(model_json(preset));
  v.reply->json({{"object", "list"}, {"data", list}});
}

void Service::one_model(Visit& v) {
  const std::string id = v.rest;
  const Preset& preset = preparer_.preset(id);
  Json json = model_json(preset);
  v.reply->json(json);
}

void Service::props(Visit& v) {
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

void Service::metrics(Visit& v) {
  Gauges now = scheduler_.gauges();
  now.heap = heap_bytes();
  v.reply->send(
      {200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, metrics_.text(now)});
}

}  // namespace pith::serve
