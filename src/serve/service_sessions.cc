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

size_t tokens_of(const IdleSession& idle) {
  return idle.session ? idle.session->tokens() : idle.file->tokens;
}

Json summary(const IdleSession& idle) {
  Json out{{"id", idle.id}, {"tokens", tokens_of(idle)}, {"used", idle.used}};
  out["where"] = idle.session ? "memory" : "disk";
  out["disk_bytes"] = idle.file ? idle.file->bytes : 0;
  if (!idle.session) return out;
  const Session& session = *idle.session;
  out.update({{"context", session.context()},
              {"policy", session.options().policy.to_string()},
              {"ledger", ledger_json(session.ledger())},
              {"exact_bytes", exact_bytes(session)}});
  return out;
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
    for (const IdleSession& idle : scheduler_.idle().all())
      if (idle.tenant == tenant) list.push_back(summary(idle));
  });
  v.reply->json({{"object", "list"}, {"data", list}});
}

void Service::one_session(Visit& v) {
  Json out;
  scheduler_.call([&] {
    const IdleSession* idle =
        scheduler_.idle().find(v.rest, preparer_.prompt_tenant(v.reply->tenant(), ""));
    if (idle == nullptr) throw no_session(v.rest);
    out = summary(*idle);
    if (!idle->session) return;
    const Session& session = *idle->session;
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
  IdleSession copy = state_of(id, who);
  copy.id = to;
  const std::vector<int32_t> tokens(copy.session->token_ids().begin(),
                                    copy.session->token_ids().end());
  const Json out = summary(copy);
  scheduler_.call([&] {
    refuse_busy(to, copy.tenant);
    scheduler_.tree().keep(*copy.session, {tokens, {}, copy.tenant, to});
    scheduler_.hold(std::move(copy));
  });
  v.reply->json(out);
}

void Service::refuse_busy(const std::string& id, const std::string& tenant) {
  if (scheduler_.has_request(id, tenant))
    throw Refusal(
        409, "session_busy",
        fmt::format("the session '{}' has a request that is not answered yet", id.substr(0, 130)));
}

IdleSession Service::state_of(const std::string& id, const std::string& who) {
  const std::string tenant = preparer_.prompt_tenant(who, "");
  IdleSession out;
  scheduler_.call([&] {
    refuse_busy(id, tenant);
    const IdleSession* idle = scheduler_.idle().find(id, tenant);
    if (idle == nullptr) throw no_session(id);
    out = {id, tenant, idle->policy, nullptr, idle->used};
    if (idle->session) out.session = std::make_shared<const Session>(idle->session->fork());
  });
  if (out.session) return out;
  for (const Preset& preset : preparer_.presets())
    if (preset.key == out.policy)
      out.session = std::make_shared<const Session>(
          files_->read({engine_, preset.session}, {id, tenant, out.policy, out.used}));
  if (!out.session)
    throw Refusal(
        409, "session_on_disk",
        fmt::format("the session '{}' is on disk, under a policy that is no preset's; its "
                    "next request brings it back",
                    id.substr(0, 130)));
  return out;
}

void Service::delete_session(Visit& v) {
  v.reply->json(
      {{"id", v.rest}, {"deleted", true}, {"tokens", erase_session(v.rest, v.reply->tenant())}});
}

size_t Service::erase_session(const std::string& id, const std::string& who) {
  size_t tokens = 0;
  scheduler_.call([&] {
    const std::string tenant = preparer_.prompt_tenant(who, "");
    refuse_busy(id, tenant);
    const IdleSession* idle = scheduler_.idle().find(id, tenant);
    if (idle == nullptr) throw no_session(id);
    tokens = tokens_of(*idle);
    scheduler_.forget(id, tenant);
  });
  return tokens;
}

Json Service::save_session(const std::string& id, const std::string& who, const std::string& name,
                           bool replace) {
  const auto path = file_in(options_.save_folder, name, "name");
  if (!replace && std::filesystem::exists(path))
    throw Refusal(409, "file_exists",
                  fmt::format("there is a file '{}' already; name another, or say "
                              "\"replace\": true",
                              name),
                  "name");
  const std::shared_ptr<const Session> copy = state_of(id, who).session;
  const auto start = Clock::now();  // answers go on meanwhile
  try {
    copy->save(path, {.replace = replace});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    throw Refusal(507, "disk_full", error.what());
  }
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
    refuse_busy(id, tenant);
    scheduler_.tree().keep(*session, {tokens, {}, tenant, id});
    scheduler_.hold({id, tenant, preset.key, session});
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
      const IdleSession* idle = scheduler_.idle().find(id, tenant);
      list.push_back({{"id", i},
                      {"n_ctx", preparer_.context()},
                      {"is_processing", scheduler_.batch().has(id, tenant)},
                      {"n_past", idle == nullptr ? 0 : tokens_of(*idle)}});
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
