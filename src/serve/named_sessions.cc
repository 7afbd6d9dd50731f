#include "serve/named_sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>

#include "pith/saved.h"

namespace pith::serve {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
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
  const auto kind = std::filesystem::symlink_status(path).type();
  if (kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::not_found)
    throw wrong(param, "names something that is no file");
  return path;
}

}  // namespace

Refusal no_session(const std::string& id) {
  return {
      404, "session_not_found",
      fmt::format("there is no session '{}' that waits for its next request", id.substr(0, 130))};
}

NamedSessions::NamedSessions(std::shared_ptr<Engine> engine, const ServeOptions& options,
                             const Preparer& preparer,
                             std::shared_ptr<const ConversationFiles> files, Scheduler& scheduler,
                             Metrics& metrics)
    : engine_(std::move(engine)),
      options_(options),
      preparer_(preparer),
      files_(std::move(files)),
      scheduler_(scheduler),
      metrics_(metrics) {}

void NamedSessions::refuse_busy(const std::string& id, const std::string& tenant) {
  if (scheduler_.has_request(id, tenant))
    throw Refusal(
        409, "session_busy",
        fmt::format("the session '{}' has a request that is not answered yet", id.substr(0, 130)));
}

void NamedSessions::add(IdleSession session) {
  const std::span<const int32_t> ids = session.session->token_ids();
  const std::vector<int32_t> tokens(ids.begin(), ids.end());
  scheduler_.call([&] {
    refuse_busy(session.id, session.tenant);
    scheduler_.tree().keep(*session.session, {tokens, {}, session.tenant, session.id});
    scheduler_.hold(std::move(session));
  });
}

template <class Read>
Session NamedSessions::with_room(const SessionOptions& options, size_t tokens, const Read& read) {
  try {
    return read(Session(engine_, options));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
  }
  Task task;
  task.session = options;
  task.prompt.resize(tokens);
  Session session = read(scheduler_.room(task));
  session.reserve(0);  // what its next request takes is that one's to ask for
  return session;
}

IdleSession NamedSessions::look(const std::string& id, const std::string& tenant) {
  IdleSession out;
  scheduler_.call([&] {
    refuse_busy(id, tenant);
    const IdleSession* idle = scheduler_.idle().find(id, tenant);
    if (idle == nullptr) throw no_session(id);
    out = {id, tenant, idle->policy, nullptr, idle->used};
    if (idle->session)
      out.session = std::make_shared<const Session>(idle->session->fork());
    else
      out.file = idle->file;
  });
  return out;
}

IdleSession NamedSessions::copy(const std::string& id, const std::string& who) {
  const std::string tenant = preparer_.prompt_tenant(who, "");
  IdleSession out = look(id, tenant);
  if (out.session) return out;
  const ConversationName name{id, tenant, out.policy, out.used};
  for (const Preset& preset : preparer_.presets())
    if (preset.key == out.policy)
      out.session = std::make_shared<const Session>(
          with_room(preset.session, out.tokens(),
                    [&](Session empty) { return files_->read(std::move(empty), name); }));
  out.file.reset();
  if (!out.session)
    throw Refusal(
        409, "session_on_disk",
        fmt::format("the session '{}' is on disk, under a policy that is no preset's; its "
                    "next request brings it back",
                    id.substr(0, 130)));
  return out;
}

size_t NamedSessions::erase(const std::string& id, const std::string& who) {
  size_t tokens = 0;
  scheduler_.call([&] {
    const std::string tenant = preparer_.prompt_tenant(who, "");
    refuse_busy(id, tenant);
    const IdleSession* idle = scheduler_.idle().find(id, tenant);
    if (idle == nullptr) throw no_session(id);
    tokens = idle->tokens();
    scheduler_.forget(id, tenant);
  });
  return tokens;
}

Json NamedSessions::save(const std::string& id, const std::string& who, const std::string& name,
                         bool replace) {
  const auto path = file_in(options_.save_folder, name, "name");
  if (!replace && std::filesystem::exists(path))
    throw Refusal(409, "file_exists",
                  fmt::format("there is a file '{}' already; name another, or say "
                              "\"replace\": true",
                              name),
                  "name");
  const IdleSession idle = look(id, preparer_.prompt_tenant(who, ""));
  const auto start = Clock::now();  // answers go on meanwhile
  try {
    // A file is copied as it lies: its session may not fit into memory.
    if (idle.session)
      idle.session->save(path, {.replace = replace});
    else
      files_->copy({id, idle.tenant, idle.policy, idle.used}, path, replace);
  } catch (const Error& error) {
    const std::string why = without_folder(error.what(), options_.save_folder);
    if (error.code() == ErrorCode::kIo) throw Refusal(507, "disk_full", why);
    throw Error(error.code(), why);
  }
  const double ms = milliseconds_since(start);
  metrics_.saved(ms / 1000);
  return {{"id", id},
          {"filename", name},
          {"n_saved", idle.tokens()},
          {"n_written", std::filesystem::file_size(path)},
          {"timings", {{"save_ms", ms}}}};
}

Json NamedSessions::restore(const std::string& id, const std::string& who, const std::string& name,
                            const std::string& model) {
  const auto path = file_in(options_.save_folder, name, "name");
  const auto start = Clock::now();
  const Preset& preset = preparer_.preset(model);
  const std::string tenant = preparer_.prompt_tenant(who, "");
  std::shared_ptr<Session> session;
  try {
    session = std::make_shared<Session>(
        with_room(preset.session, read_saved(path).tokens.size(),
                  [&](Session empty) { return Session::restore(std::move(empty), path); }));
  } catch (const Error& error) {
    throw Error(error.code(), without_folder(error.what(), options_.save_folder));
  }
  const size_t tokens = session->tokens();
  add({id, tenant, preset.key, session});
  return {{"id", id},
          {"filename", name},
          {"n_restored", tokens},
          {"n_read", std::filesystem::file_size(path)},
          {"timings", {{"restore_ms", milliseconds_since(start)}}}};
}

}  // namespace pith::serve
