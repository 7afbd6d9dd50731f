// pith serve: an OpenAI-compatible server.

#include "pith_serve/serve.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "args.h"
#include "chat_options.h"
#include "console.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith_tools/catalogue.h"
#include "serve.h"

namespace pith::cli {
namespace {

struct ServeCommand {
  ModelOptions engine;
  ChatOptions chat;
  ServeOptions serve;
  std::vector<std::string> presets, key_files;
  std::string alias;
  uint64_t memory = 0;
  double drain = 30;
  bool quiet = false, policy_given = false;
};

// Models without a template of their own, such as the demo: they go on with a user's words, and a
// line ends behind everyone else's.
constexpr const char* kPlain =
    "{% for m in messages %}{{ m['content'] }}{% if m['role'] != 'user' %}{{ '\\n' }}{% endif %}"
    "{% endfor %}";

std::string pulled_model() {
  std::string found;
  for (const KnownModel& model : known_models())
    if (found.empty() && pulled_file(model)) found = std::string(model.name);
  if (found.empty())
    throw Error(ErrorCode::kNotFound,
                "no model was named and none is pulled; 'pith pull smollm2' gets a small one, "
                "'pith pull' lists all, and -m takes a folder or a GGUF file");
  return found;
}

/// Without a word about it, a policy of a quarter of the exact cache's bytes.
void choose_policy(ServeCommand& o) {
  if (o.policy_given || o.engine.policy.policy != "exact" || !o.engine.policy.budget.empty() ||
      !o.engine.policy.memory.empty())
    return settle_auto(o.engine);
  o.engine.policy.policy = "auto";
  o.engine.policy.budget = "25%";
  try {
    settle_auto(o.engine, nullptr, {.screens = false});
    o.presets.emplace_back("exact=exact");
  } catch (const Error& error) {
    say(fmt::format("pith: the cache stays exact: {}", error.what()));
    o.engine.policy.policy = "exact";
    o.engine.policy.budget.clear();
  }
}

std::vector<ServeOptions::Preset> read_presets(const std::vector<std::string>& texts) {
  std::vector<ServeOptions::Preset> out;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("--preset {}: give NAME=POLICY, as small='keydiff(budget=25%)+int4'", text));
    out.push_back({text.substr(0, equals), Policy::parse(text.substr(equals + 1))});
  }
  return out;
}

void read_keys(const std::string& file, std::vector<std::string>& keys) {
  std::ifstream in(file);
  if (!in)
    throw Error(ErrorCode::kNotFound, fmt::format("--api-key-file {}: cannot be read", file));
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) keys.push_back(line);
  }
}

std::shared_ptr<const ChatTemplate> chat_template(const ServeCommand& o, const Model& model) {
  try {
    return std::make_shared<ChatTemplate>(
        choose_template(o.engine.model, model.tokenizer(), o.chat));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound || !o.chat.chosen.empty()) throw;
    say("pith: the model has no chat template: it continues what users write "
        "(--chat-template NAME chooses one)");
    return std::make_shared<ChatTemplate>(kPlain, "plain", model.tokenizer());
  }
}

