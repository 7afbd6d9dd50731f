// Models in GGUF files on the GPU, where weights in blocks are codes in tiles, against the CPU,
// which multiplies the blocks.

#include "gguf_test_model.h"
#include "model/cuda/device_weights.h"
#include "model/loaders/weights.h"
#include "pith_tools/catalogue.h"
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
  EXPECT_LT(difference(model, "exact+int8,sink=0", ids, 100, 33), 5e-2);
  // A chunk of a few tokens is multiplied from the codes, as a token is.
  EXPECT_LT(difference(model, "exact", ids, 114, 7), dense_type(GetParam()) ? 3e-2 : 3e-3);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaGguf,
                         testing::ValuesIn(weight_types().begin(), weight_types().end()),
                         [](const auto& p) { return std::string(to_string(p.param)); });

// Every type in one file, one a matrix: parts of q|k|v and of gate|up differ, and some are dense.
TEST(CudaGgufMixed, AgreesWithTheCpu) {
  testing_gguf::TwoForms forms("llama", WeightType::kQ4K);
  const auto types = weight_types();
  std::vector<testing_gguf::Stored> before = std::move(forms.stored);
  forms.stored.clear();
  size_t next = 0;
  for (const testing_gguf::Stored& s : before) {
    const bool matrix = s.shape.size() == 2;
    const size_t heads = !matrix                                      ? 0
                         : s.gguf.find("attn_q") != std::string::npos ? testing_gguf::kHeads
                         : s.gguf.find("attn_k") != std::string::npos ? testing_gguf::kKvHeads
                                                                      : 0;
    forms.add(s.gguf, s.hugging_face, matrix ? types[next++ % types.size()] : s.type, s.shape,
              heads);
  }
  const auto model = Model::load(forms.write_gguf());
  PITH_NEEDS_GPU();
  const auto ids = random_ids(120, model->config().vocab, 4);
  EXPECT_LT(difference(model, "exact", ids, 100, 512), 3e-2);
  EXPECT_LT(difference(model, "exact", ids, 114, 7), 3e-2);
}

// Codes take on the GPU what they take in the file; Q4_1 pads 576 inputs to 640.
TEST(CudaGgufMixed, WeightsAreCountedAsCodes) {
  const testing_gguf::TwoForms forms("llama", WeightType::kQ4K);
  const auto model = Model::load(forms.write_gguf());
  PITH_NEEDS_GPU();
  EXPECT_EQ(DeviceWeights::of(model)->bytes(), model->weight_bytes());
}

/// Logits of a real model's answer to a question, on both devices.
TEST(CudaGgufReal, SmolLm2AgreesWithTheCpu) {
  const KnownModel* known = known_model("smollm2");
  ASSERT_NE(known, nullptr);
  const auto file = pulled_file(*known);
  if (!file) GTEST_SKIP() << "no smollm2: run 'pith pull smollm2' first";
  const auto model = Model::load(*file);
  PITH_NEEDS_GPU();
  if (emulated()) GTEST_SKIP() << "a real model takes hours on the emulated card";
  const std::vector<int32_t> ids = {
      1,   9690, 198,   2683, 359, 253,  5356, 5646, 11173, 3365, 3511, 308, 34519, 28,  7018,
      411, 407,  19712, 8182, 2,   198,  1,    4093, 198,   1780, 314,  260, 3575,  282, 4649,
      47,  2,    198,   1,    520, 9531, 198,  504,  3575,  282,  4649, 314, 7042,  30,  2};
  // Token by token both round to 16 bits in blocks of 32; a prompt's activations are bf16 here.
  EXPECT_LT(difference(model, "exact", ids, 0, 512), 5e-3);
  EXPECT_LT(difference(model, "exact", ids, 37, 512), 5e-2);
  Session gpu(model, options_for(Device::kCuda, "exact"));
  std::vector<int32_t> answer;
  auto logits = gpu.prefill(std::span<const int32_t>(ids).first(37));
  for (int i = 0; i < 8; ++i) {
    const auto best = std::max_element(logits.begin(), logits.end());
    answer.push_back(static_cast<int32_t>(best - logits.begin()));
    logits = gpu.decode(answer.back());
  }
  EXPECT_EQ(answer, std::vector<int32_t>(ids.begin() + 37, ids.end()));
}

}  // namespace
}  // namespace pith::cuda
