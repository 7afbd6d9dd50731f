// Chooses a table of primitives by name, by PITH_ISA or by what the CPU can run.

#include "kernels/kernels.h"

#include <fmt/format.h>

#include <cstdlib>

#include "hwy/targets.h"
#include "kernels/cpu/tables.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr std::string_view kScalar[] = {"scalar"};

#if defined(__x86_64__)
constexpr std::string_view kAll[] = {"avx512_vnni", "avx512", "avx2", "scalar"};
constexpr std::span<const std::string_view> kFromAvx512 = std::span(kAll).subspan(1);
constexpr std::span<const std::string_view> kFromAvx2 = std::span(kAll).subspan(2);

#define PITH_DEFINE_TABLE(NAMESPACE, FUNCTION, NAME) \
  const Kernels& FUNCTION() {                        \
    static const Kernels kTable = [] {               \
      Kernels table{};                               \
      table.isa = NAME;                              \
      NAMESPACE::fill_convert(table);                \
      NAMESPACE::fill_rows(table);                   \
      NAMESPACE::fill_gemm(table);                   \
      NAMESPACE::fill_elementwise(table);            \
      NAMESPACE::fill_codes(table);                  \
      NAMESPACE::fill_code_rows(table);              \
      NAMESPACE::fill_sign_rows(table);              \
      NAMESPACE::fill_sparse(table);                 \
      NAMESPACE::fill_level_rows(table);             \
      return table;                                  \
    }();                                             \
    return kTable;                                   \
  }

PITH_DEFINE_TABLE(N_AVX2, avx2_table, "avx2")
PITH_DEFINE_TABLE(N_AVX3, avx512_table, "avx512")

/// AVX-512 with another body for what byte products do better.
const Kernels& avx512_vnni_table() {
  static const Kernels kTable = [] {
    Kernels table = avx512_table();
    table.isa = "avx512_vnni";
    N_AVX3_DL::fill_code_rows(table);
    return table;
  }();
  return kTable;
}
#endif

const Kernels& scalar_table() {
  static const Kernels kTable = scalar_kernels();
  return kTable;
}

}  // namespace

std::span<const std::string_view> available_isas() {
#if defined(__x86_64__)
  const int64_t supported = hwy::SupportedTargets();
  if (supported & HWY_AVX3_DL) return kAll;
  if (supported & HWY_AVX3) return kFromAvx512;
  if (supported & HWY_AVX2) return kFromAvx2;
#endif
  return kScalar;
}

const Kernels& kernels_for(std::string_view isa) {
  const std::span<const std::string_view> names = available_isas();
  const char* forced = isa.empty() ? std::getenv("PITH_ISA") : nullptr;
  if (forced && *forced) isa = forced;
  if (isa.empty()) isa = names.front();
  for (std::string_view name : names) {
    if (name != isa) continue;
#if defined(__x86_64__)
    if (isa == "avx512_vnni") return avx512_vnni_table();
    if (isa == "avx512") return avx512_table();
    if (isa == "avx2") return avx2_table();
#endif
    return scalar_table();
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the instruction set '{}' was asked for{}; this CPU and build run: {}. "
                          "Choose one of these, or none for the best",
                          isa, forced ? " by PITH_ISA" : "", fmt::join(names, ", ")));
}

}  // namespace pith
