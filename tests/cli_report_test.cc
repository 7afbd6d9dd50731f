// pith report as a person runs it, and its page in a real browser where there is one.

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

// Rows as `pith report --lines` writes them: enough policies, with names long enough, to crowd.
std::string made_up_lines() {
  std::string out;
  for (const int length : {2048, 8192}) {
    json head{{"result", "ppl"},
              {"name", "continue"},
              {"length", length},
              {"null_control_kl", 0.0},
              {"setting", {{"model", "demo"}, {"version", "1"}}}};
    out += head.dump() + "\n";
    for (int i = 0; i < 40; ++i) {
      const double kl = i == 0 ? 0 : 1e-5 * std::pow(1.33, (i * 17) % 40);
      const double bits = 16.0 / std::pow(1.08, i);
      json row{{"policy", i == 0 ? "exact"
                                 : "expected_attention(budget=" + std::to_string(i) +
                                       "%)+int4(hadamard=true)"},
               {"seeds", 3},
               {"count", 768},
               {"tokens", length - 1},
               {"bytes", bits * length * 256},
               {"bits", bits},
               {"kept", bits / 16},
               {"seconds", 1 + (i * 7) % 11},
               {"perplexity", {20 + kl, 0.1}},
               {"ln_ratio", {kl, kl / 9}},
               {"kl", {kl, kl / 9}},
               {"kl_50", kl / 2},
               {"kl_99", kl * 9},
               {"same_top", {1 - kl, 0.01}}};
      out += row.dump() + "\n";
    }
  }
  json probe{{"result", "probe"}, {"model", "demo"}, {"text", "a/b.txt"},        {"tokens", 2048},
             {"queries", 256},    {"seeds", 3},      {"null_control_error", 0.0}};
  for (int i = 0; i < 9; ++i) {
    std::vector<double> layers;
    for (int l = 0; l < 32; ++l) layers.push_back(0.001 * (i + 1) * (l + 1));
    probe["rows"].push_back({{"policy", "snapkv(budget=" + std::to_string(i + 1) + "%)"},
                             {"random", false},
                             {"bytes", 1e6},
                             {"bits", 4},
                             {"kept", 0.25},
                             {"error", {0.02, 0}},
                             {"layers", layers}});
  }
  return out + probe.dump() + "\n";
}

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

TEST_F(Cli, ReportMakesAPageFromResults) {
  const path ppl = folder_ / "ppl.jsonl", page = folder_ / "r.html", lines = folder_ / "l.jsonl";
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The ship lay at anchor and a man stood on the quay. ";
  Result r = run({"eval", "ppl", "-m", kModel, "-p", text, "-c", "128", "--pieces", "2",
                  "--kv-policy", "exact", "--kv-policy", "exact+int4", "--seeds", "1", "-o", ppl});
  ASSERT_EQ(r.status, 0) << r.err;
  r = run({"report", ppl, "--out", page, "--lines", lines, "--title", "A & B"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out, "");
  const std::string html = read(page);
  EXPECT_TRUE(html.starts_with("<!doctype html>"));
  EXPECT_NE(html.find("A &amp; B"), std::string::npos);
  EXPECT_NE(html.find("exact+<wbr>int4"), std::string::npos);
  // The page shows the figures of eval.
  const json said = json::parse(
      run({"eval", "ppl", "-m", kModel, "-p", text, "-c", "128", "--pieces", "2", "--kv-policy",
           "exact", "--kv-policy", "exact+int4", "--seeds", "1", "-o", ppl, "--json"})
          .out);
  const double kl = said["policies"][2]["seeds"][0]["summary"]["kl"]["mean"];
  std::istringstream in(read(lines));
  std::string head, exact, int4;
  std::getline(in, head), std::getline(in, exact), std::getline(in, int4);
  EXPECT_NEAR(json::parse(int4)["kl"][0].get<double>(), kl, 1e-5 * kl);
  // Lines read back say the same; places in plots come of six digits there: a tenth may be the
  // next.
  const auto page_of = [&](const path& results) {
    return std::regex_replace(run({"report", results}).out, std::regex("[0-9]+\\.[0-9]\\b"), "");
  };
  EXPECT_TRUE(page_of(lines).starts_with("<!doctype html>"));
  EXPECT_EQ(page_of(lines), page_of(ppl));
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

TEST_F(Cli, PlotsAreSavedAsFilesOfTheirOwn) {
  write(folder_ / "lines.jsonl", made_up_lines());
  const path plots = folder_ / "new" / "plots";
  const bool pdf = std::system("command -v rsvg-convert >/dev/null 2>&1") == 0;
  const Result r = run({"report", folder_ / "lines.jsonl", "--plots", plots});
  EXPECT_EQ(r.status, pdf ? 0 : 13) << r.err;
  EXPECT_EQ(r.out, "") << "no page was asked for";
  for (const char* name : {"continue-2048-bytes", "continue-2048-time", "continue-8192-bytes",
                           "continue-8192-time", "memory-context"}) {
    const std::string base = (plots / name).string();
    EXPECT_NE(read(base + ".svg").find("<style>"), std::string::npos) << name;
    const std::string csv = read(base + ".csv");
    EXPECT_NE(csv.find("\n\"exact\","), std::string::npos) << "exact is in every plot: " << name;
    EXPECT_GT(std::count(csv.begin(), csv.end(), '\n'), 2) << name;
    if (pdf) {
      EXPECT_TRUE(read(base + ".pdf").starts_with("%PDF")) << name;
    }
  }
  if (!pdf) {
    EXPECT_NE(r.err.find("librsvg2-bin"), std::string::npos) << r.err;
    GTEST_SKIP() << "no rsvg-convert here: no PDF was made";
  }
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
  const Result r = run({"report", (folder_ / "r.jsonl").string()});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("local"), std::string::npos) << r.out;
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
  refused({"inspect", "-m", kModel, "--kv", "half", "--kv-policy", "exact"}, 10, "in one word");
  refused({"inspect", "-m", kModel, "--kv", "half", "--kv-budget", "10%"}, 10, "in one word");
  refused({"inspect", "-m", kModel, "--kv", "little"}, 10, "not a budget");
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
  refused({"inspect", "-m", kModel, "--kv-goal", "facts"}, 10, "--kv-goal is for");
  refused(with({"--kv-budget", "25%", "--kv-goal", "speed"}), 2, "--kv-goal");
}

// A script that only the test adds: what a reader would see as broken, as a line of text.
constexpr const char* kLayoutCheck = R"(<script>
addEventListener('load', () => {
  const found = [], root = document.documentElement;
  if (root.scrollWidth > innerWidth) found.push('wider than the screen: ' + root.scrollWidth);
  for (const svg of document.querySelectorAll('figure>svg')) {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
    boxes.forEach(([t, a], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 ||
          a.bottom > frame.bottom + 1) found.push('cut off: ' + t.textContent);
      if (a.height < 10) found.push('too small: ' + t.textContent);
      for (const [u, b] of boxes.slice(i + 1)) {
        const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (x > 2 && y > 5) found.push('overlap: ' + t.textContent + ' and ' + u.textContent);
      }
    });
  }
  const light = ([r, g, b]) => [r, g, b].map(Number).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const colour = c => light(c.match(/[\d.]+/g));
  const ground = colour(getComputedStyle(document.body).backgroundColor);
  for (const e of document.querySelectorAll('p,li,th,td,h2,summary,a,svg text')) {
    if (e.matches('.heat')) continue;
    const s = getComputedStyle(e), c = colour(e.closest('svg') ? s.fill : s.color);
    const contrast = (Math.max(c, ground) + 0.05) / (Math.min(c, ground) + 0.05);
    if (contrast < 4.5) found.push('faint: ' + e.textContent.slice(0, 20) + ' ' + contrast);
  }
  parent.postMessage('LAYOUT ' + innerWidth + (ground < 0.2 ? ' dark ' : ' light ') +
    (found.length ? found.slice(0, 9).join('; ') : 'fine'), '*');
});
</script>)";

