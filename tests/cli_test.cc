// The program as a person runs it: every subcommand with the demo model, and every kind of bad
// input with its message and exit status.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "cli_harness.h"
#include "core/safetensors.h"
#include "paths.h"
#include "pith/policy.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli;
using test::kModel;
using test::read;
using test::Result;
using test::write;

TEST_F(Cli, HelpIsThereForEveryCommand) {
  const auto narrow = [&](const std::vector<std::string>& arguments) {
    const Result r = run(arguments);
    EXPECT_EQ(r.status, 0);
    for (size_t at = 0, end = 0; at < r.out.size(); at = end + 1) {
      end = r.out.find('\n', at);
      EXPECT_LE(end - at, 80u) << arguments[0] << ": " << r.out.substr(at, end - at);
    }
    EXPECT_GT(r.out.size(), 200u) << arguments[0];
  };
  for (const auto& [command, below] :
       std::initializer_list<std::pair<const char*, const char*>>{{"bench", "select"},
                                                                  {"eval", "ppl"},
                                                                  {"eval", "tasks"},
                                                                  {"eval", "error-probe"},
                                                                  {"session", "info"},
                                                                  {"session", "verify"},
                                                                  {"session", "tokens"}})
    narrow({command, below, "--help"});
  narrow({"pull"});
  const Result top = run({"--help"});
  EXPECT_EQ(top.status, 0);
  for (const char* command :
       {"run",      "inspect", "policies",  "bench",     "tokenize", "logits",     "attend",
        "quantize", "tune",    "demo",      "probe",     "eval",     "completion", "chat",
        "ask",      "serve",   "pull",      "list",      "rm",       "ps",         "template",
        "session",  "report",  "reproduce", "train-dict"}) {
    EXPECT_NE(top.out.find(command), std::string::npos) << command;
    narrow({command, "--help"});
  }
  // As a report of a fault needs it; the commit only in a checkout.
  EXPECT_TRUE(std::regex_match(run({"--version"}).out,
                               std::regex("pith 0\\.1\\.0( \\(commit [0-9a-f]{8}\\))?\n"
                                          "CPU kernels: [a-z0-9_, ]*scalar; CUDA: (yes|no)\n")));
}

