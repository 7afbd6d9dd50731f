#include "serve/session_endpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace pith::serve {
namespace {

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
  Json out{{"id", idle.id}, {"tokens", idle.tokens()}, {"used", idle.used}};
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

}  // namespace

void SessionEndpoints::sessions(Visit& v) {
  Json list = Json::array();
  const std::string tenant = preparer_.prompt_tenant(v.reply->tenant(), "");
  scheduler_.call([&] {
    for (const IdleSession& idle : scheduler_.idle().all())
      if (idle.tenant == tenant) list.push_back(summary(idle));
  });
  v.reply->json({{"object", "list"}, {"data", list}});
}

void SessionEndpoints::one_session(Visit& v) {
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

void SessionEndpoints::change_session(Visit& v) {
  const size_t slash = v.rest.rfind('/');
  const std::string id = v.rest.substr(0, slash);
  const std::string action = slash == std::string::npos ? "" : v.rest.substr(slash + 1);
  const Json body = v.request.body.empty() ? Json::object() : parse_object(v.request.body);
  Fields f(body);
  const std::string who = v.reply->tenant();
  if (id.empty()) throw wrong("", "the path names no session");
  if (action == "save")
    return v.reply->json(named_.save(id, who, f.text("name", 100).value_or(id),
                                     f.boolean("replace").value_or(false)));
  if (action == "restore")
    return v.reply->json(named_.restore(id, who, f.text("name", 100).value_or(id),
                                        f.text("model", 1024).value_or("")));
  if (action != "fork")
    throw Refusal(404, "not_found", "a session takes POST .../fork, .../save and .../restore");
  const std::string to = f.text("id", 128).value_or(random_id());
  if (to.empty()) throw wrong("id", "is empty");
  IdleSession copy = named_.copy(id, who);
  copy.id = to;
  const Json out = summary(copy);
  named_.add(std::move(copy));
  v.reply->json(out);
}

void SessionEndpoints::delete_session(Visit& v) {
  v.reply->json(
      {{"id", v.rest}, {"deleted", true}, {"tokens", named_.erase(v.rest, v.reply->tenant())}});
}

void SessionEndpoints::slots(Visit& v) {
  Json list = Json::array();
  const std::string tenant = preparer_.prompt_tenant(v.reply->tenant(), "");
  scheduler_.call([&] {
    for (size_t i = 0; i < options_.parallel; ++i) {
      const std::string id = fmt::format("slot-{}", i);
      const IdleSession* idle = scheduler_.idle().find(id, tenant);
      list.push_back({{"id", i},
                      {"n_ctx", preparer_.context()},
                      {"is_processing", scheduler_.batch().has(id, tenant)},
                      {"n_past", idle == nullptr ? 0 : idle->tokens()}});
    }
  });
  v.reply->json(list);
}

void SessionEndpoints::change_slot(Visit& v) {
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
    out = named_.save(id, who, f.text("filename", 100).value_or(""), true);
  else if (action == "restore")
    out = named_.restore(id, who, f.text("filename", 100).value_or(""), "");
  else if (action == "erase")
    out = {{"n_erased", named_.erase(id, who)}};
  else
    throw Refusal(400, "invalid_value", "?action= is save, restore or erase");
  out["id_slot"] = std::stoul(v.rest);
  out.erase("id");
  v.reply->json(out);
}

void SessionEndpoints::clear_cache(Visit& v) {
  scheduler_.call([&] { scheduler_.tree().clear(); });
  v.reply->json({{"status", "ok"}});
}

}  // namespace pith::serve
