#include "tools/eval/layer_forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "pith/error.h"
#include "pith/policy.h"

namespace pith {
namespace {

const std::vector<LayerForm> kForms{{"exact+int8", 8.5},
                                    {"knorm(budget=10%)", 1.6},
                                    {"exact+int4", 4.5},
                                    {"uniform", 5.0},             // worse and dearer than int4
                                    {"knorm(budget=20%)", 3.2}};  // above the line around it
const std::vector<double> kLosses{0.0001, 0.5, 0.01, 0.02, 0.4};

/// Loses so much of what each form does.
FormUnit unit(double weight, size_t heads = 1) {
  FormUnit u{kLosses, heads};
  for (double& loss : u.losses) loss *= weight;
  return u;
}

double bits_of(const std::vector<LayerForm>& forms, const std::vector<FormUnit>& units,
               const std::vector<size_t>& chosen) {
  double bits = 0, heads = 0;
  for (size_t u = 0; u < chosen.size(); ++u) {
    bits += forms[chosen[u]].bits * static_cast<double>(units[u].heads);
    heads += static_cast<double>(units[u].heads);
  }
  return bits / heads;
}
double loss_of(const std::vector<FormUnit>& units, const std::vector<size_t>& chosen) {
  double loss = 0;
  for (size_t u = 0; u < chosen.size(); ++u) loss += units[u].losses[chosen[u]];
  return loss;
}

/// The least loss of all choices within `bits`, each tried.
double best_loss(const std::vector<LayerForm>& forms, const std::vector<FormUnit>& units,
                 double bits) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<size_t> chosen(units.size());
  for (;;) {
    if (bits_of(forms, units, chosen) <= bits) best = std::min(best, loss_of(units, chosen));
    size_t l = 0;
    while (l < chosen.size() && ++chosen[l] == forms.size()) chosen[l++] = 0;
    if (l == chosen.size()) return best;
  }
}

TEST(LayerForms, TheChoiceIsWithinAStepOfTheBestOfAll) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<FormUnit> units(5);
    for (FormUnit& u : units)
      u = trial == 0 ? unit(1, 2) : unit(uniform(random) * uniform(random), 1 + random() % 3);
    for (double bits : {1.6, 2.3, 3.0, 4.5, 6.0, 9.0}) {
      const auto chosen = choose_forms(kForms, units, bits);
      ASSERT_EQ(chosen.size(), units.size());
      EXPECT_LE(bits_of(kForms, units, chosen), bits + 1e-9);
      for (size_t f : chosen) EXPECT_TRUE(f != 3 && f != 4) << "a form beside the hull";
      // The loss of a walk along the hull, 1, 2, 0: a step that did not fit.
      double step = 0;
      for (size_t l = 0; l < chosen.size(); ++l) {
        if (chosen[l] == 1) step = std::max(step, units[l].losses[1] - units[l].losses[2]);
        if (chosen[l] == 2) step = std::max(step, units[l].losses[2] - units[l].losses[0]);
      }
      EXPECT_LE(loss_of(units, chosen), best_loss(kForms, units, bits) + step + 1e-9) << bits;
      if (bits == 1.6 || bits >= 8.5) {
        EXPECT_EQ(chosen, std::vector<size_t>(5, bits == 1.6 ? 1 : 0));
      }
    }
  }
}

TEST(LayerForms, HeavyLayersComeFirst) {
  const auto chosen =
      choose_forms(kForms, std::vector{unit(0.1), unit(3), unit(0.2), unit(0)}, 3.06);
  EXPECT_EQ(chosen, (std::vector<size_t>{1, 2, 2, 1}));
  // A head of little weight may be worth more than a layer of ten, since it costs a tenth.
  EXPECT_EQ(choose_forms(kForms, std::vector{unit(0.5, 10), unit(0.1)}, 1.9),
            (std::vector<size_t>{1, 2}));
}

