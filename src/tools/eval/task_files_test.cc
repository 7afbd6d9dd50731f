#include "tools/eval/task_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "pith/error.h"

namespace pith {
namespace {

class TaskFiles : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pith_tasks_XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::vector<Sample> read(const std::string& text, const char* format, size_t count = 0) {
    std::ofstream(folder_ / "f") << text;
    return read_samples(folder_ / "f", format, count);
  }
  std::filesystem::path folder_;
};

TEST_F(TaskFiles, EachFormatIsReadWithItsMetric) {
  const auto ruler = read(R"({"input":"head\ntext\nWhat? It is","outputs":["7","8"]})", "ruler");
  EXPECT_EQ(ruler[0].context, "head\ntext");
  EXPECT_EQ(ruler[0].turns[0].question, "\nWhat? It is");
  EXPECT_EQ(ruler[0].turns[0].references.size(), 2u);
  const auto trec = read(
      R"({"input":"q","context":"c","answers":["City"],"all_classes":["City","Date"],"dataset":"trec_e"})",
      "longbench");
  EXPECT_EQ(trec[0].metric, Metric::kClassification);
  EXPECT_EQ(trec[0].turns[0].classes.size(), 2u);
  const auto math = read(R"({"problem":"1+1?","answer":"2"})", "math500");
  EXPECT_EQ(math[0].metric, Metric::kBoxed);
  const auto kv =
      read(R"({"ordered_kv_records":[["a","b"],["c","d"]],"key":"c","value":"d"})", "litm-kv");
  EXPECT_NE(kv[0].context.find("{\"a\": \"b\",\n \"c\": \"d\"}"), std::string::npos);
  const auto qa =
      read(R"({"question":"who","answers":["x"],"ctxs":[{"title":"T","text":"x y"}]})", "litm-qa");
  EXPECT_NE(qa[0].context.find("Document [1](Title: T) x y"), std::string::npos);
}

TEST_F(TaskFiles, CountsAndRefuses) {
  const std::string line = R"({"problem":"p","answer":"2"})";
  EXPECT_EQ(read(line + "\n" + line + "\n" + line, "math500", 2).size(), 2u);
  EXPECT_THROW(read(line, "mmlu"), Error);
  EXPECT_THROW(read("{", "math500"), Error);
  EXPECT_THROW(read(R"({"problem":3})", "math500"), Error);
  EXPECT_THROW(read("", "math500"), Error);
  EXPECT_THROW(read_samples(folder_ / "none", "ruler", 0), Error);
  EXPECT_THROW(
      read(R"({"input":"","context":"","answers":["x"],"dataset":"dureader"})", "longbench"),
      Error);
}

}  // namespace
}  // namespace pith
