#include "serve/service.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/tokenizer.h"
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

GateOptions gate_options(const ServeOptions& o, const Preparer& preparer) {
  return {o.sampling, preparer.tokenizer().vocab_size(), preparer.context(), o.strict};
}

GuardOptions guard_options(const ServeOptions& o) {
  return {o.address, o.hosts, o.keys, o.origins};
}

}  // namespace

Service::Service(const std::shared_ptr<Engine>& engine, std::shared_ptr<const ChatTemplate> chat,
                 const ServeOptions& options, size_t memory)
    : options_(options),
      guard_(guard_options(options)),
      preparer_(engine, std::move(chat), options),
      metrics_(options.name),
      files_(files_of(options, *engine->model())),
      scheduler_(engine, scheduler_options(options, memory, files_), metrics_),
      answers_(preparer_, gate_options(options, preparer_), scheduler_),
      tokens_(preparer_, gate_options(options, preparer_)),
      models_(engine, options_, preparer_),
      status_(scheduler_, metrics_),
      named_(engine, options_, preparer_, files_, scheduler_, metrics_),
      sessions_(options_, preparer_, scheduler_, named_),
      routes_(all_routes()),
      workers_(2) {}

std::vector<Service::Route> Service::all_routes() {
  const auto by = [](auto& endpoints, auto handler) {
    return [&endpoints, handler](Visit& v) { (endpoints.*handler)(v); };
  };
  using A = AnswerEndpoints;
  using M = ModelEndpoints;
  using N = SessionEndpoints;
  using S = StatusEndpoints;
  using T = TokenEndpoints;
  // Probes come every few seconds and must not wait behind long prompts.
  constexpr bool kAtOnce = true;
  return {
      {"GET", "/", by(status_, &S::page)},
      {"GET", "/page/", by(status_, &S::page)},
      {"GET", "/health", by(status_, &S::health), kAtOnce},
      {"GET", "/v1/health", by(status_, &S::health), kAtOnce},
      {"GET", "/v1/models", by(models_, &M::models)},
      {"GET", "/models", by(models_, &M::models)},
      {"GET", "/v1/models/", by(models_, &M::one_model)},
      {"POST", "/v1/chat/completions", by(answers_, &A::chat)},
      {"POST", "/chat/completions", by(answers_, &A::chat)},
      {"POST", "/v1/completions", by(answers_, &A::completions)},
      {"POST", "/completions", by(answers_, &A::completions)},
      {"POST", "/infill", by(answers_, &A::infill)},
      {"POST", "/v1/responses", by(answers_, &A::responses)},
      {"POST", "/responses", by(answers_, &A::responses)},
      {"POST", "/v1/messages", by(answers_, &A::messages)},
      {"POST", "/v1/messages/count_tokens", by(tokens_, &T::count_message_tokens)},
      {"POST", "/tokenize", by(tokens_, &T::tokenize)},
      {"POST", "/detokenize", by(tokens_, &T::detokenize)},
      {"POST", "/apply-template", by(tokens_, &T::apply_template)},
      {"POST", "/v1/chat/completions/input_tokens", by(tokens_, &T::count_tokens)},
      {"GET", "/props", by(models_, &M::props)},
      {"GET", "/metrics", by(status_, &S::metrics)},
      {"GET", "/slots", by(sessions_, &N::slots)},
      {"POST", "/slots/", by(sessions_, &N::change_slot)},
      {"GET", "/v1/pith/status", by(status_, &S::status)},
      {"GET", "/v1/pith/sessions", by(sessions_, &N::sessions)},
      {"GET", "/v1/pith/sessions/", by(sessions_, &N::one_session)},
      {"POST", "/v1/pith/sessions/", by(sessions_, &N::change_session)},
      {"DELETE", "/v1/pith/sessions/", by(sessions_, &N::delete_session)},
      {"POST", "/v1/pith/cache/clear", by(sessions_, &N::clear_cache)},
  };
}

const Service::Route* Service::find(const http::Request& request, bool* other_method) const {
  for (const Route& route : routes_) {
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
      route->handler(*visit);
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
  route->at_once ? run() : workers_.add(run);
}

}  // namespace pith::serve
