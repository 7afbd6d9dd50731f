// The reproductions' measurements against those that they are built on, and how tables are said.

#include "tools/eval/reproduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "paths.h"
#include "pith/error.h"
#include "tools/eval/reproduce_bench.h"
#include "tools/eval/reproduce_text.h"

namespace pith {
namespace {

struct Setting {
  ReproduceOptions options;
  std::vector<ReproducedTable> tables;

  explicit Setting(size_t tokens, uint32_t step = 37) {
    options.model = Model::load(repo_dir() / "models/demo", false);
    options.quick = true, options.seeds = 2;
    for (uint32_t i = 0; i < tokens; ++i)
      options.text.push_back(static_cast<int32_t>(300 + i * step % 211));
    options.finished = [this](const ReproducedTable& t) { tables.push_back(t); };
  }
};

void expect_sound(const ReproducedTable& t) {
  EXPECT_FALSE(t.rows.empty() || t.columns.empty() || t.source.empty()) << t.id;
  for (const TableRow& row : t.rows) {
    EXPECT_EQ(row.cells.size(), t.columns.size()) << t.id << ": " << row.name;
    for (const Cell& cell : row.cells)
      if (cell.value) {
        EXPECT_TRUE(std::isfinite(*cell.value)) << t.id << ": " << row.name;
      }
  }
}

TEST(Reproduce, QualityIsThatOfPerplexity) {
  const Setting s(96);
  const ReproduceBench bench(s.options);
  PerplexityOptions p;
  p.mode = PerplexityMode::kDecode, p.window = 96;
  const auto got = bench.quality(
      "stage", p, {{"exact", "exact"}, {"few", "uniform(budget=8),sink=1,window=4", true}});
  EXPECT_LT(*got[0].divergence().value, 1e-6);
  EXPECT_EQ(*got[0].same_top().value, 100);
  ASSERT_EQ(got[1].seeds.size(), 2u);
  EXPECT_GT(*got[1].divergence().value, 0.01);
  EXPECT_GT(got[1].divergence().error, 0) << "two seeds";
  p.session.f32_arithmetic = true;
  Perplexity reference(s.options.model, s.options.text, p);
  const std::vector<PerplexityRun> runs{{Policy::parse("uniform(budget=8),sink=1,window=4"), 1}};
  const auto piece = reference.run(0, runs, [](size_t) { return true; });
  EXPECT_EQ(got[1].seeds[1].perplexity.mean, summarise(piece[0].predictions).perplexity.mean);
  EXPECT_EQ(got[0].ledger.rows_kept, 95u * 16);
}

TEST(Reproduce, MeanRowsCountsWhatACacheHolds) {
  EXPECT_EQ(mean_rows("exact", 10, 10), 5.5);
  EXPECT_EQ(mean_rows("local(window=4)", 10, 6), 4);
  EXPECT_EQ(mean_rows("h2o(budget=3,interval=1),sink=0,window=3", 60, 30), 6);
  const double buzz = mean_rows("buzz(T=40),sink=4,window=10", 4000, 2000);
  EXPECT_GT(buzz, 14 + 8);
  EXPECT_LT(buzz, 14 + 40);
}

TEST(Reproduce, EveryPaperQuickly) {
  for (const Reproduction& paper : reproductions()) {
    Setting s(paper.quick_tokens);
    s.options.seeds = 1;
    paper.run(s.options);
    EXPECT_GE(s.tables.size(), 2u) << paper.name;
    std::vector<std::string_view> made;
    for (const ReproducedTable& t : s.tables) made.push_back(t.id);
    if (paper.name == "express") made.push_back("times");  // the program's
    EXPECT_TRUE(std::ranges::equal(made, paper.tables)) << paper.name;
    for (const ReproducedTable& t : s.tables) {
      expect_sound(t);
      EXPECT_FALSE(table_text(t).empty());
    }
  }
}

TEST(Reproduce, StopsWhenAsked) {
  for (const Reproduction& paper : reproductions()) {
    Setting s(paper.quick_tokens);
    s.options.progress = [](const std::string&, size_t, size_t) { return false; };
    EXPECT_THROW(paper.run(s.options), ReproduceCancelled) << paper.name;
    EXPECT_TRUE(s.tables.empty()) << paper.name;
  }
}

TEST(Reproduce, NamesThatAreNoneAreRefused) {
  EXPECT_THROW(find_reproduction("nobody"), Error);
  const std::vector<std::string> known{"parts"}, unknown{"parts", "error"};
  EXPECT_NO_THROW(check_tables(find_reproduction("csr"), known));
  EXPECT_THROW(check_tables(find_reproduction("csr"), unknown), Error);
}

TEST(Reproduce, OnlyTheTablesAskedFor) {
  Setting s(find_reproduction("csr").quick_tokens);
  s.options.only = {"memory"};
  find_reproduction("csr").run(s.options);
  ASSERT_EQ(s.tables.size(), 1u);
  EXPECT_EQ(s.tables[0].id, "memory");
}

// A trained dictionary is the paper's form; without one there is no verdict.
TEST(Reproduce, CsrTakesATrainedDictionary) {
  Setting s(find_reproduction("csr").quick_tokens);
  s.options.only = {"parts", "memory"};
  find_reproduction("csr").run(s.options);
  s.options.dictionary = repo_dir().string() + "/models/demo/csr.safetensors";
  find_reproduction("csr").run(s.options);
  ASSERT_EQ(s.tables.size(), 4u);
  for (const size_t untrained : {0, 1})
    for (const Claim& claim : s.tables[untrained].claims) {
      EXPECT_EQ(claim.form, Form::kUntrained);
      EXPECT_FALSE(claim.holds) << claim.paper;
    }
  EXPECT_EQ(s.tables[1].rows.size(), 9u) << "exact, and kivi, gear and csr at their bits";
  EXPECT_EQ(s.tables[2].rows.size(), s.tables[0].rows.size() + 2) << "4 and 8 trained pairs";
  EXPECT_FALSE(s.tables[2].claims[0].holds) << "one part and two were not both trained";
  EXPECT_EQ(s.tables[2].claims[1].holds, true) << "more pairs, smaller errors";
  EXPECT_EQ(s.tables[3].claims[0].form, Form::kPaper);
  EXPECT_TRUE(s.tables[3].claims[0].holds);
  EXPECT_NE(s.tables[3].rows.back().policy.find("online=0,dict="), std::string::npos);
}

ReproducedTable small_table() {
  return {"id",
          "Title",
          "Paper, Table 1",
          "what ran",
          {{"error", 2}, {"paper", 1, true}},
          {{"a|b", "uniform", {{1.234, 0.5}, {}}}, {"longer", "", {{0.0001}, {9.0}}}},
          {{"a < b", "1 < 2", true, Form::kPaper, "uniform"},
           {"b < a", "2 > 1", false},
           {"c < d", "exact fails", std::nullopt}}};
}

TEST(Reproduce, TablesAsText) {
  const std::string text = table_text(small_table());
  EXPECT_NE(text.find("             error  paper*\n"
                      "a|b     1.23 ±0.50\n"
                      "longer     0.00010     9.0\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(" yes  a < b (the paper's): 1 < 2\n  NO  b < a: 2 > 1\n"
                      "open  c < d: exact fails\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("another model"), std::string::npos);
}

TEST(Reproduce, TablesAsMarkdownAndRecords) {
  const std::string page = table_markdown(small_table());
  EXPECT_NE(page.find("| a\\|b, `uniform` | 1.23 ±0.50 |  |\n"), std::string::npos) << page;
  EXPECT_NE(page.find("| a < b | the paper's | yes | 1 < 2 | `uniform` |"), std::string::npos)
      << page;
  EXPECT_NE(page.find("| b < a |  | NO | 2 > 1 |  |"), std::string::npos) << page;
  const Record r = table_record(small_table());
  EXPECT_EQ(r["rows"][0]["cells"].size(), 1u);
  EXPECT_EQ(r["rows"][1]["cells"][1]["paper"], true);
  EXPECT_EQ(r["claims"][1]["holds"], false);
  EXPECT_TRUE(r["claims"][2]["holds"].is_null());
  EXPECT_EQ(r["claims"][0]["form"], "the paper's");
  EXPECT_EQ(r["claims"][0]["policy"], "uniform");
}

}  // namespace
}  // namespace pith
