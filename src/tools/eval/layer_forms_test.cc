#include "tools/eval/layer_forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "pith/error.h"
#include "pith/policy.h"

namespace pith {
namespace {

const std::vector<std::string> kForms{"exact+int8", "knorm(budget=10%)", "exact+int4",
                                      "uniform",             // worse and dearer than int4
                                      "knorm(budget=20%)"};  // above the line around it
const std::vector<double> kBits{8.5, 1.6, 4.5, 5.0, 3.2};
const std::vector<double> kLosses{0.0001, 0.5, 0.01, 0.02, 0.4};

/// Loses so much of what each form does.
FormUnit unit(double weight) {
  FormUnit u{kLosses, kBits};
  for (double& loss : u.losses) loss *= weight;
  return u;
}

/// The least loss of all choices within `bits`, each tried.
double best_loss(const std::vector<FormUnit>& units, double bits) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<size_t> chosen(units.size());
  for (;;) {
    if (bits_of(units, chosen) <= bits) best = std::min(best, loss_of(units, chosen));
    size_t l = 0;
    while (l < chosen.size() && ++chosen[l] == kForms.size()) chosen[l++] = 0;
    if (l == chosen.size()) return best;
  }
}

TEST(LayerForms, TheChoiceIsWithinAStepOfTheBestOfAll) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<FormUnit> units(5);
    for (FormUnit& u : units) u = unit(trial == 0 ? 1 : uniform(random) * uniform(random));
    for (double bits : {1.6, 2.3, 3.0, 4.5, 6.0, 9.0}) {
      const auto chosen = choose_forms(units, bits);
      ASSERT_EQ(chosen.size(), units.size());
      EXPECT_LE(bits_of(units, chosen), bits + 1e-9);
      for (size_t f : chosen) EXPECT_TRUE(f != 3 && f != 4) << "a form beside the hull";
      // The loss of a walk along the hull, 1, 2, 0: a step that did not fit.
      double step = 0;
      for (size_t l = 0; l < chosen.size(); ++l) {
        if (chosen[l] == 1) step = std::max(step, units[l].losses[1] - units[l].losses[2]);
        if (chosen[l] == 2) step = std::max(step, units[l].losses[2] - units[l].losses[0]);
      }
      EXPECT_LE(loss_of(units, chosen), best_loss(units, bits) + step + 1e-9) << bits;
      if (bits == 1.6 || bits >= 8.5) {
        EXPECT_EQ(chosen, std::vector<size_t>(5, bits == 1.6 ? 1 : 0));
      }
    }
  }
}

TEST(LayerForms, HeavyLayersComeFirst) {
  const auto chosen = choose_forms(std::vector{unit(0.1), unit(3), unit(0.2), unit(0)}, 3.06);
  EXPECT_EQ(chosen, (std::vector<size_t>{1, 2, 2, 1}));
}

TEST(LayerForms, AHeadInWhichAFormIsCheapMayBeWorthMore) {
  // As under a sliding window, where all rows are few.
  FormUnit sliding = unit(0.1);
  for (double& bits : sliding.bits) bits /= 10;
  EXPECT_EQ(choose_forms(std::vector{unit(0.5), sliding}, 1.1), (std::vector<size_t>{1, 2}));
}

TEST(LayerForms, EachUnitHasTheKindThatLosesLeastInIt) {
  // The last form costs what the second does: better for one unit, worse for the other.
  std::vector<FormUnit> units{unit(1), unit(1)};
  units[0].losses.push_back(0.02), units[1].losses.push_back(2);
  for (FormUnit& u : units) u.bits.push_back(1.6);
  EXPECT_EQ(choose_forms(units, 1.6), (std::vector<size_t>{5, 1}));
  EXPECT_EQ(choose_forms(units, 3.1), (std::vector<size_t>{5, 2}));
}

TEST(LayerForms, AFormThatSavesLittleGoes) {
  // A sixth form is hardly better than the third in half of the heads.
  std::vector<FormUnit> units;
  for (int i = 0; i < 20; ++i) units.push_back(unit(i + 1));
  for (size_t u = 0; u < units.size(); ++u) {
    units[u].losses.push_back(units[u].losses[2] * (u % 2 == 0 ? 0.999 : 1.001));
    units[u].bits.push_back(4.5);
  }
  const auto forms_of = [](const std::vector<size_t>& chosen) {
    return std::set<size_t>(chosen.begin(), chosen.end());
  };
  const auto all = choose_forms(units, 4.6), few = choose_few_forms(units, 4.6, 0.02),
             one = choose_few_forms(units, 4.6, 1e9);
  EXPECT_EQ(choose_few_forms(units, 4.6, 0), all) << "each is worth something";
  EXPECT_EQ(forms_of(all).count(5), 1u);
  EXPECT_LT(forms_of(few).size(), forms_of(all).size());
  EXPECT_LE(loss_of(units, few), 1.05 * loss_of(units, all));
  EXPECT_LE(bits_of(units, few), 4.6);
  EXPECT_EQ(forms_of(one).size(), 1u) << "whatever it loses";
  EXPECT_LE(bits_of(units, one), 4.6);
}

// As a selector that does not go into layers that slide.
TEST(LayerForms, AFormThatAHeadMayNotHaveIsNotChosenThere) {
  std::vector<FormUnit> units(6, unit(1));
  for (size_t u = 0; u < 3; ++u) units[u].bits[1] = units[u].bits[4] = kNotThere;
  EXPECT_NEAR(least_bits(units), (3 * 4.5 + 3 * 1.6) / 6, 1e-12);
  const double bits = least_bits(units) + 1e-9;
  for (const auto& chosen : {choose_forms(units, bits), choose_few_forms(units, bits, 0)})
    EXPECT_EQ(chosen, (std::vector<size_t>{2, 2, 2, 1, 1, 1}));
  for (const double more : {3.1, 4.2, 8.0})
    EXPECT_LE(bits_of(units, choose_few_forms(units, more, 1e9)), more);
}

TEST(LayerForms, TooFewBitsAreRefused) {
  EXPECT_THROW(choose_forms(std::vector{unit(1)}, 1.5), Error);
}

TEST(LayerForms, ThePolicySaysWhichLayerHasWhich) {
  const std::vector<size_t> chosen{0, 0, 1, 1, 1, 1, 0, 2, 1, 1, 0, 0, 0, 2, 0, 0};  // [8, 2]
  const std::string text = policy_of(kForms, chosen, 2);
  EXPECT_EQ(text, "exact+int8;layers=1-2,4:knorm(budget=10%);layers=3,6/heads=1:exact+int4");
  const Policy policy = Policy::parse(text);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const PolicyRule& rule =
        policy.rule_for(static_cast<int>(i / 2), 8, static_cast<int>(i % 2), 2);
    const PolicyRule alone = Policy::parse(kForms[chosen[i]]).rules[0];
    EXPECT_EQ(rule.selector.name, alone.selector.name) << i;
    ASSERT_EQ(rule.key_codec.has_value(), alone.key_codec.has_value()) << i;
    if (rule.key_codec) {
      EXPECT_EQ(rule.key_codec->name, alone.key_codec->name) << i;
    }
  }
}

}  // namespace
}  // namespace pith
