// pith train-dict: dictionaries for the csr codec, trained on the keys and values of a text in
// a model (NeuralDict). Ctrl-C keeps what is finished; the same command continues from
// there.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "core/json_file.h"
#include "core/output_file.h"
#include "engine.h"
#include "pith/error.h"
#include "report.h"
#include "text_input.h"
#include "tools/dictionaries/dict_jobs.h"
#include "tools/dictionaries/kv_rows.h"

namespace pith::cli {
namespace {

struct TrainDictCommand {
  ModelOptions engine;
  TextOptions text;
  std::string out, method = "neural", share = "head";
  int64_t tokens = 32768, piece = 2048, atoms = 256, epochs = 20, batch = 256;
  int64_t key_pairs = 8, key_chunks = 1, value_pairs = 4, value_chunks = 2;
  double rate = 0.015, diversity = 0.1, delta1 = 0.2, delta2 = 1;
  uint64_t seed = 0;
};

DictSettings settings_of(const TrainDictCommand& o) {
  DictSettings s;
  using Method = TrainOptions::Method;
  s.train.method = o.method == "neural"   ? Method::kNeural
                   : o.method == "kmeans" ? Method::kKMeans
                   : o.method == "rows"   ? Method::kRows
                                          : Method::kGaussian;
  s.train.atoms = static_cast<size_t>(o.atoms);
  s.train.epochs = static_cast<size_t>(o.epochs);
  s.train.batch = static_cast<size_t>(o.batch);
  s.train.rate = static_cast<float>(o.rate);
  s.train.diversity = static_cast<float>(o.diversity);
  s.train.seed = o.seed;
  s.keys = {static_cast<size_t>(o.key_pairs), static_cast<size_t>(o.key_chunks)};
  s.values = {static_cast<size_t>(o.value_pairs), static_cast<size_t>(o.value_chunks)};
  s.grouping = {o.delta1, o.delta2};
  s.share_heads = o.share == "layer";
  return s;
}

/// How the file was made; a checkpoint must agree with it.
std::map<std::string, std::string> describe(const TrainDictCommand& o, size_t tokens) {
  return {{"text", std::filesystem::path(o.text.file).filename().string()},
          {"tokens", std::to_string(tokens)},
          {"piece", std::to_string(o.piece)},
          {"method", o.method},
          {"share", o.share},
          {"atoms", std::to_string(o.atoms)},
          {"epochs", std::to_string(o.epochs)},
          {"batch", std::to_string(o.batch)},
          {"rate", fmt::format("{}", o.rate)},
          {"diversity", fmt::format("{}", o.diversity)},
          {"delta1", fmt::format("{}", o.delta1)},
          {"delta2", fmt::format("{}", o.delta2)},
          {"key_pairs", std::to_string(o.key_pairs)},
          {"value_pairs", std::to_string(o.value_pairs)},
          {"key_chunks", std::to_string(o.key_chunks)},
          {"value_chunks", std::to_string(o.value_chunks)},
          {"seed", std::to_string(o.seed)}};
}

void check(const TrainDictCommand& o, const ModelConfig& c) {
  for (int64_t chunks : {o.key_chunks, o.value_chunks})
    if (c.head_dim % (16 * chunks) != 0)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("train-dict: {} chunks of a head_dim of {}; chunks must be multiples "
                              "of 16 channels",
                              chunks, c.head_dim));
}

// A pipe or a device has no size.
uintmax_t written_bytes(const std::string& file) {
  std::error_code none;
  const uintmax_t bytes = std::filesystem::file_size(file, none);
  return none ? 0 : bytes;
}

void print_text(const TrainDictCommand& o, const DictJobs& jobs, double seconds) {
  Table table({"side", "layers", "head", "loss at start", "loss", "of power"}, {0});
  for (const DictJob& job : jobs.jobs()) {
    const TrainResult& r = *job.result;
    table.add({job.side == Side::kKeys ? "keys" : "values",
               fmt::format("{}-{}", job.layers.first, job.layers.last),
               o.share == "layer" ? "all" : std::to_string(job.head),
               fmt::format("{:.5f}", r.losses.front()), fmt::format("{:.5f}", r.losses.back()),
               fmt::format("{:.4f}", r.losses.back() / r.power)});
  }
  write_out(table.text() +
            fmt::format("\nloss: squared error a channel of the rows held out; of power: as a "
                        "share of theirs\n{}Wrote {} ({}) in {}.\n",
                        jobs.resumed() > 0
                            ? fmt::format("{} dictionaries were finished before.\n", jobs.resumed())
                            : "",
                        o.out, human_bytes(static_cast<double>(written_bytes(o.out))),
                        human_seconds(seconds)));
}

void print_report(const TrainDictCommand& o, const DictJobs& jobs, double seconds,
                  const std::map<std::string, std::string>& settings) {
  Json dictionaries = Json::array();
  for (const DictJob& job : jobs.jobs())
    dictionaries.push_back({{"side", job.side == Side::kKeys ? "keys" : "values"},
                            {"first_layer", job.layers.first},
                            {"last_layer", job.layers.last},
                            {"head", job.head},
                            {"losses", job.result->losses},
                            {"power", job.result->power}});
  print_json({{"out", o.out},
              {"bytes", written_bytes(o.out)},
              {"seconds", seconds},
              {"settings", settings},
              {"dictionaries", dictionaries}});
}

int train_dict(const TrainDictCommand& o) {
  const auto start = std::chrono::steady_clock::now();
  check_output(o.out, {o.text.file});
  const auto model = load_model(o.engine);
  const ModelConfig& c = model->config();
  check(o, c);
  std::vector<int32_t> ids = encode_prompt(*model, read_text(o.text), -1);
  if (ids.size() > static_cast<size_t>(o.tokens)) ids.resize(static_cast<size_t>(o.tokens));
  const auto piece = static_cast<size_t>(std::min(o.piece, c.context));
  if (ids.size() < piece)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the text has {} tokens; a dictionary wants {} at least", ids.size(), piece));
  const auto settings = describe(o, ids.size());
  const DictionaryModel about{
      std::filesystem::absolute(o.engine.model).lexically_normal().filename().string(),
      c.fingerprint, static_cast<size_t>(c.layers), static_cast<size_t>(c.kv_heads),
      static_cast<size_t>(c.head_dim)};
  ThreadPool pool(o.engine.threads);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for(o.engine.isa)};
  ProgressBar reading("reading", "tokens", o.engine.json);
  auto read = collect_kv(context, *model, ids, piece, reading.callback());
  reading.finish();
  if (!read) return kExitInterrupted;
  std::vector<LayerKv> kv;
  for (KvRows& layer : *read) kv.push_back({std::move(layer.keys), std::move(layer.values)});

