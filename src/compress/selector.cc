#include "compress/selector.h"

#include <cmath>

#include "compress/registry.h"
#include "pith/error.h"

namespace pith {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::kInternal,
              std::string("a rule asks its chooser to ") + what + ", which this one does not do");
}

}  // namespace

Chosen Chooser::choose(const Step&, size_t, HeadBody&, const NewRows&) { refuse("judge rows"); }

void Chooser::take(size_t, HeadBody&, const NewRows&) { refuse("take rows by their contents"); }

float Chooser::log_weight(const Step& step) const {
  return static_cast<float>(
      std::log(static_cast<double>(step.weight) / static_cast<double>(step.of)));
}

SelectorParts ResolvedSelector::parts(const Context& context, const SelectorSite& site) const {
  SelectorParts parts{rule};
  if (chooser) parts.chooser = chooser(context);
  if (halving)
    parts.halver = std::make_shared<const Halver>(context, *halving, site.seed, site.layer);
  return parts;
}

}  // namespace pith
