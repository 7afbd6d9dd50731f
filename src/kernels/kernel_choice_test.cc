// Which table of kernels a name or the environment gets.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/kernels.h"
#include "pith/error.h"

namespace pith {
namespace {

TEST(KernelChoice, NamesScalarLastAndRefusesTheUnknown) {
  const auto names = available_isas();
  EXPECT_EQ(names.back(), "scalar");
  try {
    kernels_for("sse9");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("scalar"), std::string::npos);
  }
}

TEST(KernelChoice, TheEnvironmentForcesAnInstructionSet) {
  const char* old = std::getenv("PITH_ISA");
  const std::string saved = old ? old : "";
  for (std::string_view isa : available_isas()) {
    setenv("PITH_ISA", std::string(isa).c_str(), 1);
    EXPECT_EQ(kernels_for().isa, isa);
    EXPECT_STREQ(kernels_for().ran(), kernels_for(isa).ran());
  }
  setenv("PITH_ISA", "mmx", 1);
  EXPECT_THROW(kernels_for(), Error);
  EXPECT_EQ(std::string(kernels_for("scalar").isa), "scalar");
  if (old)
    setenv("PITH_ISA", saved.c_str(), 1);
  else
    unsetenv("PITH_ISA");
}

}  // namespace
}  // namespace pith
