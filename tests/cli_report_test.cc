// pith eval, report and auto as a person runs them. Pages and plots: tests/python/test_report.py.

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "cli_harness.h"

namespace pith {
namespace {

using nlohmann::json;
using test::Cli;
using test::kModel;
using test::read;
using test::Result;
using test::write;
using test::fs::path;

// Read at once, every policy has the exact cache's predictions: a divergence of 0 says nothing.
TEST_F(Cli, EvalPplLetsAPolicyAct) {
  const auto measured = [&](const std::vector<std::string>& policy) {
    std::vector<std::string> args{"eval", "ppl",      "-m", kModel,    "-p", test::words(200), "-c",
                                  "64",   "--pieces", "1",  "--seeds", "1",  "--json"};
    args.insert(args.end(), policy.begin(), policy.end());
    return json::parse(run(args).out);
  };
  EXPECT_EQ(measured({})["mode"], "chunks");
  const json acting = measured({"--kv-policy", "uniform(budget=10),sink=0,window=4"});
  EXPECT_EQ(acting["mode"], "continue");
  EXPECT_GT(acting["policies"][1]["seeds"][0]["summary"]["kl"]["mean"].get<double>(), 0.01);
  EXPECT_EQ(measured({"-ctk", "bf16"})["mode"], "continue");
  EXPECT_EQ(measured({"--kv-policy", "exact+int4", "--mode", "chunks"})["mode"], "chunks");
}

TEST_F(Cli, ReportWritesLines) {
  const path ppl = folder_ / "ppl.jsonl", lines = folder_ / "l.jsonl";
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The ship lay at anchor and a man stood on the quay. ";
  const std::vector<std::string> eval{
      "eval",    "ppl",      "-m", kModel,        "-p",    text,          "-c",
      "128",     "--pieces", "2",  "--kv-policy", "exact", "--kv-policy", "exact+int4",
      "--seeds", "1",        "-o", ppl,           "--json"};
  const json said = json::parse(run(eval).out);
  const Result r = run({"report", ppl, "--lines", lines});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out, "") << "no page was asked for";
  const double kl = said["policies"][2]["seeds"][0]["summary"]["kl"]["mean"];
  std::istringstream in(read(lines));
  std::string head, exact, int4;
  std::getline(in, head), std::getline(in, exact), std::getline(in, int4);
  EXPECT_NEAR(json::parse(int4)["kl"][0].get<double>(), kl, 1e-5 * kl);
  const path again = folder_ / "again.jsonl";
  EXPECT_EQ(run({"report", lines, "--lines", again}).status, 0);
  EXPECT_EQ(read(again), read(lines));
}

TEST_F(Cli, ReportRefusesWithAReason) {
  refused({"report", "/nowhere.jsonl"}, 11, "No such file");
  refused({"report"}, 2, "files");
  write(folder_ / "x.json", "dear diary\n");
  refused({"report", folder_ / "x.json"}, 12, "line 1 is no result");
}

// A python3 of the test's own: what it is given, and what becomes of its answers.
class CliReport : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    old_ = getenv("PATH");
    lines_ = folder_ / "lines.jsonl";
    test::fs::create_directory(folder_ / "bin");
    setenv("PATH", ((folder_ / "bin").string() + ":" + old_).c_str(), 1);
    write(lines_, R"({"result":"cost","policy":"local","tokens":9,"bytes":9.0,"bits":1.5,)"
                  R"("update":1.5,"attend":1.5,"exact_attend":1.5})"
                  "\n");
  }
  void TearDown() override {
    setenv("PATH", old_.c_str(), 1);
    Cli::TearDown();
  }
  void python(const std::string& body) {
    const path file = folder_ / "bin" / "python3";
    write(file, "#!/bin/sh\n" + body + "\n");
    test::fs::permissions(file, test::fs::perms::owner_all);
  }

  path lines_;
  std::string old_;
};