// The page in a frame: a window of a browser without a screen is at least 500 wide.
std::string framed(int width) {
  return "<!doctype html><meta name='color-scheme' content='light dark'><p id='answer'></p><script>"
         "addEventListener('message', e => {document.getElementById('answer').textContent = "
         "e.data;});</script><iframe src='checked.html' style='border:0' height='900' width='" +
         std::to_string(width) + "'></iframe>";
}

std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
    if (std::system((std::string("command -v ") + name + " >/dev/null 2>&1").c_str()) == 0)
      return name;
  return "";
}

TEST_F(Cli, ReportIsReadableInABrowser) {
  const std::string program = browser();
  if (program.empty())
    GTEST_SKIP() << "no chromium or chrome here (tools/setup.sh browser): the page was not looked "
                    "at";
  write(folder_ / "lines.jsonl", made_up_lines());
  const path page = folder_ / "page.html", frame = folder_ / "frame.html";
  ASSERT_EQ(run({"report", folder_ / "lines.jsonl", "--out", page}).status, 0);
  write(folder_ / "checked.html", read(page) + kLayoutCheck);
  for (const int width : {390, 1280})
    for (const bool dark : {false, true}) {
      const std::string size = std::to_string(width);
      const std::string theme = dark ? "dark" : "light";
      const path shot = folder_ / ("shot_" + size + theme + ".png"), dom = folder_ / "dom";
      const std::string common =
          program +
          " --headless --no-sandbox --disable-gpu --hide-scrollbars --enable-logging=stderr " +
          "--user-data-dir=" + (folder_ / "profile").string() + " --window-size=" + size +
          ",900 --virtual-time-budget=20000 --blink-settings=preferredColorScheme=" +
          (dark ? "0" : "1");
      const auto call = [&](const std::string& what) {
        return std::system(
            ("timeout 60 " + common + what + " 2>" + (folder_ / "log").string()).c_str());
      };
      write(frame, framed(width));
      ASSERT_EQ(call(" --dump-dom file://" + frame.string() + " >" + dom.string()), 0)
          << read(folder_ / "log");
      const std::string seen = read(dom);
      const size_t at = seen.find("LAYOUT "), end = seen.find("</p>", at);
      ASSERT_NE(at, std::string::npos) << seen.substr(0, 400);
      EXPECT_EQ(seen.substr(at, end - at), "LAYOUT " + size + " " + theme + " fine");
      EXPECT_EQ(read(folder_ / "log").find(":CONSOLE"), std::string::npos) << read(folder_ / "log");
      ASSERT_EQ(call(" --screenshot=" + shot.string() + " file://" + page.string()), 0)
          << read(folder_ / "log");
      EXPECT_GT(test::fs::file_size(shot), 10000u);
      if (const char* keep = std::getenv("PITH_SCREENSHOTS"))
        test::fs::copy_file(shot, path(keep) / shot.filename(),
                            test::fs::copy_options::overwrite_existing);
    }
}

}  // namespace
}  // namespace pith
