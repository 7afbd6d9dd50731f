#pragma once
// The OpenAI-compatible HTTP server of `pith serve`, with compressed caches (docs/serving.md). Link
// the library pith_serve.
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
  std::string name = "model";  ///< the model's name for clients
  std::string address = "127.0.0.1";
  uint16_t port = 8080;              ///< 0: any free port
  std::vector<std::string> keys;     ///< API keys; empty: anyone who reaches the port
  bool insecure = false;             ///< allow other addresses than this machine's without a key
  std::vector<std::string> hosts;    ///< accepted names in the Host header; "*": all
  std::vector<std::string> origins;  ///< accepted origins of other pages (CORS)

  SessionOptions session;  ///< of every conversation; `context` counts per conversation
  struct Preset {
    std::string name;  ///< the model NAME:name for clients
    Policy policy;
  };
  std::vector<Preset> presets;  ///< further policies
  SamplingOptions sampling;     ///< the default of requests
  size_t max_tokens = 4096;     ///< of an answer, the default of requests

  size_t parallel = 16;       ///< answers at once
  size_t queue = 256;         ///< requests that wait
  double queue_seconds = 60;  ///< longest wait
  size_t memory = 0;  ///< bytes of all caches and scratch, without weights; 0: half the machine's
  double prefill_share = 0.5;         ///< of the time, for prompts while answers run
  double snapshot_share = 0.5;        ///< of the memory, for beginnings of prompts; 0: none is kept
  std::filesystem::path save_folder;  ///< for files of sessions; empty: none is written
  /// Idle conversations leave memory for files in `save_folder`, where the next server finds them.
  bool autosave = false;
  /// Folders of other servers (their `save_folder`), with autosave: when one of these servers is
  /// about to end, or has ended, its saved conversations continue here.
  std::vector<std::filesystem::path> take_over;
  size_t disk = size_t{16} << 30;  ///< bytes of these files; those used least recently go first
  bool any_model = false;          ///< every model's name means the first
  bool strict = false;             ///< refuse unknown fields of requests
  /// Receives one line of JSON per request, without user's text, on any thread.
  std::function<void(const std::string& line)> log;
};

class Server {
 public:
  /// Listens and answers on its own threads. With a null `chat`, chats are refused. Throws
  /// kInvalidArgument, kUnsupported (an impossible policy), kOutOfMemory (no conversation fits),
  /// kIo (the port).
  Server(const std::shared_ptr<Engine>& engine, std::shared_ptr<const ChatTemplate> chat,
         const ServeOptions& options);
  /// Aborts running answers; call drain() first.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  /// "http://127.0.0.1:8080"
  std::string url() const;
  /// The memory budget, and how many full-context conversations fit under the first policy: found
  /// when first asked, so ask before requests come.
  size_t memory() const;
  size_t conversations() const;
  /// Refuses new requests and waits for running answers, at most `seconds`. Returns false if some
  /// did not finish.
  bool drain(double seconds);
  /// With autosave: writes idle conversations to their files.
  struct Parked {
    size_t kept = 0;      ///< are in files
    size_t lost = 0;      ///< are not
    std::string failure;  ///< why
  };
  Parked park();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pith
