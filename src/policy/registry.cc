#include "policy/registry.h"

namespace pith {

SelectorParts ResolvedSelector::parts(const Context& context, const SelectorSite& site) const {
  SelectorParts parts{rule};
  if (chooser) parts.chooser = chooser(context);
  if (halving)
    parts.halver = std::make_shared<const Halver>(context, *halving, site.seed, site.layer);
  return parts;
}

}  // namespace pith