std::string name_of(const ServeCommand& o) {
  if (!o.alias.empty()) return o.alias;
  for (const KnownModel& model : known_models())
    if (const auto file = pulled_file(model); file && file->string() == o.engine.model)
      return std::string(model.name);
  std::filesystem::path path = o.engine.model;
  if (!path.has_filename()) path = path.parent_path();
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

/// Policies of auto's may have a rule a head: a line shows how they begin.
std::string shown(const Policy& policy) {
  const std::string text = policy.to_string();
  constexpr size_t kMost = 90;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "... (whole in /v1/models)";
}

/// The prompt tokens per pass, a power of two, whose time is nearest to what answers that go on can
/// wait for.
size_t measure_chunk(const std::shared_ptr<const Model>& model, StandaloneOptions options) {
  const double wanted = options.device == Device::kCpu ? 0.1 : 0.03;
  constexpr size_t kLeast = 64, kMost = 2048;
  const auto vocabulary = static_cast<size_t>(model->config().vocab);
  size_t best = kLeast;
  double time_of_best = 0;
  const auto off = [&](double seconds) { return std::abs(std::log(seconds / wanted)); };
  for (size_t chunk = kLeast; chunk <= kMost && time_of_best < wanted; chunk *= 2) {
    options.chunk = chunk;
    options.context = 2 * chunk;
    Session session(model, options);
    std::vector<int32_t> tokens(chunk);
    for (size_t i = 0; i < chunk; ++i) tokens[i] = static_cast<int32_t>((i * 31) % vocabulary);
    session.append(tokens);  // memory is got, kernels are chosen
    const auto start = std::chrono::steady_clock::now();
    session.append(tokens);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (time_of_best > 0 && off(seconds) >= off(time_of_best)) break;
    best = chunk;
    time_of_best = seconds;
  }
  say(fmt::format("pith: prompts are read {} tokens at a time, {:.0f} ms each (-ub {} keeps it)",
                  best, 1000 * time_of_best, best));
  return best;
}

void print_start(const Server& server, const ServeCommand& o) {
  say(fmt::format("pith: {} under {}", o.serve.name, shown(o.serve.session.policy)));
  for (const auto& preset : o.serve.presets)
    say(fmt::format("pith: {}:{} under {}", o.serve.name, preset.name, shown(preset.policy)));
  const size_t count = server.conversations();
  say(fmt::format("pith: {} for caches: {} of the whole context",
                  human_bytes(static_cast<double>(server.memory())),
                  count == 0   ? "not one conversation"
                  : count == 1 ? "1 conversation"
                               : fmt::format("{} conversations", count)));
  // Programs that start a server wait for this line.
  say(fmt::format("pith: serving at {} (OpenAI's API at {}/v1); Ctrl-C ends", server.url(),
                  server.url()));
}

/// A dump of this process's memory would hold what users said, and nothing here runs programs. A
/// limit on files (ulimit -f) is a full disk and no reason to end.
void close_in() {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

int run(ServeCommand& o) {
  close_in();
  if (o.engine.model.empty()) o.engine.model = resolve_model(pulled_model()).string();
  choose_policy(o);
  for (const std::string& file : o.key_files) read_keys(file, o.serve.keys);
  o.serve.presets = read_presets(o.presets);
  o.serve.memory = o.memory;
  o.serve.name = name_of(o);
  StandaloneOptions options = session_options(o.engine);
  const auto model = load_model(o.engine);
  if (o.engine.chunk == kMeasuredChunk) options.chunk = measure_chunk(model, options);
  o.serve.session = options;
  const auto chat = chat_template(o, *model);
  options.memory_limit = o.memory;
  options.parallel = std::min<size_t>(o.serve.parallel, 64);
  const auto engine = std::make_shared<Engine>(model, options);
  std::mutex lock;
  if (!o.quiet) {
    o.serve.log = [&lock](const std::string& line) {
      const std::lock_guard guard(lock);
      fmt::print(stderr, "{}\n", line);
    };
  }
  Server server(engine, chat, o.serve);
  print_start(server, o);
  take_time_to_end();
  while (!interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const bool busy = !server.drain(0);
  server.park();  // idle conversations may continue elsewhere from now on
  if (busy) say("pith: answers are finished; Ctrl-C again ends at once");
  if (!server.drain(o.drain)) say("pith: some answers were cut");
  const Server::Parked parked = server.park();
  if (parked.kept > 0) say(fmt::format("pith: {} conversations are on disk", parked.kept));
  if (parked.lost > 0)
    say(fmt::format("pith: {} conversations could not be saved: {}", parked.lost,
                    parked.failure.empty() ? "each is larger than --disk" : parked.failure));
  return 0;
}

void add_network_options(CLI::App& app, ServeCommand& o) {
  constexpr const char* kGroup = "Server";
  ServeOptions& s = o.serve;
  app.add_option("--host", s.address, "Address to listen at")
      ->type_name("ADDRESS")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--port", s.port, "Port; 0 = any that is free")
      ->type_name("PORT")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("-a,--alias", o.alias, "The model's name for clients; default: its file's")
      ->type_name("NAME")
      ->group(kGroup);
  add_repeated(app, "--api-key", s.keys, "A key that clients must send; may be repeated")
      ->envname("PITH_API_KEY")
      ->type_name("KEY")
      ->group(kGroup);
  add_repeated(app, "--api-key-file", o.key_files, "Keys, one per line")
      ->type_name("FILE")
      ->group(kGroup);
  add_repeated(app, "--allow-host", s.hosts,
               "A name under which browsers and proxies may reach it; * = all")
      ->type_name("NAME")
      ->group(kGroup);
  add_repeated(app, "--cors-origin", s.origins, "An origin whose pages may send requests; * = all")
      ->type_name("ORIGIN")
      ->group(kGroup);
  app.add_flag("--insecure", s.insecure, "Listen beyond this machine without a key")->group(kGroup);
  app.add_flag("--any-model", s.any_model, "Take any model's name in requests")->group(kGroup);
  app.add_flag("--strict", s.strict, "Refuse request fields that are not known")->group(kGroup);
  app.add_flag("-q,--quiet", o.quiet, "Do not log requests")->group(kGroup);
}

void add_sharing_options(CLI::App& app, ServeCommand& o) {
  constexpr const char* kGroup = "Sharing";
  ServeOptions& s = o.serve;
  app.add_option("--memory", o.memory, "For all caches, as 8GiB; default: half the machine's")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES")
      ->group(kGroup);
  app.add_option("--parallel", s.parallel, "Answers at once")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--queue", s.queue, "Requests that wait for a turn")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  const auto seconds = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)
        ->check(number_from(0, 1e6))
        ->type_name("SECONDS")
        ->capture_default_str()
        ->group(kGroup);
  };
  seconds("--queue-timeout", s.queue_seconds, "Longest wait in the queue");
  seconds("--drain", o.drain, "To finish answers when the server is ended");
  app.add_option("--prefill-share", s.prefill_share,
                 "Of the clock for reading prompts while answers are written")
      ->check(number_from(0.01, 1))
      ->type_name("SHARE")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--snapshots", s.snapshot_share,
                 "Of the memory for prompts that begin alike; 0 = each is read whole")
      ->check(number_from(0, 1))
      ->type_name("SHARE")
      ->capture_default_str()
      ->group(kGroup);
  add_repeated(app, "--preset", o.presets,
               "Another policy, which clients choose as model MODEL:NAME; may be repeated")
      ->type_name("NAME=POLICY")
      ->group("KV cache");
  app.add_option("--slot-save-path", s.save_folder, "Folder for files of saved sessions")
      ->check(CLI::ExistingDirectory)
      ->type_name("FOLDER")
      ->group(kGroup);
  app.add_flag("--autosave", s.autosave,
               "Idle conversations go to files there, when memory is needed and at the end")
      ->group(kGroup);
  add_repeated(app, "--take-over", s.take_over,
               "Another server's --slot-save-path: when it ends, its conversations continue "
               "here; may be repeated")
      ->type_name("FOLDER")
      ->group(kGroup);
  app.add_option("--disk", s.disk, "For these files, as 8GiB; the oldest go first")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES")
      ->default_str("16GiB")
      ->group(kGroup);
  app.add_option("-n,--predict,--n-predict", s.max_tokens,
                 "Most tokens of an answer, where a request sets none")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
}

}  // namespace

