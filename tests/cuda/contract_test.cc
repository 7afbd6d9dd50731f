// Every selector over every codec, as the registry has them: all that is not refused
// (src/policy/resolved_test.cc has the list) holds the CPU's rows and attends as it does. A new row
// is picked up by itself.

#include "cache_pair.h"
#include "methods/registry_cuda.h"
#include "pairs.h"

namespace pith::cuda {
namespace {

/// Between attention on both devices over the same codes: sums in another order, and numbers that
/// lie between two codes. Rows that are mixed up cost about 1.
double bound_of(const CodecRow& codec) {
  // A code that rounds otherwise changes those of the coordinates after it.
  if (codec.info.name == "kvtc") return 0.35;
  return codec.dense == DType::kBF16 ? 2e-2 : codec.dense ? 4e-3 : 0.2;
}
/// Sizes after which all rows behind sink and window are in codes of any group, on both devices.
void run_groups(Pair& pair) {
  for (const size_t tokens : {32 + 128, 256, 128, 384}) pair.run_chunk(tokens);
  pair.end_prefill();
}

// Needs no GPU: what the registry's rows promise, registry_cuda.cc makes.
TEST(CudaContract, BothRegistriesAgree) {
  for (const SelectorRow& row : selector_rows()) {
    EXPECT_EQ(row.on_gpu, find_device_selector(row.info.name) != nullptr) << row.info.name;
  }
  for (const CodecRow& row : codec_rows()) {
    const DeviceCodecRow* device = find_device_codec(row.info.name);
    EXPECT_EQ(row.on_gpu != nullptr, device && device->make) << row.info.name;
  }
}

// balancekv selects rows while they are exact here: the CPU's without codes. Under uniform and buzz
// groups are other rows than on the CPU, and codes differ.
TEST(CudaContract, EveryPairHoldsWhatTheCpuHolds) {
  PITH_NEEDS_GPU();
  for_pairs(
      300, true, [](const std::string& policy, const SelectorRow& selector, const CodecRow& codec) {
        const std::string& name = selector.info.name;
        const bool selected_exact = name == "balancekv" && !codec.dense;
        std::string on_cpu = policy;
        if (selected_exact)
          on_cpu.erase(policy.find('+'), policy.find(',', policy.find(')')) - policy.find('+'));
        if (left_out()) return;
        Pair pair(on_cpu, policy, 64, dtype_of(codec));
        run_groups(pair);
        EXPECT_GE(pair.same_rows(), codec.dense || selected_exact ? 0.95 : 0.6);
        const bool same_codes =
            codec.dense || (name != "uniform" && name != "buzz" && !selected_exact);
        if (same_codes) {
          EXPECT_LT(pair.worst(), bound_of(codec));
        }
        for (int t = 0; t < 40; ++t) pair.run_token();
        pair.use_clone();
        for (int t = 0; t < 40; ++t) pair.run_token();
        if (codec.dense) {
          EXPECT_LT(pair.oracle_error(), 3 * bound_of(codec));
        }
        EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
      });
}

// Whatever is selected and coded, attention is that over the rows which rows() names, with their
// weights: in chunks, token by token, in a clone. The numbers are such that int4 changes none.
TEST(CudaContract, AttendsToExactlyTheRowsItReports) {
  PITH_NEEDS_GPU();
  for (const SelectorRow& selector : selector_rows()) {
    for (const int dim : {64, 128, 256}) {
      const std::string policy = policy_of(selector, "int4", 100, false);
      SCOPED_TRACE(policy);
      if (!is_there(policy, dim)) continue;
      if (left_out()) continue;
      Pair pair(policy, dim, DType::kF16);
      pair.draw_codes();
      for (const size_t tokens : {70, 129, 3, 98}) pair.run_chunk(tokens);
      pair.end_prefill();
      for (int t = 0; t < 70; ++t) pair.run_token();
      pair.use_clone();
      for (int t = 0; t < 40; ++t) pair.run_token();
      EXPECT_LT(pair.oracle_error(), 2e-2);
      EXPECT_GT(pair.error_without_a_row(), 4e-2) << "an error of one row would not be seen";
    }
  }
}

// A budget of more rows than there are keeps them all, in both types.
TEST(CudaContract, FullBudgetIsTheCodecAlone) {
  PITH_NEEDS_GPU();
  for_pairs(2000, false,
            [](const std::string& policy, const SelectorRow& selector, const CodecRow& codec) {
              if (selector.info.size_parameter.empty() || selector.owns_window) return;
              const PolicyPart form = *Policy::parse(policy).rules.front().key_codec;
              const std::string all = "exact+" + to_string(form) + ",sink=2,window=30";
              if (left_out()) return;
              Pair pair(all, policy, 128, dtype_of(codec));
              run_groups(pair);
              EXPECT_EQ(pair.same_rows(), 1);
              EXPECT_LT(pair.worst(), bound_of(codec));
            });
}

}  // namespace
}  // namespace pith::cuda
