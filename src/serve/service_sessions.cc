// Conversations by name, and llama.cpp's slots, which are conversations named slot-0, slot-1, ...

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "pith/saved.h"
#include "serve/service.h"

namespace pith::serve {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Refusal no_session(const std::string& id) {
  return {
      404, "session_not_found",
      fmt::format("there is no session '{}' that waits for its next request", id.substr(0, 130))};
}

Json ledger_json(const Ledger& l) {
  return {{"payload", l.payload},      {"metadata", l.metadata},   {"shared", l.shared},
          {"slack", l.slack},          {"staging", l.staging},     {"probe", l.probe},
          {"total", l.total_bytes()},  {"rows_kept", l.rows_kept}, {"rows_seen", l.rows_seen},
          {"bits", l.effective_bits()}};
}

size_t exact_bytes(const Session& session) {
  return session.tokens() * session.model().config().bytes_per_token(DType::kF16);
}

Json summary(const IdleSession& idle) {
  const Session& session = *idle.session;
  return {{"id", idle.id},
          {"tokens", session.tokens()},
          {"context", session.context()},
          {"policy", session.options().policy.to_string()},
          {"used", idle.used},
          {"ledger", ledger_json(session.ledger())},
          {"exact_bytes", exact_bytes(session)}};
}

IdleSession* find_idle(Scheduler& scheduler, const std::string& id, const std::string& tenant) {
  for (IdleSession& idle : scheduler.idle())
    if (idle.id == id && idle.tenant == tenant) return &idle;
  return nullptr;
}

/// Of a file in the folder for sessions: it cannot name one elsewhere, nor a hidden one.
std::filesystem::path file_in(const std::filesystem::path& folder, const std::string& name,
                              const char* param) {
  if (folder.empty())
    throw Refusal(400, "unsupported", "sessions are not saved here; start with --slot-save-path");
  const bool plain = !name.empty() && name.size() <= 100 && name[0] != '.' &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return std::isalnum(c) || c == '.' || c == '_' || c == '-';
                     });
  if (!plain)
    throw wrong(param, "must have 1 to 100 letters, digits, '.', '_' or '-', and no dot first");
  std::filesystem::path path = folder / name;
  if (std::filesystem::is_symlink(path)) throw wrong(param, "names a link");
  return path;
}

}  // namespace

void Service::sessions(Visit& v) {
  Json list = Json::array();
  const std::string tenant = preparer_.prompt_tenant(v.reply->tenant(), "");
  scheduler_.call([&] {
    for (const IdleSession& idle : scheduler_.idle())
      if (idle.tenant == tenant) list.push_back(summary(idle));
  });
  v.reply->json({{"object", "list"}, {"data", list}});
}

void Service::one_session(Visit& v) {
  Json out;
  scheduler_.call([&] {
    const IdleSession* idle =
        find_idle(scheduler_, v.rest, preparer_.prompt_tenant(v.reply->tenant(), ""));
    if (idle == nullptr) throw no_session(v.rest);
    const Session& session = *idle->session;
    out = summary(*idle);
    out["describe"] = session.describe_policy();
    Json layers = Json::array();
    const ModelConfig& config = session.model().config();
    for (int l = 0; l < config.layers; ++l) {
      Json heads = Json::array();
      for (int h = 0; h < config.kv_heads; ++h)
        heads.push_back(session.rows(l, h).positions.size());
      layers.push_back(heads);
    }
    out["rows"] = layers;
    Json errors = Json::array();
    for (const AttentionError& e : session.attention_errors())
      errors.push_back(
          {{"layer", e.layer}, {"estimate", e.estimate}, {"low", e.low}, {"high", e.high}});
    out["attention_errors"] = errors;
  });
  v.reply->json(out);
}

void Service::change_session(Visit& v) {
  const size_t slash = v.rest.rfind('/');
  const std::string id = v.rest.substr(0, slash);
  const std::string action = slash == std::string::npos ? "" : v.rest.substr(slash + 1);
  const Json body = v.request.body.empty() ? Json::object() : parse_object(v.request.body);
  Fields f(body);
  const std::string who = v.reply->tenant();
  if (action == "save")
    return v.reply->json(save_session(id, who, f.text("name", 100).value_or(id),
                                      f.boolean("replace").value_or(false)));
  if (action == "restore")
    return v.reply->json(restore_session(id, who, f.text("name", 100).value_or(id),
                                         f.text("model", 1024).value_or("")));
  if (action != "fork")
    throw Refusal(404, "not_found", "a session takes POST .../fork, .../save and .../restore");
  const std::string to = f.text("id", 128).value_or(random_id());
  Json out;
  scheduler_.call([&] {
    const std::string tenant = preparer_.prompt_tenant(who, "");
    IdleSession* idle = find_idle(scheduler_, id, tenant);
    if (idle == nullptr) throw no_session(id);
    IdleSession copy = *idle;
    copy.id = to;
    copy.session = std::make_shared<Session>(idle->session->fork());
    const std::vector<int32_t> tokens(copy.session->token_ids().begin(),
                                      copy.session->token_ids().end());
    scheduler_.tree().keep(*copy.session, {tokens, {}, tenant, to});
    out = summary(copy);
    scheduler_.hold(std::move(copy));
  });
  v.reply->json(out);
}

