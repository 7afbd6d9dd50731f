// Metrics against reference packages (tools/golden/make_metrics.py) and by hand.

#include "tools/eval/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "pith/error.h"

namespace pith {
namespace {

using Strings = std::vector<std::string>;

TEST(Metrics, AgreeWithReferencePackages) {
  std::ifstream in(repo_dir().string() + "/tests/data/eval/metrics.json");
  const auto cases = nlohmann::json::parse(in);
  ASSERT_GT(cases.size(), 40u);
  for (const auto& c : cases) {
    const Strings reference{c["reference"]};
    const std::string answer = c["answer"];
    for (const Metric m : {Metric::kRougeL, Metric::kRouge1Recall, Metric::kF1, Metric::kExact,
                           Metric::kEditSimilarity}) {
      EXPECT_NEAR(score_answer(m, answer, reference), c[to_string(m)].get<double>(), 1e-6)
          << to_string(m) << ": '" << answer << "' against '" << reference[0] << "'";
    }
  }
}

TEST(Metrics, ContainsCountsReferences) {
  const Strings two{"Alpha", "beta"};
  EXPECT_EQ(score_answer(Metric::kContainsAll, "ALPHA only", two), 0.5);
  EXPECT_EQ(score_answer(Metric::kContainsAny, "ALPHA only", two), 1);
  EXPECT_EQ(score_answer(Metric::kContainsAny, "none", two), 0);
  EXPECT_THROW(score_answer(Metric::kF1, "x", {}), Error);
}

TEST(Metrics, ClassificationSharesBetweenNamedClasses) {
  const Strings classes{"Number", "Ordinal Number", "City"};
  EXPECT_EQ(score_answer(Metric::kClassification, "a City", Strings{"City"}, classes), 1);
  EXPECT_EQ(score_answer(Metric::kClassification, "City, Number", Strings{"City"}, classes), 0.5);
  EXPECT_EQ(
      score_answer(Metric::kClassification, "Ordinal Number", Strings{"Ordinal Number"}, classes),
      1)
      << "the class inside the right one's name does not count";
  EXPECT_EQ(score_answer(Metric::kClassification, "Number", Strings{"City"}, classes), 0);
}

TEST(Metrics, BoxedAnswersMayNest) {
  EXPECT_EQ(boxed_answer("first \\boxed{1}, then \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(boxed_answer("\\boxed 7$ done"), "7");
  EXPECT_EQ(boxed_answer("\\boxed{never closed"), "");
  EXPECT_EQ(boxed_answer("nothing"), "");
  EXPECT_EQ(score_answer(Metric::kBoxed, "so \\boxed{ (1, 2) }", Strings{"(1,2)"}), 1);
  EXPECT_EQ(score_answer(Metric::kBoxed, "12", Strings{"12"}), 0);
}

TEST(Metrics, BoxedAnswersOfOneMeaningAreTheSame) {
  const auto score = [](const std::string& boxed, const std::string& reference) {
    return score_answer(Metric::kBoxed, "\\boxed{" + boxed + "}", Strings{reference});
  };
  EXPECT_EQ(score("(3, \\dfrac{\\pi}{2}).", "\\left( 3, \\frac{\\pi}{2} \\right)"), 1);
  EXPECT_EQ(score("90^{\\circ}", "90"), 1);
  EXPECT_EQ(score("\\$12\\%", "12"), 1);
  EXPECT_EQ(score("1,\\!000", "1,000"), 1);
  EXPECT_EQ(score("a\\leftarrow b", "aarrow b"), 0);
  EXPECT_EQ(score("1.5", "15"), 0);
  EXPECT_EQ(score(".", ""), 0) << "nothing is no answer";
}

}  // namespace
}  // namespace pith
