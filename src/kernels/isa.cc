#include "pith/isa.h"

#include "kernels/kernels.h"

namespace pith {

std::vector<std::string> cpu_isas() {
  const auto names = available_isas();
  return {names.begin(), names.end()};
}

}  // namespace pith