TEST_F(Cli, RunCompletesAPromptAndTheSeedDecides) {
  const std::vector<std::string> base{"run", "-m", kModel, "-p", "The ship lay at anchor",
                                      "-n",  "16"};
  auto with = [&](std::vector<std::string> more) {
    auto all = base;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  const Result one = with({"-s", "7"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_TRUE(one.out.starts_with("The ship lay at anchor"));
  EXPECT_NE(one.err.find("policy"), std::string::npos) << "statistics";
  EXPECT_EQ(with({"-s", "7"}).out, one.out);
  EXPECT_NE(with({"-s", "8"}).out, one.out);
  EXPECT_EQ(with({"-s", "7", "-t", "1"}).out, one.out) << "threads change nothing";

  const Result object = with({"--temp", "0", "--json", "-ctk", "bf16", "-ctv", "f32"});
  const json j = json::parse(object.out);
  EXPECT_EQ(j["tokens"].size(), 16u);
  EXPECT_NE(object.out.find("k:bf16"), std::string::npos) << object.out;
}

TEST_F(Cli, ABuildWithoutCudaSaysHowToMakeOne) {
  if (read(build_dir() / "CMakeCache.txt").find("PITH_CUDA:BOOL=ON") != std::string::npos)
    GTEST_SKIP() << "this build has CUDA";
  const std::string text = folder_ / "text.txt";
  write(text, "The ship lay at anchor and waited for the tide that would take her out.");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"run", "-p", "x"},
                                                  {"bench"},
                                                  {"demo"},
                                                  {"eval", "ppl", "-f", text},
                                                  {"eval", "tasks", "-c", "256"},
                                                  {"logits", "--ids", "1", "-o", "x"}}) {
    auto all = command;
    all.insert(all.end(), {"-m", kModel, "--device", "cuda"});
    const Result r = run(all);
    EXPECT_EQ(r.status, 13) << command[0];
    EXPECT_NE(r.err.find("cmake --preset cuda"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("--device cpu"), std::string::npos) << r.err;
    EXPECT_EQ(r.out, "");
  }
  EXPECT_EQ(run({"run", "-m", kModel, "-p", "x", "-n", "1", "--device", "cpu"}).status, 0);
}

TEST_F(Cli, RunReadsFilesAndPipesAndStopsAtStrings) {
  write(folder_ / "prompt.txt", "One two three");
  const auto options = std::vector<std::string>{"-n", "8", "--temp", "0", "--no-display-prompt"};
  auto call = [&](std::vector<std::string> how, const std::string& input = "") {
    how.insert(how.begin(), {"run", "-m", kModel});
    how.insert(how.end(), options.begin(), options.end());
    return run(how, input);
  };
  const Result text = call({"-p", "One two three"});
  EXPECT_EQ(call({"-f", (folder_ / "prompt.txt").string()}).out, text.out);
  EXPECT_EQ(call({"-f", "-"}, "One two three").out, text.out);
  const std::string stop = text.out.substr(3, 4);
  const Result stopped = call({"-p", "One two three", "-r", stop});
  EXPECT_EQ(stopped.out.find(stop), std::string::npos) << stopped.out;
  EXPECT_TRUE(text.out.starts_with(stopped.out.substr(0, stopped.out.size() - 1)));
}

TEST_F(Cli, AConversationGoesOnOnTheSameCache) {
  const Result r = run({"run", "-m", kModel, "-i", "-n", "8", "--temp", "0"},
                       "Once upon a time\n/stats\nand then he\n/rows\n/nonsense\n/quit\n");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE((r.out + r.err).find("KV"), std::string::npos);
  EXPECT_NE((r.out + r.err).find("/help"), std::string::npos) << "an unknown command says so";
}

TEST_F(Cli, CtrlCKeepsThePartialAnswerAndItsStatistics) {
  const pid_t pid = start({"run", "-m", kModel, "-p", "The ship", "-n", "1000000", "-c", "2000000",
                           "--ignore-eos", "--kv-policy", "local(window=64)"});
  for (int i = 0; i < 1200 && fs::file_size(folder_ / "out") < 100; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  kill(pid, SIGINT);
  const Result r = finish(pid);
  EXPECT_EQ(r.status, 130);
  EXPECT_GT(r.out.size(), 100u);
  EXPECT_NE(r.err.find("until Ctrl-C"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("tokens/s"), std::string::npos) << r.err;
}

TEST_F(Cli, ACodecThatWouldCodeNothingIsWarnedOf) {
  const auto err = [&](const std::string& policy) {
    return run({"run", "-m", kModel, "-p", "The ship", "-n", "1", "-q", "--kv-policy", policy}).err;
  };
  for (const char* exact : {"streaming_llm", "local(window=64)+bf16", "exact+int4"})
    EXPECT_EQ(err(exact), "") << exact;
  EXPECT_NE(err("streaming_llm+int4").find("'int4' codes no row beside 'streaming_llm'"),
            std::string::npos);
  EXPECT_NE(
      err("exact;layers=1:local(window=64)+v:kivi").find("'kivi' codes no row beside 'local'"),
      std::string::npos);
}

TEST_F(Cli, AContextBeyondTheModelsIsWarnedOf) {
  const auto err = [&](const std::string& context) {
    return run({"run", "-m", kModel, "-p", "The ship", "-n", "1", "-q", "-c", context}).err;
  };
  EXPECT_EQ(err("8192"), "");
  EXPECT_NE(err("8193").find("warning: -c 8193 is more than the 8192 tokens"), std::string::npos);
}

TEST_F(Cli, InspectSaysWhatAPolicyCosts) {
  const json j = json::parse(
      run({"inspect", "-m", kModel, "--kv-policy", "streaming_llm(window=508)", "--json"}).out);
  EXPECT_NE(j.dump().find("LlamaForCausalLM"), std::string::npos);
  // 8 layers * 2 heads * 512 rows * 2 * 64 numbers of 2 bytes.
  EXPECT_NE(j.dump().find("2097152"), std::string::npos) << j.dump();
  const std::string with = run({"inspect", "-m", kModel, "--kv-policy", "uniform(budget=64)",
                                "--protect", "0:100,200:210"})
                               .out;
  EXPECT_NE(with.find("[protected 4:100,200:210]"), std::string::npos) << with;
  EXPECT_NE(run({"policies"}).out.find("streaming_llm"), std::string::npos);
  EXPECT_FALSE(json::parse(run({"policies", "--json"}).out).empty());
}

TEST_F(Cli, InspectSizesAModelByItsConfigAlone) {
  const fs::path config = folder_ / "config.json";
  fs::copy_file(fs::path(kModel) / "config.json", config);
  const auto sizes = [&](const std::string& model) {
    const Result r =
        run({"inspect", "-m", model, "-c", "4096", "--kv-policy", "exact+int4", "--json"});
    EXPECT_EQ(r.status, 0) << r.err;
    return json::parse(r.out);
  };
  const json whole = sizes(kModel), bare = sizes(config.string());
  EXPECT_EQ(bare["parameters"], whole["parameters"]);
  EXPECT_TRUE(bare["weight_bytes"].is_null());
  ASSERT_EQ(bare["policy"]["costs"].size(), whole["policy"]["costs"].size());
  EXPECT_EQ(bare["policy"]["costs"].back()["bytes"]["cache"],
            whole["policy"]["costs"].back()["bytes"]["cache"]);
  const Result text = run({"inspect", "-m", folder_.string(), "-c", "4096"});
  EXPECT_NE(text.out.find("there are no weights here"), std::string::npos) << text.out;
  EXPECT_NE(run({"inspect", "-m", config.string(), "--kv-policy", "exact+foo"}).status, 0);
}

TEST_F(Cli, TokenizeGoesThereAndBack) {
  const json j = json::parse(run({"tokenize", "-m", kModel, "-p", "The ship", "--json"}).out);
  const auto ids = j["ids"].get<std::vector<int>>();
  ASSERT_FALSE(ids.empty());
  std::string list;
  for (int id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
  EXPECT_NE(run({"tokenize", "-m", kModel, "--ids", list}).out.find("The ship"), std::string::npos);
}

TEST_F(Cli, LogitsAreTheSameForTextAndIds) {
  const std::string a = folder_ / "a.safetensors", b = folder_ / "b.safetensors";
  const Result text =
      run({"logits", "-m", kModel, "-p", "The ship lay at anchor", "--out", a, "--json"});
  ASSERT_EQ(text.status, 0) << text.err;
  const json ids =
      json::parse(run({"tokenize", "-m", kModel, "-p", "The ship lay at anchor", "--json"}).out);
  write(folder_ / "ids.json", ids["ids"].dump());
  const Result by_id = run({"logits", "-m", kModel, "--ids", folder_ / "ids.json", "--out", b});
  ASSERT_EQ(by_id.status, 0) << by_id.err;
  EXPECT_TRUE(read(a) == read(b));
  EXPECT_GE(read(a).size(), ids["ids"].size() * 8192 * 4);
}

TEST_F(Cli, AttendGivesTheSoftmaxOfItsTensors) {
  // One KV head, two query heads, three rows, one query a head; by hand in double.
  constexpr int kH = 2, kT = 3, kD = 16;
  std::vector<float> q(kH * kD), k(kT * kD), v(kT * kD);
  for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(static_cast<float>(i));
  for (size_t i = 0; i < k.size(); ++i) k[i] = std::cos(static_cast<float>(3 * i));
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::sin(static_cast<float>(7 * i) + 1);
  const auto bytes = [](const std::vector<float>& x) {
    return std::string(reinterpret_cast<const char*>(x.data()), x.size() * 4);
  };
  const std::string header = R"({"q":{"dtype":"F32","shape":[2,1,16],"data_offsets":[0,128]},)"
                             R"("k":{"dtype":"F32","shape":[1,3,16],"data_offsets":[128,320]},)"
                             R"("v":{"dtype":"F32","shape":[1,3,16],"data_offsets":[320,512]}})";
  const uint64_t length = header.size();
  write(folder_ / "in.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) +
                                        header + bytes(q) + bytes(k) + bytes(v));
  const std::string out = folder_ / "out.safetensors";
  const Result r = run({"attend", "--tensors", folder_ / "in.safetensors", "--policy", "exact+f32",
                        "--seed", "1", "--out", out, "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("effective_bits"), std::string::npos) << r.out;
  const SafeTensors file = SafeTensors::open(out);
  const auto* got = reinterpret_cast<const float*>(file.at("out").data);
  for (int h = 0; h < kH; ++h) {
    double p[kT], sum = 0;
    for (int t = 0; t < kT; ++t) {
      double s = 0;
      for (int c = 0; c < kD; ++c) s += double{q[h * kD + c]} * k[t * kD + c];
      sum += p[t] = std::exp(s / 4);
    }
    for (int c = 0; c < kD; ++c) {
      double expected = 0;
      for (int t = 0; t < kT; ++t) expected += p[t] / sum * v[t * kD + c];
      EXPECT_NEAR(got[h * kD + c], expected, 1e-5);
    }
  }
  const auto* rows = reinterpret_cast<const int64_t*>(file.at("rows.0").data);
  EXPECT_EQ(rows[2], 2);
  EXPECT_EQ(reinterpret_cast<const float*>(file.at("log_weight.0").data)[1], 0.0f);
  EXPECT_EQ(file.find("role.0"), nullptr) << "every row is in both sums";
  refused({"attend", "--tensors", folder_ / "in.safetensors", "--policy", "exact", "--causal",
           "--out", out},
          10, "causal");
  refused({"attend", "--tensors", folder_ / "in.safetensors", "--policy",
           "streaming_llm(rope=cache)", "--out", out},
          13, "--rope-theta");
}

TEST_F(Cli, AttendSaysWhichSumsARowIsIn) {
  constexpr size_t kT = 600, kD = 16;
  std::string numbers;
  for (size_t i = 0; i < (1 + 2 * kT) * kD; ++i) {
    const auto x = static_cast<float>(std::sin(0.37 * static_cast<double>(i * i % 1009)));
    numbers.append(reinterpret_cast<const char*>(&x), sizeof(x));
  }
  const std::string header =
      R"({"q":{"dtype":"F32","shape":[1,1,16],"data_offsets":[0,64]},)"
      R"("k":{"dtype":"F32","shape":[1,600,16],"data_offsets":[64,38464]},)"
      R"("v":{"dtype":"F32","shape":[1,600,16],"data_offsets":[38464,76864]}})";
  const uint64_t length = header.size();
  write(folder_ / "in.safetensors",
        std::string(reinterpret_cast<const char*>(&length), 8) + header + numbers);
  const std::string out = folder_ / "out.safetensors";
  const Result r = run({"attend", "--tensors", folder_ / "in.safetensors", "--policy",
                        "balancekv(mode=stream,b=32),window=32", "--out", out});
  ASSERT_EQ(r.status, 0) << r.err;
  const SafeTensors file = SafeTensors::open(out);
  const auto& roles = file.at("role.0");
  ASSERT_EQ(roles.shape, file.at("rows.0").shape);
  const auto* role = static_cast<const uint8_t*>(static_cast<const void*>(roles.data));
  size_t counts[3] = {};
  for (size_t i = 0; i < roles.shape[0]; ++i) {
    ASSERT_LE(role[i], 2);
    ++counts[role[i]];
  }
  EXPECT_GT(counts[0], 31u) << "the window's rows are in both sums";
  EXPECT_GT(counts[1], 0u);
  EXPECT_GT(counts[2], 0u);
}

TEST_F(Cli, BenchChecksAndCounts) {
  const Result r = run({"bench", "-m", kModel, "-d", "0,64", "-p", "32", "-n", "4", "-r", "1",
                        "--kv-policy", "exact", "--kv-policy", "local(window=32)", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["lines"].size(), 4u);
  EXPECT_GT(j["read_bytes_per_second"].get<double>(), 1e9);
  EXPECT_LT(j["largest_difference_to_scalar"].get<double>(), 1e-3);
  EXPECT_GT(j["lines"][1]["decode_tokens_per_second"]["median"].get<double>(), 0);
}

TEST_F(Cli, DemoFindsFactsAndItsNullControlIsZero) {
  const Result r = run({"demo", "-m", kModel, "--tokens", "1200", "--facts", "4", "--rows", "256",
                        "--runs", "1", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_LT(j["null_control_kl"].get<double>(), 1e-6);
  EXPECT_GE(j["policies"][0]["right_mean"].get<double>(), 3);
  EXPECT_GT(j["policies"][3]["kl_mean"].get<double>(), 1e-3) << "compression changes something";
  for (const char* system : {"express(", "balancekv(", "buzz(", "qjl", "csr(", "int4"}) {
    EXPECT_NE(r.out.find(system), std::string::npos) << system;
  }
}

TEST_F(Cli, CompletionNamesTheCommands) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Result r = run({"completion", shell});
    EXPECT_EQ(r.status, 0);
    EXPECT_NE(r.out.find("inspect"), std::string::npos);
    EXPECT_NE(r.out.find("kv-policy"), std::string::npos);
  }
}

TEST_F(Cli, BadInputIsRefusedWithAReason) {
  const auto run_with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", "-m", kModel});
    return more;
  };
  refused({"run", "-m", "/nowhere", "-p", "x"}, 11, "/nowhere");
  refused(run_with({"-p", ""}), 10, "the prompt is empty");
  refused(run_with({"-p", "x", "--kv-policy", "exakt"}), 10, "did you mean 'exact'?");
  refused(run_with({"-p", "x", "--kv-policy", "local(size=3)"}), 10, "it takes window");
  refused(run_with({"-p", "x", "--kv-policy", "uniform", "--kv-budget", "0"}), 10,
          "is not a budget");
  refused(run_with({"-p", "x", "--kv", "tent"}), 10,
          "--kv tent: this is no size (did you mean 'tenth'?); use exact, half, quarter, tenth, a");
  refused(run_with({"-p", "x", "--kv", "express(s=64)"}), 10, "--kv-policy takes a policy");
  refused(run_with({"-p", "x", "--kv-policy", "exact", "--kv-budget", "10%"}), 10,
          "keeps every row");
  refused(run_with({"-p", "x", "--kv-policy", "exact+f32", "-ctk", "f16"}), 10, "contradicts");
  refused(run_with({"-p", "one two three four five six seven", "-c", "4"}), 15, "context of 4");
  refused(run_with({"-p", "x", "--threads", "-1"}), 2, "--threads");
  refused(run_with({"-p", "x", "--isa", "neon"}), 13, "neon");
  refused(run_with({"-p", "x", "--temp", "-2"}), 10, "temperature");
  refused(run_with({"-f", "/nowhere.txt"}), 11, "/nowhere.txt");
  refused(run_with({"-f", "-"}), 10, "the prompt is empty");
  refused(run_with({"-f", "-"}), 10, "not valid UTF-8", "caf\xe9 au lait");
  refused(run_with({"-p", "x", "--memory-limit", "0.01"}), 14, "limit");
  refused(run_with({"-p", "x", "--protect", "5"}), 10, "FIRST:LAST");
  refused(run_with({"-p", "x", "--protect", "9:5"}), 10, "FIRST < LAST");
  refused(run_with({"-p", "x", "-c", "100", "--protect", "5:101"}), 10, "context has 100");
  refused({"walk"}, 2, "--help");
  refused({"logits", "-m", kModel, "-p", "x", "--out", "/nowhere/x.safetensors"}, 17, "/nowhere");
  refused({"tokenize", "-m", kModel, "--ids", "1,99999"}, 10, "99999");
}

TEST_F(Cli, DamagedModelsAreRefused) {
  const auto refused_model = [&](const std::string& file, const std::string& bytes, int status,
                                 const std::string& words) {
    refused({"run", "-m", damaged(file, bytes), "-p", "x"}, status, words);
    fs::remove_all(folder_ / "model");
  };
  const std::string weights = read(fs::path(kModel) / "model.safetensors");
  const std::string config = read(fs::path(kModel) / "config.json");
  const std::string tokenizer = read(fs::path(kModel) / "tokenizer.json");
  refused_model("model.safetensors", weights.substr(0, 4), 12, "model.safetensors");
  refused_model("model.safetensors", weights.substr(0, weights.size() / 2), 12,
                "model.safetensors");
  refused_model("config.json", config.substr(0, 100), 12, "config.json");
  refused_model("tokenizer.json", tokenizer.substr(0, 5000), 12, "tokenizer.json");
  json other = json::parse(config);
  other["hidden_size"] = 512;
  refused_model("config.json", other.dump(), 12, "512");
  other = json::parse(config);
  other["architectures"] = {"MixtralForCausalLM"};
  refused_model("config.json", other.dump(), 13, "LlamaForCausalLM");
  std::string nan = weights;
  const size_t middle = nan.size() / 2 & ~size_t{1};
  nan[middle] = '\xc0', nan[middle + 1] = '\x7f';  // one NaN in bf16
  refused_model("model.safetensors", nan, 16, "NaN");
}

}  // namespace
}  // namespace pith