void add_serve(CLI::App& root, Action& action) {
  auto o = std::make_shared<ServeCommand>();
  CLI::App* app = root.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's API");
  add_model_option(*app, o->engine);
  app->get_option("--model")->required(false);
  add_engine_options(*app, o->engine, /*measures_chunk=*/true);
  add_device_option(*app, o->engine);
  add_network_options(*app, *o);
  add_sharing_options(*app, *o);
  app->add_option("--chat-template", o->chat.chosen,
                  "Instead of the model's own template: a built-in name or a file")
      ->type_name("NAME|FILE")
      ->group("Chat");
  add_policy_options(*app, o->engine.policy);
  add_error_probe_options(*app, o->engine);
  add_sampling_options(*app, o->serve.sampling);
  app->footer(
      "Without options: a pulled model at http://127.0.0.1:8080, with a quarter of the\n"
      "cache. Requests are logged on standard error, one line each, without their text.\n\n"
      "Examples:\n"
      "  pith serve\n"
      "  pith serve -m smollm2 --memory 4GiB\n"
      "  pith serve -m smollm2 --kv-policy exact --preset 'small=keydiff(budget=9%)'\n"
      "  curl localhost:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n");
  app->callback([o, app, &action] {
    action = [o, app] {
      o->policy_given = app->count("--kv-policy") > 0;
      return run(*o);
    };
  });
}

}  // namespace pith::cli