void Service::delete_session(Visit& v) {
  v.reply->json(
      {{"id", v.rest}, {"deleted", true}, {"tokens", erase_session(v.rest, v.reply->tenant())}});
}

size_t Service::erase_session(const std::string& id, const std::string& who) {
  size_t tokens = 0;
  scheduler_.call([&] {
    const std::string tenant = preparer_.prompt_tenant(who, "");
    const IdleSession* idle = find_idle(scheduler_, id, tenant);
    if (idle == nullptr) throw no_session(id);
    tokens = idle->session->tokens();
    scheduler_.idle().remove_if(
        [&](const IdleSession& other) { return other.id == id && other.tenant == tenant; });
    // Who deletes a conversation wants it gone; a prefix tree cannot drop one alone.
    scheduler_.tree().clear();
  });
  return tokens;
}

Json Service::save_session(const std::string& id, const std::string& who, const std::string& name,
                           bool replace) {
  const auto path = file_in(options_.save_folder, name, "name");
  std::shared_ptr<Session> copy;
  scheduler_.call([&] {
    const IdleSession* idle = find_idle(scheduler_, id, preparer_.prompt_tenant(who, ""));
    if (idle == nullptr) throw no_session(id);
    copy = std::make_shared<Session>(idle->session->fork());
  });
  const auto start = Clock::now();  // answers go on meanwhile
  copy->save(path, {.replace = replace});
  const double ms = milliseconds_since(start);
  metrics_.saved(ms / 1000);
  return {{"id", id},
          {"filename", name},
          {"n_saved", copy->tokens()},
          {"n_written", std::filesystem::file_size(path)},
          {"timings", {{"save_ms", ms}}}};
}

Json Service::restore_session(const std::string& id, const std::string& who,
                              const std::string& name, const std::string& model) {
  const auto path = file_in(options_.save_folder, name, "name");
  const auto start = Clock::now();
  const Preset& preset = preparer_.preset(model);
  const std::string tenant = preparer_.prompt_tenant(who, "");
  auto session = std::make_shared<Session>(Session::restore(engine_, path, preset.session));
  const std::vector<int32_t> tokens(session->token_ids().begin(), session->token_ids().end());
  scheduler_.call([&] {
    scheduler_.tree().keep(*session, {tokens, {}, tenant, id});
    scheduler_.hold({id, tenant, preset.key, session, tenant, std::time(nullptr)});
  });
  return {{"id", id},
          {"filename", name},
          {"n_restored", tokens.size()},
          {"n_read", std::filesystem::file_size(path)},
          {"timings", {{"restore_ms", milliseconds_since(start)}}}};
}

void Service::slots(Visit& v) {
  Json list = Json::array();
  const std::string tenant = preparer_.prompt_tenant(v.reply->tenant(), "");
  scheduler_.call([&] {
    for (size_t i = 0; i < options_.parallel; ++i) {
      const std::string id = fmt::format("slot-{}", i);
      const IdleSession* idle = find_idle(scheduler_, id, tenant);
      list.push_back({{"id", i},
                      {"n_ctx", preparer_.context()},
                      {"is_processing", scheduler_.is_running(id, tenant)},
                      {"n_past", idle == nullptr ? 0 : idle->session->tokens()}});
    }
  });
  v.reply->json(list);
}

void Service::change_slot(Visit& v) {
  const bool number =
      !v.rest.empty() && v.rest.size() < 5 &&
      std::all_of(v.rest.begin(), v.rest.end(), [](unsigned char c) { return std::isdigit(c); });
  if (!number || std::stoul(v.rest) >= options_.parallel)
    throw Refusal(400, "invalid_value", fmt::format("slots are 0 to {}", options_.parallel - 1));
  const std::string id = "slot-" + std::to_string(std::stoul(v.rest)), who = v.reply->tenant();
  const std::string action = v.request.parameter("action");
  const Json body = v.request.body.empty() ? Json::object() : parse_object(v.request.body);
  Fields f(body);
  Json out;
  if (action == "save")
    out = save_session(id, who, f.text("filename", 100).value_or(""), true);
  else if (action == "restore")
    out = restore_session(id, who, f.text("filename", 100).value_or(""), "");
  else if (action == "erase")
    out = {{"n_erased", erase_session(id, who)}};
  else
    throw Refusal(400, "invalid_value", "?action= is save, restore or erase");
  out["id_slot"] = std::stoul(v.rest);
  out.erase("id");
  v.reply->json(out);
}

void Service::clear_cache(Visit& v) {
  scheduler_.call([&] { scheduler_.tree().clear(); });
  v.reply->json({{"status", "ok"}});
}

}  // namespace pith::serve
