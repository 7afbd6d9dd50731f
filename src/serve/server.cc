// The server as programs see it.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "http/http.h"
#include "pith_serve/serve.h"
#include "serve/service.h"

namespace pith {
namespace {

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

size_t memory_of(const ServeOptions& options) {
  if (options.memory > 0) return options.memory;
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<size_t>(sysconf(_SC_PAGE_SIZE)) / 2;
}

/// Checks that would otherwise fail at the first request.
void check(const Engine& engine, const ServeOptions& o) {
  if (!is_loopback(o.address) && o.keys.empty() && !o.insecure)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--host {} lets others in; give an --api-key, or --insecure if everyone "
                    "who reaches the port may use it",
                    o.address));
  if (o.parallel == 0 || o.prefill_share <= 0 || o.prefill_share > 1)
    throw Error(ErrorCode::kInvalidArgument,
                "--parallel must be 1 or more, --prefill-share above 0 and at most 1");
  for (const std::string& key : o.keys)
    if (key.size() < 8)
      throw Error(ErrorCode::kInvalidArgument, "an API key of fewer than 8 bytes is guessed soon");
  if (o.autosave && o.save_folder.empty())
    throw Error(ErrorCode::kInvalidArgument, "--autosave needs --slot-save-path FOLDER");
  if (!o.take_over.empty() && !o.autosave)
    throw Error(ErrorCode::kInvalidArgument, "--take-over needs --autosave");
  const auto& config = engine.model()->config();
  SessionOptions session = o.session;
  estimate_ledger(config, session, 1, engine.options().device);
  for (const auto& preset : o.presets) {
    session.policy = preset.policy;
    estimate_ledger(config, session, 1, engine.options().device);
  }
}

/// Conversations of the whole context that `memory` bytes take: each asks for its room first.
size_t conversations_in(size_t memory, const std::shared_ptr<Engine>& engine,
                        const SessionOptions& session) {
  Session first(engine, session);
  if (engine->bytes_in_use() + first.room(session.context) > memory) return 0;
  if (!first.try_reserve(session.context)) return 0;
  const Session second(engine, session);
  const size_t held = engine->bytes_in_use() + engine->bytes_reserved();
  return 1 + (memory - std::min(held, memory)) / second.room(session.context);
}

}  // namespace

struct Server::State {
  State(const std::shared_ptr<Engine>& e, std::shared_ptr<const ChatTemplate> chat,
        const ServeOptions& o)
      : engine(e), options(o), memory(memory_of(o)), service(e, std::move(chat), o, memory) {
    http::Options wire;
    wire.address = o.address;
    wire.port = o.port;
    http::Hooks hooks;
    hooks.admit = [this](const http::Request& head) { return service.admit(head); };
    hooks.handle = [this](http::Request request, std::shared_ptr<http::Exchange> exchange) {
      service.handle(std::move(request), std::move(exchange));
    };
    hooks.refuse = [](int status, std::string_view why) {
      serve::Refusal refusal(status, status == 503 ? "too_many_connections" : "bad_request",
                             std::string(why));
      if (status == 503) refusal.retry_after = 1;
      return serve::response_of(refusal);
    };
    http = std::make_unique<http::Server>(wire, std::move(hooks));
  }

  std::shared_ptr<Engine> engine;
  const ServeOptions options;
  const size_t memory;
  serve::Service service;
  std::once_flag asked;  // for the next
  size_t conversations = 0;
  std::unique_ptr<http::Server> http;  // last: its thread calls the service
};

Server::Server(const std::shared_ptr<Engine>& engine, std::shared_ptr<const ChatTemplate> chat,
               const ServeOptions& options) {
  check(*engine, options);
  state_ = std::make_unique<State>(engine, std::move(chat), options);
}

Server::~Server() = default;

uint16_t Server::port() const { return state_->http->port(); }

std::string Server::url() const {
  const std::string& address = state_->options.address;
  const bool six = address.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", six ? "[" : "", address, six ? "]" : "", port());
}

size_t Server::memory() const { return state_->memory; }

size_t Server::conversations() const {
  State& s = *state_;
  std::call_once(s.asked, [&s] {
    SessionOptions whole = s.service.preparer().presets()[0].session;
    whole.context = s.service.preparer().context();
    s.conversations = conversations_in(s.memory, s.engine, whole);
  });
  return s.conversations;
}

Server::Parked Server::park() { return state_->service.scheduler().park(); }

bool Server::drain(double seconds) {
  state_->service.scheduler().drain();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto busy = [&] {
    return state_->service.scheduler().busy() > 0 || state_->http->busy() > 0;
  };
  while (busy() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return !busy();
}

}  // namespace pith
