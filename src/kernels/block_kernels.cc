#include <string_view>

#include "kernels/cpu/block_tables.h"

namespace pith {

const BlockKernels& block_kernels(const Kernels& kernels) {
#if defined(__x86_64__)
  const std::string_view isa = kernels.isa;
  if (isa == "avx512_vnni") return N_AVX3_DL::kBlockKernels;
  if (isa != "scalar") return N_AVX2::kBlockKernels;
#endif
  return kScalarBlockKernels;
}

}  // namespace pith
