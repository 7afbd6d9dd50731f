#include "methods/halving_options.h"

namespace pith {

Fields HalvingOptions::fields(const std::string& papers_constant) {
  return {number("balance", balance, {0, 100},
                 "times the paper's threshold; 1 = the paper's, 0 = greedy"),
          flag("centre", centre, "subtract the mean key before the kernel"),
          number("temp", temperature, {0, 100},
                 "kernel temperature: exp(temp <k,k'> scale); 1 = the paper's"),
          number("beta", value_constant, {0, 100},
                 "constant added to <v,v'>, times max|v|^2; " + papers_constant + " = the paper's"),
          number("weight", weight, {0, 1}, "a row of weight w counts as w^weight")};
}

void HalvingOptions::as_in_paper(double papers_constant) {
  balance = 1, centre = false, temperature = 1, value_constant = papers_constant;
}

HalvingRule HalvingOptions::rule(float scale) const {
  HalvingRule rule;
  rule.scale = scale;
  rule.temperature = static_cast<float>(temperature);
  rule.value_constant = static_cast<float>(value_constant);
  rule.centre = centre;
  rule.balance = static_cast<float>(balance);
  return rule;
}

}  // namespace pith
