#include "pith/policy.h"

#include <gtest/gtest.h>

#include "pith/error.h"
#include "policy/registry.h"

namespace pith {
namespace {

std::string error_of(const std::string& text) {
  try {
    Policy::parse(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << text;
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(Policy, ParsesBackToItself) {
  for (const char* text :
       {"exact", "local", "streaming_llm(window=508)", "uniform(rate=0.25)+bf16,sink=4,window=64",
        "uniform(budget=25%,weights=false)+k:f32+v:f16", "exact+k:bf16,dtype=f32",
        "local(window=16MiB);layers=0-1,-1:exact", "exact;layers=2/heads=0:local;heads=-1:exact",
        "exact+int4,window=8,prompt=exact;layers=0:exact,sink=2", "buzz,prompt=once"})
    EXPECT_EQ(Policy::parse(text).to_string(), text);
  EXPECT_EQ(Policy::parse(" uniform( rate = 0.5 ) + f16 , sink = 4 ").to_string(),
            "uniform(rate=0.5)+f16,sink=4");
  EXPECT_EQ(Policy::parse("exact,prompt=chunks").to_string(), "exact");
  EXPECT_EQ(Policy::parse("f32").to_string(), "exact+f32") << "a codec alone keeps every row";
}

TEST(Policy, TheLastRuleThatNamesAHeadIsInForce) {
  const Policy p = Policy::parse("local;layers=0-1,-1:exact;layers=1/heads=1-2:uniform");
  EXPECT_EQ(p.rule_for(0, 8, 0, 4).selector.name, "exact");
  EXPECT_EQ(p.rule_for(1, 8, 0, 4).selector.name, "exact");
  EXPECT_EQ(p.rule_for(1, 8, 1, 4).selector.name, "uniform");
  EXPECT_EQ(p.rule_for(2, 8, 1, 4).selector.name, "local");
  EXPECT_EQ(p.rule_for(7, 8, 3, 4).selector.name, "exact");
}

TEST(Policy, RefusesWithAReason) {
  const auto says = [](const std::string& policy, const std::string& reason) {
    EXPECT_NE(error_of(policy).find(reason), std::string::npos) << error_of(policy);
  };
  says("", "it is empty");
  says("exakt", "did you mean 'exact'?");
  says("tent", "did you mean 'tenth'?");  // where a size is read too
  says("snapkvv", "selectors: exact, local");
  says("local(widow=3)", "no parameter 'widow' (did you mean 'window'?); it takes window");
  says("exact(n=1)", "it takes none");
  says("local(window)", "is not name=value");
  says("local(window=1,window=2)", "given twice");
  says("local(window=1", "parentheses do not match");
  says("local)", "parentheses do not match");
  says("local+exact", "two selectors");
  says("exact+f16+f32", "two codecs");
  says("exact+", "an empty part");
  says("k:local", "go before codecs");
  says("exact,sink=-1", "is not a number of rows");
  says("exact,sunk=1", "unknown setting");
  says("exact,prompt=whole", "'chunks', 'exact' or 'once'");
  says("exact,prompt=exact,prompt=exact", "given twice");
  says("exact;layers=0:local,prompt=exact", "in the first rule");
  says("exact,sink=1,sink=2", "given twice");
  says("exact,dtype=fp8", "supported: f32, f16, bf16");
  says("layers=0:exact", "the first rule is the default");
  says("exact;local", "must say which layers");
  says("exact;layers=x:local", "is not a layer or head number");
  says("exact;layers=0 local", "a ':' is missing");
}

TEST(Policy, RefusesValuesWithWhatIsAccepted) {
  const auto says = [](const std::string& policy, const std::string& reason) {
    EXPECT_NE(error_of(policy).find(reason), std::string::npos) << error_of(policy);
  };
  says("snapkv(budget=abc)", "snapkv: budget=abc is not a number of rows (1024), a share");
  says("snapkv(budget=0)", "budget=0 is not");
  says("snapkv(budget=-1)", "budget=-1 is not");
  says("snapkv(kernel=1125899906842623)", "is not an odd number from 1 to 1023");
  says("snapkv(kernel=4)", "is not an odd number from 1 to 1023");
  says("snapkv(queries=-1)", "is not a whole number from 1 to 2^30");
  says("uniform(heavy_interval=banana)", "heavy_interval=banana is not a whole number from 1");
  says("uniform(rate=2)", "is not a number from 1e-06 to 1");
  says("uniform(rate=nan)", "is not a number from 1e-06 to 1");
  says("uniform(rate=0.5,budget=10)", "give one of them");
  says("uniform(weights=yes)", "is not one of true, false");
  says("balancekv(b=7,heavy=0)", "is not a multiple of 2 from 2 to 65536");
  says("balancekv(heavy=0,rate=0.3)", "is not a power of 1/2");
  says("express(heavy=0,s=4)", "needs at least 8");
  says("buzz(s=2)", "is not a whole number from 3");
  says("kivi(bits=3)", "is not one of 2, 4");
  says("gear(rows=33)", "is not a multiple of 32 from 32 to 2^20");
  says("qjl(m=17)", "is not a multiple of 16");
  says("qjl(residual=2,outliers=4)", "leave 'outliers' out");
  says("csr(online=0)", "leaves no atoms");
  says("ladder(new=banana)", "unknown method 'banana'");
  says("ladder(new=kivi(bits=3))", "is not one of 2, 4");
  says("ladder(old=ladder)", "cannot be one of its steps");
  says("exact;layers=1:snapkv(kernel=0)", "is not an odd number");
}

TEST(Policy, OptionsAreReadIntoTheirStructAndPrintedFromIt) {
  struct Sample {
    size_t count = 3;
    std::optional<double> share;
    Budget budget = Budget::rows(7);
    bool on = false;
    Fields fields() {
      return {whole("count", count, {.most = 9}, "c"), number("share", share, {0, 1}, "s"),
              rows("budget", budget, "b"), flag("on", on, "o").when(on)};
    }
  };
  EXPECT_EQ(write_options("x", Sample{}), "x(count=3,budget=7)");
  const auto read = read_options<Sample>(
      {"x", {{"count", "9"}, {"share", "0.125"}, {"budget", "1.5MiB"}, {"on", "true"}}});
  EXPECT_EQ(write_options("x", read.as<Sample>()), "x(count=9,share=0.125,budget=1.5MiB,on=true)");
  EXPECT_THROW(read_options<Sample>({"x", {{"count", "10"}}}), Error);
  EXPECT_THROW(read_options<Sample>({"x", {{"count", "3.0"}}}), Error);
  EXPECT_THROW(read_options<Sample>({"x", {{"nothing", "1"}}}), Error);
}

TEST(Budget, PrintsWhatParsesToTheSame) {
  for (const char* text : {"1", "1024", "25%", "12.5%", "16MiB", "1.5GiB", "3KiB", "0.5KiB"}) {
    EXPECT_EQ(Budget::parse(text).text(), text);
    EXPECT_EQ(Budget::parse(Budget::parse(text).text()).value, Budget::parse(text).value);
  }
}

TEST(Budget, ReadsRowsShareAndBytes) {
  const BudgetSite site{8192, 0, 16, [](size_t rows) { return 1024 + 256.0 * rows; }};
  EXPECT_EQ(site.rows(Budget::parse("1024")), 1024u);
  EXPECT_EQ(site.rows(Budget::parse("25%")), 2048u);
  EXPECT_EQ(site.rows(Budget::parse("12.5%")), 1024u);
  EXPECT_EQ(site.rows(Budget::parse("1MiB")), (1048576 / 16 - 1024) / 256u);
  EXPECT_EQ(site.rows(Budget::parse("1024KiB")), (1048576 / 16 - 1024) / 256u);
  for (const char* bad :
       {"0", "0%", "-3", "101%", "1.5", "nan", "inf", "12 rows", "", "MiB", "1e99"})
    EXPECT_THROW(Budget::parse(bad), Error) << bad;
  EXPECT_THROW(site.rows(Budget::parse("16KiB")), Error) << "sink and window alone take more";
  EXPECT_EQ(site.rows(Budget::parse("0.001%")), 1u) << "least sizes until the text has grown";
  EXPECT_EQ(site.rows(Budget::parse("0.001%"), "", 8), 8u);
  EXPECT_EQ((BudgetSite{8192, 400, 16, {}}.rows(Budget::parse("25%"))), 100u) << "of what is read";
}

TEST(Policy, BudgetGoesToTheSelectorsSize) {
  Policy p = Policy::parse("uniform;layers=0:local");
  p.set_budget("25%");
  EXPECT_EQ(p.to_string(), "uniform(budget=25%);layers=0:local(window=25%)");
  EXPECT_THROW(p.set_budget("10%"), Error) << "given already";
  Policy exact = Policy::parse("exact");
  EXPECT_THROW(exact.set_budget("25%"), Error);
  Policy zero = Policy::parse("uniform");
  EXPECT_THROW(zero.set_budget("0"), Error);
}

TEST(Registry, EveryRowIsComplete) {
  for (const SelectorRow& row : selector_rows()) {
    EXPECT_FALSE(row.info.summary.empty()) << row.info.name;
    EXPECT_TRUE(row.info.is_selector);
    EXPECT_NE(row.resolve, nullptr);
    EXPECT_NE(row.default_window, nullptr);
    bool found = row.info.size_parameter.empty();
    for (const ParameterInfo& p : row.info.parameters) {
      EXPECT_FALSE(p.help.empty()) << row.info.name << "." << p.name;
      found |= p.name == row.info.size_parameter;
    }
    EXPECT_TRUE(found) << row.info.name << " lacks its size parameter";
  }
  for (const CodecRow& row : codec_rows()) {
    EXPECT_FALSE(row.info.summary.empty()) << row.info.name;
    EXPECT_FALSE(row.info.is_selector);
    EXPECT_NE(row.make, nullptr);
  }
}

}  // namespace
}  // namespace pith