  DictJobs jobs(about, settings_of(o));
  jobs.plan(kv);
  const std::string checkpoint = o.out + ".checkpoint";
  const std::string identity = fmt::format("{:016x} {}", c.fingerprint, Json(settings).dump());
  ProgressBar training("training", "epochs", o.engine.json);
  const bool complete = jobs.run(context, checkpoint, identity, training.callback());
  training.finish();
  if (!complete) {
    fmt::print(stderr, "pith: stopped; {} holds what is finished, and the same command continues\n",
               checkpoint);
    return kExitInterrupted;
  }
  write_dictionary(o.out, about, jobs.sides(), settings);
  std::filesystem::remove(checkpoint);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (o.engine.json)
    print_report(o, jobs, seconds, settings);
  else
    print_text(o, jobs, seconds);
  return 0;
}

void add_training_options(CLI::App& app, TrainDictCommand& o) {
  const auto count = [&](const char* name, int64_t& value, int64_t most, const char* help) {
    app.add_option(name, value, help)
        ->check(CLI::Range(int64_t{1}, most))
        ->type_name("N")
        ->capture_default_str()
        ->group("Training");
  };
  const auto number = [&](const char* name, double& value, double most, const char* help) {
    app.add_option(name, value, help)
        ->check(number_from(0, most))
        ->type_name("X")
        ->capture_default_str()
        ->group("Training");
  };
  const auto choice = [&](const char* name, std::string& value,
                          const std::vector<std::string>& known, const char* help) {
    app.add_option(name, value, help)
        ->check(CLI::IsMember(known))
        ->capture_default_str()
        ->group("Training");
  };
  count("--tokens", o.tokens, int64_t{1} << 30, "Tokens of the text that are read");
  count("--piece", o.piece, int64_t{1} << 20, "Tokens that see each other");
  count("--atoms", o.atoms, 65536, "Atoms of a dictionary");
  choice("--share", o.share, {"head", "layer"},
         "A dictionary for each KV head, or one for all of a layer's");
  choice("--method", o.method, {"neural", "kmeans", "rows", "gaussian"},
         "neural: trained; the others are what training is compared with");
  count("--key-pairs", o.key_pairs, 64, "Pairs of a key's chunk while training");
  count("--key-chunks", o.key_chunks, 64, "Parts of a key");
  count("--value-pairs", o.value_pairs, 64, "Pairs of a value's chunk while training");
  count("--value-chunks", o.value_chunks, 64, "Parts of a value");
  count("--epochs", o.epochs, 100000, "Passes over the rows");
  count("--batch", o.batch, 65536, "Rows of a step");
  number("--rate", o.rate, 1, "Adam's rate, falling linearly to 0");
  number("--diversity", o.diversity, 10, "Share of the term that keeps atoms apart; 0: without");
  number("--delta1", o.delta1, 1, "Most divergence of two layers that share a dictionary");
  number("--delta2", o.delta2, 1e6, "Most divergence along the layers that share one");
  app.add_option("-s,--seed", o.seed, "Seed of the first rows and of the order")
      ->type_name("N")
      ->capture_default_str()
      ->group("Training");
}

}  // namespace

void add_train_dict(CLI::App& root, Action& action) {
  auto o = std::make_shared<TrainDictCommand>();
  CLI::App* app =
      root.add_subcommand("train-dict", "Train dictionaries of the csr codec for a model");
  add_model_option(*app, o->engine);
  add_compute_options(*app, o->engine);
  add_json_option(*app, o->engine.json);
  add_text_options(*app, o->text, "The text");
  app->add_option("-o,--out", o->out, "The file to write")->required()->type_name("FILE");
  add_training_options(*app, *o);
  app->footer(
      "Examples:\n"
      "  pith train-dict -m models/demo -f books.txt --out demo.safetensors\n"
      "  pith run -m models/demo -p 'The ship' \\\n"
      "    --kv-policy 'exact+csr(s=8,dict=demo.safetensors)'\n");
  app->callback([o, &action] { action = [o] { return train_dict(*o); }; });
}

}  // namespace pith::cli