TEST_F(CliReport, HandsItsLinesToThePackage) {
  python("printf '%s|' \"$@\" | tail -n 1; cat");
  Result r = run({"report", lines_, "--title", "-A & B"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out, "|-|--out|-|--title=-A & B|" + read(lines_));
  r = run({"report", lines_, "--plots", folder_ / "p", "--out", folder_ / "page"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(read(folder_ / "page"),
            "|-|--out|-|--plots|" + (folder_ / "p").string() + "|" + read(lines_));
}

TEST_F(CliReport, SaysWhatThePackageSays) {
  python("echo 'a warning' >&2; echo 'pith: error: nothing to show' >&2; exit 10");
  refused({"report", lines_}, 10, "pith: error: nothing to show");
  python("echo 'KeyError: 7' >&2; exit 1");
  refused({"report", lines_, "--out", folder_ / "page"}, 18, "ended with 1: KeyError: 7");
  EXPECT_FALSE(test::fs::exists(folder_ / "page"));
}

TEST_F(CliReport, WithoutThePackageSaysHowToInstallIt) {
  python("echo \"No module named 'pith'\" >&2; exit 77");
  refused({"report", lines_}, 13, "(No module named 'pith')");
  refused({"report", lines_}, 13, "pip install .[plot]");
  EXPECT_EQ(run({"report", lines_, "--lines", folder_ / "l"}).status, 0) << "lines do without";
  setenv("PATH", (folder_ / "none").c_str(), 1);
  refused({"report", lines_}, 13, "there is none");
}

// A cloned repository with modules of these names runs none of them.
TEST_F(CliReport, ImportsNothingOfTheCurrentFolder) {
  if (std::system("python3 -c '' >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no python3";
  const path before = test::fs::current_path(), ran = folder_ / "ran";
  for (const char* name : {"pith.py", "matplotlib.py", "numpy.py", "argparse.py"})
    write(folder_ / name, "open('" + ran.string() + "', 'w')\n");
  const std::string paths = std::getenv("PYTHONPATH") ? std::getenv("PYTHONPATH") : "";
  setenv("PYTHONPATH", ".", 1);
  test::fs::current_path(folder_);
  const Result r = run({"report", lines_});
  test::fs::current_path(before);
  paths.empty() ? unsetenv("PYTHONPATH") : setenv("PYTHONPATH", paths.c_str(), 1);
  EXPECT_TRUE(r.status == 13 || r.status == 0) << r.status << r.err;
  EXPECT_FALSE(test::fs::exists(ran));
}

TEST_F(Cli, EveryFieldOfTheLinesIsDocumented) {
  const std::string page = read(repo_dir() / "docs" / "evaluation.md");
  const path ppl = folder_ / "ppl.jsonl", tasks = folder_ / "tasks.jsonl", lines = folder_ / "l";
  ASSERT_EQ(run({"eval", "ppl", "-m", kModel, "-p", test::words(400), "-c", "128", "--pieces", "1",
                 "--kv-policy", "local(window=32)", "--mode", "decode", "--attn-error-probe", "64",
                 "-o", ppl})
                .status,
            0);
  ASSERT_EQ(run({"eval", "tasks", "-m", kModel, "-c", "256", "--samples", "1", "--turns", "1",
                 "--kv-policy", "exact", "-o", tasks})
                .status,
            0);
  ASSERT_EQ(run({"report", ppl, tasks, "--lines", lines}).status, 0);
  for (const path& file : {ppl, tasks, lines}) {
    std::istringstream in(read(file));
    for (std::string line; std::getline(in, line);) {
      const json record = json::parse(line);
      for (const auto& [name, value] : record.items())
        EXPECT_NE(page.find("`" + name + "`"), std::string::npos) << file << ": " << name;
    }
  }
}

TEST_F(Cli, ReportShowsTheNullControlAsExact) {
  const std::string text = test::words(400);
  const path ppl = folder_ / "ppl.jsonl";
  ASSERT_EQ(run({"eval", "ppl", "-m", kModel, "-p", text, "-c", "128", "--pieces", "1",
                 "--kv-policy", "exact+int4", "--seeds", "1", "-o", ppl})
                .status,
            0);
  ASSERT_EQ(run({"report", ppl, "--lines", folder_ / "l"}).status, 0);
  EXPECT_NE(read(folder_ / "l").find("\"policy\":\"exact\""), std::string::npos);
  // Figures that no run measures are refused, not shown as "nan s".
  write(folder_ / "c.csv",
        "policy,s,n,bytes,effective_bits,update_seconds,attend_seconds,exact_attend_seconds\n"
        "snapkv,1,2,3,4,nan,1,1\n");
  refused({"report", folder_ / "c.csv"}, 12, "'snapkv' is not a finite number");
}

TEST_F(Cli, AutoChoosesAndSaysWhy) {
  Result r = run({"inspect", "-m", kModel, "-c", "4096", "--kv-policy", "auto", "--kv-budget",
                  "40%", "-v", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.err.starts_with("pith: auto: ")) << r.err;
  EXPECT_NE(r.err.find("not measured on this model; KL "), std::string::npos) << r.err;
  const json cost = json::parse(r.out)["policy"]["costs"].back();
  EXPECT_EQ(cost["tokens"], 4096);
  EXPECT_LE(cost["bytes"]["cache"].get<double>(), 0.4 * cost["f16_bytes"].get<double>());
  EXPECT_NE(r.err.find(json::parse(r.out)["policy"]["text"].get<std::string>()), std::string::npos);

  const path own = folder_ / "presets.jsonl";
  write(own,
        R"x({"policy":"local(window=10%)","model":"m","context":99,"seeds":1,"kl":[1,0],"bits":2})x"
        "\n");
  r = run({"run", "-m", kModel, "-p", "The ship", "-n", "2", "--kv-policy", "auto", "--kv-budget",
           "8MiB", "--presets", own, "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.err.starts_with("pith: auto: 3.2")) << r.err;
  EXPECT_EQ(r.err.find("local(window=10%)"), std::string::npos)
      << "the policy is for -v: " << r.err;
}

// stod throws for figures below the least normal number.
TEST_F(Cli, FiguresTooSmallForNormalNumbersAreReported) {
  write(folder_ / "r.jsonl",
        R"({"result":"ppl","name":"continue","length":8,"setting":{"model":"m"}})"
        "\n"
        R"({"policy":"local","seeds":1,"count":7,"tokens":8,"bytes":9.0,"bits":1e-320,"kept":0.5,)"
        R"("seconds":1e-310,"perplexity":[19.8,4e-320],"ln_ratio":[0.06,1e-320],)"
        R"("kl":[1e-320,5e-324],"kl_50":0.008,"kl_99":1.9,"same_top":[0.9,0.01]})"
        "\n");
  const Result r = run({"report", folder_ / "r.jsonl", "--lines", folder_ / "l"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(read(folder_ / "l").find("local"), std::string::npos);
}

// A model without figures is measured once, and the figures are kept under its fingerprint.
TEST_F(Cli, AutoMeasuresAModelWithoutFigures) {
  const char* before = std::getenv("PITH_MODELS");
  const std::string old = before ? before : "";
  setenv("PITH_MODELS", (folder_ / "cache" / "models").c_str(), 1);
  const auto ask = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", "-m", kModel, "-p", "The ship", "-n", "2", "--kv"});
    const Result r = run(more);
    EXPECT_EQ(r.status, 0) << r.err;
    return r.err;
  };
  std::string said = ask({"half", "--no-screen"});
  EXPECT_NE(said.find("not measured on this model"), std::string::npos) << said;
  said = ask({"half"});
  EXPECT_NE(said.find("it measures 3 policies once"), std::string::npos) << said;
  EXPECT_NE(said.find("measured on demo at 1024 tokens"), std::string::npos) << said;
  said = ask({"half"});
  EXPECT_EQ(said.find("it measures"), std::string::npos) << "twice: " << said;
  EXPECT_NE(said.find("measured on demo at 1024 tokens"), std::string::npos) << said;
  const Result seen = run({"inspect", "-m", kModel, "--kv", "50%"});
  EXPECT_NE(seen.err.find("measured on demo at 1024 tokens"), std::string::npos) << seen.err;
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "cache" / "screens")) {
    ++files;
    write(file.path(), "damaged");
  }
  EXPECT_EQ(files, 1u);
  EXPECT_NE(ask({"half"}).find("it measures 3 policies once"), std::string::npos);
  before ? setenv("PITH_MODELS", old.c_str(), 1) : unsetenv("PITH_MODELS");
}

TEST_F(Cli, OneWordSaysTheMemory) {
  const auto kept = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"inspect", "-m", kModel, "-c", "8192", "--json"});
    const Result r = run(more);
    EXPECT_EQ(r.status, 0) << r.err;
    const json cost = json::parse(r.out)["policy"]["costs"].back();
    return cost["bytes"]["cache"].get<double>() / cost["f16_bytes"].get<double>();
  };
  EXPECT_EQ(kept({"--kv", "exact"}), 1);
  EXPECT_EQ(kept({"--kv", "half"}), kept({"--kv-policy", "auto", "--kv-budget", "50%"}));
  EXPECT_EQ(kept({"--kv", "quarter"}), kept({"--kv-budget", "25%"}))
      << "a budget without a policy is auto's";
  EXPECT_GT(kept({"--kv", "half"}), 0.29);
  EXPECT_LE(kept({"--kv", "tenth"}), 0.1);
  EXPECT_LE(kept({"--kv", "13%"}), 0.13);
  refused({"inspect", "-m", kModel, "--kv", "half", "--kv-policy", "exact"}, 10,
          "stands for policy and budget");
  refused({"inspect", "-m", kModel, "--kv", "half", "--kv-budget", "10%"}, 10,
          "stands for policy and budget");
  refused({"inspect", "-m", kModel, "--kv", "little"}, 10, "this is no size");
  for (const char* size : {"half", "quarter", "tenth", "25%", "16MiB"})
    refused({"inspect", "-m", kModel, "--kv-policy", size}, 10,
            std::string("--kv ") + size + " chooses");
}

// A share is never refused for being small, wherever a policy is taken.
TEST_F(Cli, SharesOfShortTextsRun) {
  for (const char* policy : {"express(s=1%)", "balancekv(budget=1%)", "snapkv(budget=1%)"}) {
    EXPECT_EQ(run({"run", "-m", kModel, "-p", "a", "-n", "3", "--kv-policy", policy}).status, 0);
    EXPECT_EQ(run({"bench", "-m", kModel, "-p", "3", "-n", "2", "-d", "0", "-r", "1", "--kv-policy",
                   policy})
                  .status,
              0)
        << policy;
  }
  EXPECT_EQ(
      run({"bench", "-m", kModel, "-p", "3", "-n", "2", "-d", "0", "--kv", "tenth", "--no-screen"})
          .status,
      0);
  EXPECT_EQ(
      run({"run", "-m", kModel, "-p", "a", "-n", "3", "-c", "20", "--kv", "tenth", "--no-screen"})
          .status,
      0);
}

TEST_F(Cli, AutoRefusesWithAReason) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"inspect", "-m", kModel, "--kv-policy", "auto"});
    return more;
  };
  refused(with({}), 10, "needs --kv-budget");
  refused(with({"--kv-budget", "100"}), 10, "rows");
  refused(with({"--kv-budget", "0.1%"}), 10, "below the least");
  refused(with({"--kv-budget", "25%", "--kv-window", "9"}), 10, "sink, window and storage");
  refused(with({"--kv-budget", "25%", "--presets", "/nowhere"}), 11, "/nowhere");
  refused({"inspect", "-m", kModel, "--presets", "x"}, 10, "--presets is for");
  for (const std::string size : {"half", "25%", "16MiB"})
    refused({"inspect", "-m", kModel, "--kv-policy", size}, 10, "--kv " + size + " chooses");
  refused({"inspect", "-m", kModel, "--kv-goal", "facts"}, 10, "--kv-goal is for");
  refused(with({"--kv-budget", "25%", "--kv-goal", "speed"}), 2, "--kv-goal");
}

}  // namespace
}  // namespace pith
