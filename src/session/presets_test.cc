#include "pith/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "pith/error.h"
#include "session/presets_table.h"

namespace pith {
namespace {

ModelConfig small_model() {
  ModelConfig c;
  c.layers = 2, c.hidden = 64, c.query_heads = 2, c.kv_heads = 1, c.head_dim = 64, c.vocab = 10;
  c.context = 4096, c.sliding_window = {0, 0};
  return c;
}
constexpr size_t kExact = 4096 * size_t{2} * 2 * 64 * 2;  // tokens, K and V, layers, D, f16

std::string line(const std::string& policy, int context, double kl, double bits) {
  return "{\"policy\":\"" + policy + "\",\"model\":\"m\",\"context\":" + std::to_string(context) +
         ",\"seeds\":3,\"kl\":[" + std::to_string(kl) + ",0.01],\"bits\":" + std::to_string(bits) +
         "}\n";
}

std::string for_model(std::string text, const std::string& fingerprint) {
  return text.insert(text.rfind('}'), R"(,"model_fingerprint":")" + fingerprint + "\"");
}

// int4 keeps more than a quarter; the window of 25% just that.
const std::string kTable = line("exact", 4096, 0, 16) + line("exact+int8", 4096, 0.001, 8.5) +
                           line("exact+int4", 4096, 0.01, 4.6) +
                           line("streaming_llm(window=20%)", 4096, 0.3, 3.3) +
                           line("local(window=12.5%)", 4096, 0.2, 2) + line("exact", 1024, 0, 16) +
                           line("local(window=50%)", 1024, 0.5, 8);

TEST(Presets, TheGoalDecidesAmongWhatFits) {
  const auto with_facts = [](std::string text, double facts) {
    text.insert(text.rfind('}'), ",\"facts\":" + std::to_string(facts));
    return text;
  };
  const std::string table = with_facts(line("local(window=50%)", 4096, 0.1, 8), 0.0) +
                            with_facts(line("exact+int4", 4096, 0.2, 4.6), 0.8) +
                            with_facts(line("exact+kivi", 4096, 0.3, 3.3), 1.0);
  const auto best = [&](PresetGoal goal) {
    return Presets::parse(table, "t").choose(small_model(), {}, "60%", goal);
  };
  EXPECT_EQ(best(PresetGoal::kText).measured.policy, "local(window=50%)");
  EXPECT_EQ(best(PresetGoal::kFacts).measured.policy, "exact+kivi");
  EXPECT_EQ(best(PresetGoal::kBoth).measured.policy, "exact+int4");
  EXPECT_NE(best(PresetGoal::kBoth).details().find("of 3 that fit"), std::string::npos);
  EXPECT_NE(best(PresetGoal::kBoth).details().find("the best found (100%)"), std::string::npos);
  EXPECT_NE(best(PresetGoal::kFacts).details().find("the most facts"), std::string::npos);
}

TEST(Presets, FactsThatWereNotMeasuredAreNoSmallBudget) {
  const auto code = [](const char* budget) {
    try {
      Presets::parse(kTable, "t").choose(small_model(), {}, budget, PresetGoal::kFacts);
    } catch (const Error& e) {
      return std::string(to_string(e.code()));
    }
    return std::string("chosen");
  };
  EXPECT_EQ(code("60%"), "unsupported");
  EXPECT_EQ(code("0.1%"), "invalid argument");
}

std::string chosen(const std::string& budget, size_t context = 0) {
  StandaloneOptions o;
  o.context = context;
  return Presets::parse(kTable, "t").choose(small_model(), o, budget).measured.policy;
}

TEST(Presets, TheLeastDivergenceThatFitsIsChosen) {
  EXPECT_EQ(chosen("100%"), "exact");
  EXPECT_EQ(chosen("99%"), "exact+int8");
  EXPECT_EQ(chosen("35%"), "exact+int4");
  EXPECT_EQ(chosen("25%"), "local(window=12.5%)") << "smaller and still better than streaming_llm";
  EXPECT_EQ(chosen("4MiB"), "exact") << "2 x 2 x 64 numbers of 2 bytes, 4096 tokens: 2 MiB";
  EXPECT_EQ(chosen("1.9MiB"), "exact+int8");
  EXPECT_EQ(chosen("600KiB"), "local(window=12.5%)") << "int4 with its exact window takes more";
}

TEST(Presets, TheChoiceSaysWhatAndWhy) {
  const PresetChoice c = Presets::parse(kTable, "t").choose(small_model(), {}, "25%");
  EXPECT_EQ(c.exact_bytes, kExact);
  EXPECT_EQ(c.budget_bytes, kExact / 4);
  EXPECT_LE(c.bytes, c.budget_bytes);
  EXPECT_EQ(c.bytes, kExact / 8) << "512 of 4096 rows, nothing else";
  EXPECT_EQ(c.context, 4096u);
  EXPECT_EQ(c.policy.to_string(), "local(window=12.5%)");
  for (const char* part : {"local(window=12.5%)", "fit 0.50 MiB", "KL 0.2 ±0.01", "2.00 bits",
                           "on m at 4096 tokens, 3 seeds"})
    EXPECT_NE(c.details().find(part), std::string::npos) << part << ": " << c.details();
  EXPECT_EQ(c.why(),
            "0.25 MiB of cache at most for 4096 tokens instead of 2.00 MiB (12%)\n"
            "not measured on this model; KL 0.2 at most on m at 4096 tokens");
}

TEST(Presets, FiguresAreSaidOfTheModelThatTheyAreOf) {
  const auto why = [](const std::string& table, const char* budget) {
    return Presets::parse(table, "t").choose(small_model(), {}, budget).why();
  };
  const std::string own = for_model(line("exact+int8", 4096, 0.001, 8.5), "a") +
                          for_model(line("exact+int4", 4096, 0.2, 4.6), "a");
  EXPECT_NE(why(own, "60%")
                .find("\nexpect what exact answers, but for a word here and there: "
                      "KL 0.001, measured on m at 4096 tokens"),
            std::string::npos)
      << why(own, "60%");
  EXPECT_NE(why(own, "40%").find("\nexpect answers that often differ"), std::string::npos);
  EXPECT_NE(why(kTable, "100%").find("\nexpect what exact answers: KL 0"), std::string::npos);
}

TEST(Presets, SharesAreOfWhatExactTakesInThisModel) {
  ModelConfig sliding = small_model();
  sliding.sliding_window = {128, 0};
  const PresetChoice c = Presets::parse(kTable, "t").choose(sliding, {}, "100%");
  // Half of the layers hold 128 of 4096 rows, and those that come at once.
  EXPECT_GE(c.exact_bytes, kExact / 2 + kExact / 2 * 128 / 4096);
  EXPECT_LE(c.exact_bytes, kExact * 55 / 100);
  EXPECT_EQ(c.budget_bytes, c.exact_bytes);
}

TEST(Presets, ShortContextsGetTheSmallest) {
  StandaloneOptions o;
  o.context = 60;
  const PresetChoice c = Presets::parse(kTable, "t").choose(small_model(), o, "1%");
  EXPECT_GT(c.bytes, c.budget_bytes);
  EXPECT_EQ(c.policy.to_string(), "local(window=50%)") << "the smallest of the nearest length";
}

TEST(Presets, EveryModelHasSomethingNearAnyBudget) {
  ModelConfig c = small_model();
  c.context = 32768;
  for (const double per_cent : {60, 54, 50, 45, 38, 33, 29, 20, 15, 10, 5}) {
    const auto choice = Presets::built_in().choose(c, {}, std::to_string(per_cent) + "%");
    EXPECT_GE(100.0 * static_cast<double>(choice.bytes) / static_cast<double>(choice.exact_bytes),
              0.6 * per_cent)
        << per_cent << ": " << choice.policy.to_string();
  }
}

TEST(Presets, TheNearestMeasuredLengthCounts) {
  EXPECT_EQ(chosen("60%", 1500), "local(window=50%)") << "1024 is nearer than 4096 by ratio";
  EXPECT_EQ(chosen("60%", 2100), "exact+int8");
  EXPECT_EQ(chosen("60%", 1 << 20), "exact+int8");
}

void refused(const std::string& budget, const std::string& words) {
  try {
    chosen(budget);
    ADD_FAILURE() << budget;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

TEST(Presets, BudgetsThatCannotBeAreRefused) {
  refused("10%", "0.25 MiB at");
  refused("1KiB", "below the least");
  refused("1024", "rows");
  refused("lots", "not a budget");
  refused("120%", "not a budget");
}

TEST(Presets, OtherFilesAreRefused) {
  const auto corrupt = [](const std::string& lines, const std::string& words) {
    try {
      Presets::parse(lines, "f.jsonl");
      ADD_FAILURE() << lines;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCorrupt);
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  corrupt("", "no preset in it");
  corrupt("once\n", "line 1");
  corrupt(line("exact", 10, 0, 16) + line("exakt", 10, 0, 16), "line 2");
  corrupt(line("exact", 0, 0, 16), "no sense");
  const std::string good = line("exact", 10, 0, 16);
  const size_t at = good.find("\"context\":") + 10, behind = good.find(',', at);
  for (const char* context : {"-5", "4.5", "\"8\"", "1e3"})
    corrupt(good.substr(0, at) + context + good.substr(behind), "context is ");
  const std::string own = for_model(line("exact", 10, 0, 16), "a");
  corrupt(own + line("exact", 10, 0, 16), "line 2");
  corrupt(line("exact", 10, 0, 16) + own, "another model");
  EXPECT_EQ(Presets::parse(own + own, "t").model_fingerprint(), "a");
  EXPECT_EQ(Presets::built_in().model_fingerprint(), "");
  EXPECT_THROW(Presets::read("/nowhere.jsonl"), Error);
}

TEST(Presets, WhatIsWrittenIsRead) {
  const std::filesystem::path file = testing::TempDir() + "written.jsonl";
  std::vector<Preset> presets = Presets::parse(kTable, "t").all();
  presets[1].facts = 0.75;
  Presets::write(file, presets, "0123");
  const Presets read = Presets::read(file);
  EXPECT_EQ(read.model_fingerprint(), "0123");
  ASSERT_EQ(read.all().size(), presets.size());
  for (size_t i = 0; i < presets.size(); ++i) {
    const Preset &a = read.all()[i], &b = presets[i];
    EXPECT_EQ(std::tie(a.policy, a.model, a.context, a.seeds, a.divergence, a.divergence_error,
                       a.bits, a.facts),
              std::tie(b.policy, b.model, b.context, b.seeds, b.divergence, b.divergence_error,
                       b.bits, b.facts));
  }
  std::filesystem::remove(file);
}

TEST(Presets, EveryLineIsOfItsModelAlone) {
  const Presets any = Presets::built_in();
  EXPECT_EQ(any.model_fingerprint(), "");
  EXPECT_EQ(Presets::built_in("0123456789abcdef").all().size(), any.all().size());
  ASSERT_GE(kPresetsOfModels.size(), 3u);
  for (const std::string_view text : kPresetsOfModels) {
    const Presets own = Presets::parse(text, "t");
    ASSERT_FALSE(own.model_fingerprint().empty());
    const Presets found = Presets::built_in(own.model_fingerprint());
    EXPECT_EQ(found.model_fingerprint(), own.model_fingerprint());
    EXPECT_GE(found.all().size(), own.all().size());
    for (const Preset& p : found.all())
      EXPECT_EQ(p.model_fingerprint, own.model_fingerprint()) << "of nobody else";
  }
  for (const Preset& p : any.all())
    EXPECT_EQ(p.policy.find("layers="), std::string::npos) << "not for any model: " << p.policy;
}

TEST(Presets, WhatADeviceLacksIsNotChosenThere) {
  const auto found = [](const Presets& presets, const std::string& part, Device device) {
    StandaloneOptions o;
    o.context = 4096, o.threads = 1, o.device = device;
    return std::ranges::count_if(presets.fitting(small_model(), o, "100%"), [&](const Preset& p) {
      return p.policy.find(part) != std::string::npos;
    });
  };
  const Presets wide = Presets::parse(kTable + line("exact+gear(rank=9)", 4096, 0.005, 8), "t");
  EXPECT_EQ(found(wide, "gear", Device::kCpu), 1);
  EXPECT_EQ(found(wide, "gear", Device::kCuda), 0);
  const Presets any = Presets::built_in();  // both devices have all of it
  for (const char* form : {"pre_rope", "kvtc"}) {
    const auto on_cpu = found(any, form, Device::kCpu);
    EXPECT_GT(on_cpu, 0) << form;
    EXPECT_EQ(found(any, form, Device::kCuda), on_cpu) << form;
  }
}

TEST(Presets, TheBuiltInTablesFitEveryBudgetTheyAccept) {
  std::vector<std::string_view> texts = kPresetsOfModels;
  texts.push_back(kPresetsForAny.front());
  for (const std::string_view text : texts) {
    const Presets presets = Presets::built_in(Presets::parse(text, "t").model_fingerprint());
    for (const Preset& p : presets.all()) EXPECT_NE(p.model, "demo") << "figures of a real model";
    double before = -1;
    for (const char* budget : {"100%", "60%", "40%", "30%", "20%"}) {
      StandaloneOptions o;
      o.context = 8192, o.threads = 1;
      const PresetChoice c = presets.choose(small_model(), o, budget, PresetGoal::kText);
      EXPECT_LE(c.bytes, c.budget_bytes) << budget;
      EXPECT_GE(c.measured.divergence, before) << "less memory, no smaller divergence";
      before = c.measured.divergence;
    }
  }
}

}  // namespace
}  // namespace pith