TEST(LayerForms, EachUnitHasTheKindThatLosesLeastInIt) {
  // The last form costs what the second does: better for one unit, worse for the other.
  std::vector<LayerForm> forms = kForms;
  forms.push_back({"local(window=10%)", 1.6});
  std::vector<FormUnit> units{unit(1), unit(1)};
  units[0].losses.push_back(0.02), units[1].losses.push_back(2);
  EXPECT_EQ(choose_forms(forms, units, 1.6), (std::vector<size_t>{5, 1}));
  EXPECT_EQ(choose_forms(forms, units, 3.1), (std::vector<size_t>{5, 2}));
}

TEST(LayerForms, SizesOfOneKindDifferInShares) {
  EXPECT_EQ(kind_of("express(heavy=12.5%,s=6.4%)+int4"), "express(heavy=%,s=%)+int4");
  EXPECT_EQ(kind_of("local(window=25%)"), kind_of("local(window=5%)"));
  EXPECT_NE(kind_of("local(window=25)"), kind_of("local(window=5)"));
  EXPECT_EQ(kind_of("exact+int4"), kind_of("exact+k:int8+v:int4,window=32"));
  EXPECT_NE(kind_of("exact+int4"), kind_of("local(window=25%)+int4"));
}

TEST(LayerForms, ALossGrowsWithAPowerOfWhatAllLose) {
  const std::vector<KnownLoss> one{{0.4, 0.02}}, two{{0.4, 0.08}, {0.1, 0.005}};
  EXPECT_DOUBLE_EQ(loss_alone(one, 0.1), 0.005);
  EXPECT_DOUBLE_EQ(loss_alone(two, 0.4), 0.08);
  EXPECT_DOUBLE_EQ(loss_alone(two, 0.1), 0.005);
  EXPECT_DOUBLE_EQ(loss_alone(two, 0.2), 0.02);
  EXPECT_DOUBLE_EQ(loss_alone(two, 0.8), 0.32);
  // Noise: more rows lose more, or nothing at all.
  const std::vector<KnownLoss> rises{{0.4, 0.001}, {0.1, 0.002}}, none{{0.4, 0.001}, {0.1, 0}};
  EXPECT_NEAR(loss_alone(rises, 0.1), 0.001 / std::pow(4, 0.25), 1e-12);
  EXPECT_NEAR(loss_alone(none, 0.1), 0.001 / 256, 1e-12);
  EXPECT_EQ(loss_alone(std::vector<KnownLoss>{{0.4, 0}}, 0.1), 0);
  // A known form of more bits need not lose less in all layers.
  EXPECT_DOUBLE_EQ(loss_alone(std::vector<KnownLoss>{{0.1, 0.01}, {0.2, 0.001}}, 0.2), 0.02);
}

TEST(LayerForms, TooFewBitsAreRefused) {
  EXPECT_THROW(choose_forms(kForms, std::vector{unit(1)}, 1.5), Error);
  EXPECT_THROW(choose_forms({}, std::vector{unit(1)}, 1.5), Error);
}

TEST(LayerForms, ThePolicySaysWhichLayerHasWhich) {
  const std::vector<size_t> chosen{0, 0, 1, 1, 1, 1, 0, 2, 1, 1, 0, 0, 0, 2, 0, 0};  // [8, 2]
  const std::string text = policy_of(kForms, chosen, 2);
  EXPECT_EQ(text, "exact+int8;layers=1-2,4:knorm(budget=10%);layers=3,6/heads=1:exact+int4");
  const Policy policy = Policy::parse(text);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const PolicyRule& rule =
        policy.rule_for(static_cast<int>(i / 2), 8, static_cast<int>(i % 2), 2);
    const PolicyRule alone = Policy::parse(kForms[chosen[i]].policy).rules[0];
    EXPECT_EQ(rule.selector.name, alone.selector.name) << i;
    ASSERT_EQ(rule.key_codec.has_value(), alone.key_codec.has_value()) << i;
    if (rule.key_codec) {
      EXPECT_EQ(rule.key_codec->name, alone.key_codec->name) << i;
    }
  }
}

}  // namespace
}  // namespace pith
