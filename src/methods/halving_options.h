#pragma once
// The options that every policy built on halvings takes.

#include "policy/options.h"
#include "select/halving.h"

namespace pith {

struct HalvingOptions {
  double balance = 0;
  bool centre = true;
  double temperature = 0.25, value_constant = 0.1, weight = 1;

  /// `papers_constant`: what the method's paper has for the value constant.
  Fields fields(const std::string& papers_constant);
  /// The papers' kernel and threshold, with its value constant.
  void as_in_paper(double papers_constant);
  HalvingRule rule(float scale) const;
};

}  // namespace pith
