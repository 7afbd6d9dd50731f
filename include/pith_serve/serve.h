#pragma once
// An OpenAI-compatible HTTP server whose conversations live in compressed caches: what `pith serve`
// runs (docs/serving.md). Needs the library pith_serve.
//
//   auto engine = std::make_shared<pith::Engine>(model);
//   pith::Server server(engine, pith::ChatTemplate::of(path, model->tokenizer()), {.name =
//   "demo"});
//   ... server.port() ...
//   server.drain(30);

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pith/chat.h"
#include "pith/engine.h"
#include "pith/generate.h"
#include "pith/session.h"

namespace pith {

struct ServeOptions {
  std::string name = "model";  ///< of the model, as clients ask for it
  std::string address = "127.0.0.1";
  uint16_t port = 8080;              ///< 0: any that is free
  std::vector<std::string> keys;     ///< API keys; none: anyone who reaches the port
  bool insecure = false;             ///< listen beyond this machine without a key
  std::vector<std::string> hosts;    ///< names in a Host header that are this server's; "*": all
  std::vector<std::string> origins;  ///< of pages elsewhere that may ask (CORS)

  SessionOptions session;  ///< of every conversation; `context` is each one's own
  struct Preset {
    std::string name;  ///< clients ask for NAME:name
    Policy policy;
  };
  std::vector<Preset> presets;  ///< other policies beside the session's
  SamplingOptions sampling;     ///< where a request says nothing
  size_t max_tokens = 4096;     ///< of an answer, where a request says nothing

  size_t parallel = 16;  ///< answers at once
  size_t queue = 256;    ///< requests that wait for a turn
  double queue_seconds = 60;
  size_t memory = 0;  ///< bytes of all caches and scratch, weights apart; 0: half the machine's
  double prefill_share = 0.5;         ///< of the clock, for prompts while answers are made
  double snapshot_share = 0.5;        ///< of the memory, for beginnings of prompts; 0: none is kept
  std::filesystem::path save_folder;  ///< of sessions' files; empty: none is written
  bool any_model = false;             ///< any model's name means the first
  bool strict = false;                ///< request fields that are not known are refused
  /// Gets one line of JSON a request, without any text of a user's; on some thread.
  std::function<void(const std::string& line)> log;
};

class Server {
 public:
  /// Listens and answers, on threads of its own. `chat` may be null: then chats are refused. Throws
  /// kInvalidArgument, kUnsupported (a policy that cannot be), kOutOfMemory (not one conversation
  /// fits), kIo (the port).
  Server(const std::shared_ptr<Engine>& engine, std::shared_ptr<const ChatTemplate> chat,
         const ServeOptions& options);
  /// Cuts what still runs; drain() first.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  /// "http://127.0.0.1:8080"
  std::string url() const;
  /// The budget, and how many conversations of the whole context it holds under the first policy.
  size_t memory() const;
  size_t conversations() const;
  /// Refuses what comes from now on, and waits until all answers are out or the time is over.
  /// False: some were not.
  bool drain(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pith
