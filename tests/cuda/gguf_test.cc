// Models in GGUF files on the GPU, where weights in blocks lie decoded to 16 bits, against the CPU,
// which multiplies the blocks.

#include "model/gguf_test_model.h"
#include "model/weights.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

class CudaGguf : public testing::TestWithParam<WeightType> {};

TEST_P(CudaGguf, AgreesWithTheCpu) {
  const testing_gguf::TwoForms forms("llama", GetParam());
  const auto model = Model::load(forms.write_gguf());
  PITH_NEEDS_GPU();
  const auto ids = random_ids(120, model->config().vocab, 3);
  EXPECT_LT(difference(model, "exact", ids, 100, 512), 3e-2);
  EXPECT_LT(difference(model, "exact+int8", ids, 100, 33), 5e-2);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaGguf,
                         testing::ValuesIn(weight_types().begin(), weight_types().end()),
                         [](const auto& p) { return std::string(to_string(p.param)); });

}  // namespace
}  // namespace pith::cuda
