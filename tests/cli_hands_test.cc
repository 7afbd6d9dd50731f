// Hands that come from llama.cpp and ollama: the options and commands that fingers know.

#include <nlohmann/json.hpp>
#include <regex>

#include "cli_harness.h"
#include "pith/model.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::kModel;
using test::read;
using test::Result;
using test::write;

class CliHands : public test::Cli {
 protected:
  Result demo(std::vector<std::string> more) {
    more.insert(more.begin(), {"run", "-m", kModel, "-t", "1", "--temp", "0"});
    return run(more);
  }
  /// The policy of a run of one token.
  std::string policy_of(std::vector<std::string> more) {
    more.insert(more.end(), {"-p", "The ship", "-n", "1", "--json"});
    const Result r = demo(more);
    EXPECT_EQ(r.status, 0) << r.err;
    return r.status == 0 ? std::string(json::parse(r.out)["policy"]) : "";
  }
  static size_t lines(const std::string& text) {
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

TEST_F(CliHands, HarmlessOptionsAreLeftOutWithOneWarning) {
  const std::vector<std::string> plain{"-p", "The ship lay at", "-n", "6", "-q"};
  const Result without = demo(plain);
  ASSERT_EQ(without.status, 0) << without.err;
  EXPECT_EQ(without.err, "");
  std::vector<std::string> all{
      "-ngl",  "99",          "-fa", "on",     "--mlock", "--no-mmap",
      "-b",    "512",         "-tb", "2",      "--jinja", "--color",
      "-sm",   "row",         "-md", "d.gguf", "-no-cnv", "--flash-attn=auto",
      "-nkvo", "--no-warmup", "-cb", "-fa"};
  all.insert(all.end(), plain.begin(), plain.end());
  const Result with = demo(all);
  EXPECT_EQ(with.status, 0) << with.err;
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(lines(with.err), 1u) << with.err;
  EXPECT_TRUE(with.err.starts_with("pith: warning: ignored, as no answer depends on them: -ngl 99"))
      << with.err;
  for (const char* name : {"--device cuda", "-fa on", "--no-mmap", "-b 512", "-tb 2", "-md d.gguf",
                           "--flash-attn=auto", "-cb, -fa"})
    EXPECT_NE(with.err.find(name), std::string::npos) << name << ": " << with.err;
}

TEST_F(CliHands, WhatWouldChangeTheAnswerIsRefusedTogether) {
  const std::vector<std::string> all{"run", "-m",        "nowhere", "-p",      "x", "--mirostat",
                                     "2",   "--grammar", "g",       "-ngl",    "9", "-hf",
                                     "a/b", "--keep",    "4",       "--image", "i"};
  refused(all, 2,
          "not supported: --mirostat 2 (tokens are drawn by --temp, --top-k, --top-p, --min-p and "
          "penalties); --grammar g (--json-schema FILE holds an answer to a schema); -hf a/b (give "
          "-m a folder");
  refused(all, 2, "; --keep 4 (--kv-sink-tokens");
  refused(all, 2, "; --image i (models read text alone); see 'pith run --help'");
  refused({"run", "-m", "x", "-p", "x", "--override-kv", "tokenizer.ggml.pre=str:qwen2"}, 2,
          "gguf-new-metadata --pre-tokenizer");
  refused({"chat", "-m", kModel, "-no-cnv"}, 2, "-no-cnv ('pith run' completes a text)");
  refused({"run", "-m", kModel, "-p", "x", "-st"}, 2, "'pith run --chat' answers one message");
}

TEST_F(CliHands, ValuesOfOptionsAreNoOptions) {
  for (const char* text : {"-fa", "--mirostat", "-ngl"}) {
    const Result r = demo({"-p", text, "-n", "1", "-q"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_TRUE(r.out.starts_with(text)) << r.out;
    EXPECT_EQ(r.err, "");
  }
  // pith bench has a -d of its own.
  refused({"bench", "-m", kModel, "-d", "-ngl"}, 2, "-ngl");
}

TEST_F(CliHands, CacheTypesOfEightAndFourBitsAreCodecs) {
  EXPECT_EQ(policy_of({"-ctk", "q8_0"}), "exact+k:int8+v:f16");
  EXPECT_EQ(policy_of({"--cache-type-v", "q4_0"}), "exact+k:f16+v:int4");
  EXPECT_EQ(policy_of({"-ctk", "q8_0", "-ctv", "q8_0"}), policy_of({"--kv-policy", "exact+int8"}));
  EXPECT_EQ(policy_of({"-ctk", "q4_0", "-ctv", "bf16"}), "exact+k:int4+v:bf16");
  const auto wrong = [&](const char* option, const char* type, const std::string& words) {
    refused({"run", "-m", kModel, "-p", "x", option, type}, 2, words);
  };
  wrong("-ctk", "q5_1", "'exact+k:int8' names one");
  wrong("-ctv", "iq4_nl", "'exact+v:int4' names one");
  wrong("-ctv", "f8", "not f32, f16, bf16, q8_0 or q4_0");
  refused({"run", "-m", kModel, "-p", "x", "-ctk", "q8_0", "--kv-policy", "exact+int4"}, 10,
          "-ctk contradicts the policy");
}

TEST_F(CliHands, TheLastOfARepeatedOptionCounts) {
  const Result r = demo({"-p", "Once", "-n", "9", "-p", "The ship", "-n", "3", "-ctk", "q4_0",
                         "-ctk", "f32", "--json", "--kv-policy", "local", "--policy", "exact"});
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["tokens"].size(), 3u);
  EXPECT_EQ(j["policy"], "exact+k:f32+v:f16");
  EXPECT_EQ(j["prompt"]["tokens"],
            json::parse(demo({"-p", "The ship", "-n", "3", "--json"}).out)["prompt"]["tokens"]);
  // Options that gather values still do.
  EXPECT_EQ(demo({"-p", "The ship", "-n", "40", "-q", "-r", "q!", "-r", " "}).out.find(' ', 9),
            std::string::npos);
}

TEST_F(CliHands, ASeedOfMinusOneIsDrawnAndSaid) {
  const auto text = [&](const std::string& seed) {
    return run({"run", "-m", kModel, "-p", "The ship", "-n", "12", "-t", "1", "-q", "-s", seed});
  };
  const Result drawn = text("-1");
  std::smatch seed;
  ASSERT_TRUE(std::regex_search(drawn.err, seed, std::regex("^pith: seed (\\d+)\n$"))) << drawn.err;
  EXPECT_EQ(text(seed[1]).out, drawn.out);
}

TEST_F(CliHands, APromptCacheIsReadOnceAndAnswersAlike) {
  const auto with = [&](const std::string& prompt, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"-p", prompt, "-n", "6", "--json", "--prompt-cache", file("cache")});
    return demo(more);
  };
  const auto tokens = [](const Result& r) { return json::parse(r.out)["tokens"]; };
  const auto read_now = [](const Result& r) { return int(json::parse(r.out)["prompt"]["tokens"]); };
  const std::string prompt = test::words(20) + "the end", longer = prompt + " and the captain";
  const Result plain = demo({"-p", prompt, "-n", "6", "--json"});
  const Result first = with(prompt), again = with(prompt), more = with(longer);
  ASSERT_EQ(first.status, 0) << first.err;
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(tokens(first), tokens(plain));
  EXPECT_EQ(tokens(again), tokens(plain));
  EXPECT_EQ(read_now(first), read_now(plain));
  EXPECT_EQ(read_now(again), 0);
  EXPECT_NE(again.err.find(" tokens of the prompt come from "), std::string::npos) << again.err;
  EXPECT_EQ(tokens(more), tokens(demo({"-p", longer, "-n", "6", "--json"})));
  EXPECT_GT(read_now(more), 0);
  EXPECT_LT(read_now(more), 8);
  const Result other = with("Another text");
  EXPECT_NE(other.err.find("is of another prompt"), std::string::npos) << other.err;
  EXPECT_EQ(tokens(other), tokens(demo({"-p", "Another text", "-n", "6", "--json"})));
  EXPECT_EQ(with("Another text", {"--kv-policy", "local"}).status, 10);

  ASSERT_EQ(demo({"-p", prompt, "-n", "1", "-q", "--session-save", file("talk")}).status, 0);
  const std::string talk = read(folder_ / "talk");
  refused({"run", "-m", kModel, "-p", "x", "--prompt-cache", file("talk")}, 10, "--session-load");
  write(folder_ / "diary", "dear diary");
  refused({"run", "-m", kModel, "-p", "x", "--prompt-cache", file("diary")}, 12, "diary");
  EXPECT_EQ(read(folder_ / "talk"), talk);
  EXPECT_EQ(read(folder_ / "diary"), "dear diary");
}

TEST_F(CliHands, OllamasRunAnswersAMessage) {
  const std::vector<std::string> options{
      "--chat-template", "chatml", "--temp", "0", "-n", "6", "-t", "1", "-q"};
  const auto with = [&](std::vector<std::string> first, const std::string& input = "") {
    first.insert(first.end(), options.begin(), options.end());
    const Result r = run(first, input);
    EXPECT_EQ(r.status, 0) << r.err;
    return r.out;
  };
  const std::string answer = with({"run", "-m", kModel, "--chat", "-p", "Where is the ship?"});
  EXPECT_EQ(with({"run", kModel, "Where is the ship?"}), answer);
  EXPECT_EQ(with({"run", kModel, "Where", "is", "the ship?"}), answer) << "joined by blanks";
  EXPECT_EQ(with({"run", "-m", kModel, "Where is the ship?"}), answer);
  EXPECT_EQ(with({"run", "--chat", kModel}, "Where is the ship?\r\n"), answer) << "from a pipe";
  EXPECT_EQ(with({"chat", kModel}, "Where is the ship?\n"), answer);
  EXPECT_EQ(with({"run", "-m", kModel, "-cnv"}, "Where is the ship?\n"), answer);
  EXPECT_EQ(with({"run", kModel, "Where is the ship?", "-cnv", "-st"}, ""), answer);
  EXPECT_EQ(with({"chat", "-m", kModel, "Where", "-st", "is", "the ship?"}, ""), answer);
  EXPECT_EQ(with({"chat", kModel, "-st"}, "Where is the ship?\nAnd then?\n"), answer);

  const Result base = run({"run", kModel, "The ship lay at", "-t", "1", "--temp", "0", "-n", "6"});
  EXPECT_EQ(base.status, 0) << base.err;
  EXPECT_EQ(base.out, demo({"-p", "The ship lay at", "-n", "6"}).out);
  EXPECT_NE(base.err.find("has no chat template: it continues the text"), std::string::npos);
  refused({"run", kModel, "a text", "-p", "another"}, 10, "give it with -p");
  refused({"run", kModel, "a text", "--chat-template", "alpaca"}, 11, "alpaca");
  refused({"run", "nowhere", "a text"}, 11, "nowhere");
  refused({"run", "-p", "x"}, 2, "--model is required");
}

TEST_F(CliHands, SystemPromptsComeAsLlamasToo) {
  write(folder_ / "system.txt", "Be brief.\r\n");
  const auto shown = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"template", "-m", kModel, "--chat-template", "chatml", "-p", "Hi"});
    return run(more).out;
  };
  const std::string text = shown({"--system", "Be brief."});
  EXPECT_TRUE(text.starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<"))
      << text;
  EXPECT_EQ(shown({"-sys", "Be brief."}), text);
  EXPECT_EQ(shown({"-sysf", file("system.txt")}), text);
  refused({"template", "-m", kModel, "-sys", "a", "-sysf", file("system.txt"), "-p", "x"}, 2,
          "--system");
}

