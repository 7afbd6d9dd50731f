#include "tools/partners.h"

#include "policy/support.h"

namespace pith {

GpuPartners gpu_partners(const std::string& method) {
  GpuPartners found;
  for (const Partner& p : partners(method, Device::kCuda, 128)) {
    if (p.why_not.empty())
      found.with.push_back(p.name);
    else
      found.without.emplace_back(p.name, p.why_not.front().there);
  }
  for (const Limit& l : limits_on_gpu(method)) found.limits.emplace_back(l.parameter, l.there);
  return found;
}

}  // namespace pith