TEST_F(CliHands, ListAndRmOfTheModelsThatAreHere) {
  fs::create_directory(folder_ / "models");
  const auto with = [&](const std::string& command) {
    return shell("export PITH_MODELS=models; $PITH " + command);
  };
  Result r = with("list");
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("no model lies in models; 'pith pull'"), std::string::npos) << r.err;
  fs::create_directory_symlink(kModel, folder_ / "models/demo");
  fs::create_directory(folder_ / "models/own");
  fs::copy(fs::path(kModel) / "config.json", folder_ / "models/own/config.json");
  write(folder_ / "models/broken.gguf", "no model");
  write(folder_ / "models/SmolLM2-135M-Instruct.Q4_1.gguf", "cut");
  write(folder_ / "models/notes.txt", "mine");

  r = with("list --json");
  ASSERT_EQ(r.status, 0) << r.err;
  const json models = json::parse(r.out)["models"];
  ASSERT_EQ(models.size(), 4u) << models;
  EXPECT_EQ(models[0]["name"], "broken.gguf");
  EXPECT_EQ(models[0]["bytes"], 8);
  EXPECT_EQ(models[0]["cache_bytes_at_4096"], 0);
  EXPECT_EQ(models[1]["name"], "demo");
  EXPECT_EQ(models[1]["path"], "models/demo");
  EXPECT_EQ(models[1]["cache_bytes_at_4096"],
            4096 * read_model_config(kModel).bytes_per_token(DType::kF16));
  EXPECT_EQ(models[3]["name"], "smollm2") << "as -m takes it";
  r = with("list");
  EXPECT_NE(r.out.find("KV at 4096"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("not a model"), std::string::npos) << r.out;

  r = with("rm broken.gguf nothing smollm2 none");
  EXPECT_EQ(r.status, 11);
  EXPECT_NE(r.err.find("nothing, none are not in models, so nothing was removed"),
            std::string::npos)
      << r.err;
  r = with("rm smollm2 own");
  EXPECT_EQ(r.status, 13) << r.err;
  for (const char* outside : {"../models/broken.gguf", "notes.txt", ".", ""})
    EXPECT_EQ(with("rm broken.gguf '" + std::string(outside) + "'").status, 11) << outside;
  EXPECT_TRUE(fs::exists(folder_ / "models/broken.gguf"));
  r = with("rm broken.gguf smollm2 broken.gguf demo");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(lines(r.err), 3u) << r.err;
  EXPECT_FALSE(fs::exists(folder_ / "models/broken.gguf"));
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder_ / "models/demo")));
  EXPECT_TRUE(fs::exists(fs::path(kModel) / "config.json")) << "a link alone went";
  EXPECT_EQ(read(folder_ / "models/notes.txt"), "mine");
}

TEST_F(CliHands, PsListsServersAndHidesTheirKeys) {
  const Result r = shell(
      "$PITH serve -m $MODEL --port 0 --api-key secret-words -q --memory 64MiB "
      "--kv-budget 50% --no-screen 2>log & pid=$!; "
      "for i in $(seq 500); do grep -q serving log && break; kill -0 $pid || break; sleep 0.1; "
      "done; "
      "$PITH ps; grep -c auto: log; kill $pid; wait $pid; echo pid $pid");
  std::smatch pid;
  ASSERT_TRUE(std::regex_search(r.out, pid, std::regex("\npid (\\d+)\n"))) << r.out << r.err;
  const std::string id = pid[1];
  EXPECT_NE(r.out.find("\n1\npid"), std::string::npos) << "a budget alone is auto: " << r.out;
  ASSERT_TRUE(std::regex_search(r.out, pid, std::regex("(^|\n) *" + id + " "))) << r.out;
  EXPECT_NE(r.out.find("--api-key ..."), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("secret"), std::string::npos) << r.out;
}

}  // namespace
}  // namespace pith
