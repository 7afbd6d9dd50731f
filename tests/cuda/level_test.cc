// Codecs of rows of levels on the GPU against the CPU's cache: turboquant, kvquant, gear, and the
// integer codecs after a transform or around a centre.

#include <algorithm>

#include "cache_pair.h"
#include "kernels/cuda/grouped_layout.h"
#include "pairs.h"
#include "pith/error.h"
#include "rows/cuda/level_codec.h"

namespace pith::cuda {
namespace {

struct Case {
  const char* codec;
  // A number that lies between two codes may go to the other one in f32 sums of another order.
  // kvquant: the CPU rounds the rows that its tables are made of to f16 before it codes them.
  double bound;
};
constexpr Case kCases[] = {{"turboquant(bits=1)", 1e-2},
                           {"turboquant(bits=2)", 1e-2},
                           {"turboquant(bits=3)", 1e-2},
                           {"turboquant(bits=4)", 1e-2},
                           {"turboquant(bits=2,center=128)", 1e-2},
                           {"turboquant(bits=3,center=32)", 1e-2},
                           {"qjl", 1e-2},
                           {"qjl(residual=1,center=32)", 1e-2},
                           {"qjl(residual=2,center=256)", 1e-2},
                           {"qjl(residual=3,center=128)", 1e-2},
                           {"qjl(residual=4,center=0)", 1e-2},
                           {"gear", 1e-2},
                           {"gear(bits=4,rank=4,outliers=1,rows=64)", 1e-2},
                           {"gear(bits=2,rank=0,outliers=5,rows=32)", 1e-2},
                           {"gear(bits=4,rank=1,outliers=0,rows=256)", 1e-2},
                           {"kvquant(bits=2)", 5e-2},
                           {"kvquant(bits=3,outliers=4,calibrate=64)", 3e-2},
                           {"kvquant(bits=4,outliers=0,calibrate=96)", 4e-2},
                           {"kivi(bits=2,hadamard=true)", 1e-2},
                           {"kivi(bits=4,hadamard=true,center=64)", 1e-2},
                           {"kivi(bits=2,center=256)", 1e-2},
                           {"kivi(bits=2)", 1e-2},
                           {"int8", 1e-2},
                           {"int4(hadamard=true)", 1e-2},
                           {"int8(center=128)", 1e-2},
                           // Rows that age are rounded to 16 bits between their codes.
                           {"ladder(rows=128)", 5e-2},
                           {"ladder(rows=192,new=kivi(bits=4),old=int4)", 5e-2},
                           // Values on few levels meet qjl's moved thresholds in clusters, which
                           // that rounding cuts: 0.13 in bf16. Keys rotated as the other's: 1.
                           {"ladder(rows=128,new=turboquant(bits=4),old=qjl)", 0.2},
                           {"k:int8+v:int4", 1e-2},  // a kernel of their own
                           {"k:int4+v:int8", 1e-2},
                           {"k:f16+v:int4", 1e-2},  // kernels of their own too: dense beside codes
                           {"k:f16+v:int8", 1e-2},
                           {"k:int4+v:f16", 1e-2},
                           {"k:int8+v:f16", 1e-2},
                           {"k:bf16+v:int4", 1e-2},
                           {"k:bf16+v:int8", 1e-2},
                           {"k:int4+v:bf16", 1e-2},
                           {"k:int8+v:bf16", 1e-2},
                           {"k:f16+v:kivi(bits=2)", 1e-2},
                           {"k:bf16+v:kivi(bits=2)", 1e-2},
                           {"k:turboquant(bits=3,center=64)+v:f16", 1e-2},
                           {"k:turboquant(bits=3,center=64)+v:bf16", 1e-2},
                           {"k:int4+v:kivi(bits=2)", 1e-2},
                           {"k:turboquant(bits=4,center=128)+v:int4(hadamard=true)", 1e-2},
                           {"k:qjl+v:int8", 1e-2},
                           {"k:f16+v:qjl(residual=4)", 1e-2},
                           {"k:kvquant(calibrate=64)+v:gear", 3e-2},
                           // As kvquant's, the first rows round to f16 on the CPU.
                           {"int4(hadamard=true,center=128,pre_rope=true)", 3e-2},
                           {"int8(center=256,pre_rope=true)", 1e-2},
                           {"kivi(bits=4,center=64,pre_rope=true)", 3e-2},
                           {"kivi(bits=2,hadamard=true,center=32,pre_rope=true)", 5e-2},
                           {"turboquant(bits=3,center=128,pre_rope=true)", 3e-2},
                           {"qjl(pre_rope=true)", 3e-2},
                           {"gear(bits=4,rows=64,center=32,pre_rope=true)", 3e-2},
                           {"k:int4(center=128,pre_rope=true)+v:turboquant(bits=3)", 3e-2},
                           {"k:int8+v:int4(center=128,pre_rope=true)", 1e-2},
                           {"k:turboquant(bits=4,center=32,pre_rope=true)+v:gear", 3e-2},
                           // The CPU codes the row that the last token pushes out.
                           {"qjl(paper=true,outliers=0)", 4e-2}};

// Each bit of a code has a place of its own, within the bytes that move with its row.
TEST(CudaLevels, FragmentsHoldEveryBitOnce) {
  for (const bool keys : {true, false}) {
    for (const int dim : {64, 128}) {
      for (const auto& [bits, looked_up] :
           {std::pair{1, false}, {2, false}, {3, false}, {4, false}, {2, true}, {3, true}}) {
        std::vector<int> row_of(static_cast<size_t>(4 * dim * bits) * 8, -1);  // of each bit
        for (int i = 0; i < layout::code_parts(bits, looked_up); ++i) {
          const CodePart part = layout::code_part(bits, i, looked_up);
          const int first = layout::words_before(bits, i, dim);
          for (int row = 0; row < kBlockRows; ++row) {
            for (int channel = 0; channel < dim; ++channel) {
              const CodePlace at = layout::code_fragment(keys, row, channel, dim, part);
              for (int bit = 0; bit < part.width; ++bit) {
                int& owner = row_of.at(static_cast<size_t>((first + at.word) * 32 + at.bit + bit));
                EXPECT_EQ(owner, -1);
                owner = row;
              }
            }
            for (int byte = 0; !looked_up && byte < dim * part.width / 8; ++byte) {
              const int at = 4 * first + layout::fragment_byte(keys, row, byte, dim, part);
              for (int bit = 0; bit < 8; ++bit) {
                EXPECT_EQ(row_of[static_cast<size_t>(8 * at + bit)], row);
              }
            }
          }
        }
        EXPECT_EQ(std::count(row_of.begin(), row_of.end(), -1), 0);
      }
    }
  }
}

// Sizes are such that both hold the same rows in codes at every step: multiples of 256 in the body.
TEST(CudaLevels, AttendAsTheCpuDoes) {
  PITH_NEEDS_GPU();
  for (const Case& c : kCases) {
    for (const int dim : {64, 128, 256}) {
      if (!is_there(std::string("exact+") + c.codec, dim)) continue;
      const DType dtype = dim == 64 ? DType::kBF16 : DType::kF16;
      const std::string policy =
          std::string("exact+") + c.codec + ",sink=0,window=64,dtype=" + to_string(dtype);
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      Pair pair(policy, dim, dtype);
      for (const size_t tokens : {64 + 256, 256, 256}) pair.run_chunk(tokens);
      pair.end_prefill();
      pair.run_token();  // the window is a row longer
      EXPECT_EQ(pair.same_rows(), 1);
      EXPECT_LT(pair.worst(), dtype == DType::kBF16 ? c.bound + 1e-2 : c.bound);
      const Ledger gpu = pair.gpu_ledger();
      const bool dense = std::string(c.codec).find("f16") != std::string::npos;  // one side
      const int most = dense ? 4 : 3;  // fifths of all in 16 bits
      EXPECT_LT(gpu.payload, uint64_t{833} * kLayers * kKvHeads * 4 * dim * most / 5);
      EXPECT_LE(gpu.total_bytes(), pair.counted());
    }
  }
}

// A large constant part before RoPE costs the keys nothing: attention is as close to the exact
// rows' as without it.
TEST(CudaLevels, ABiasBeforeRopeIsTakenOut) {
  PITH_NEEDS_GPU();
  for (const char* codec : {"k:int8(center=128,pre_rope=true)+v:f16",
                            "k:int4(hadamard=true,center=40,pre_rope=true)+v:f16",
                            "k:turboquant(bits=4,center=96,pre_rope=true)+v:f16"}) {
    for (const int dim : {64, 128}) {
      const std::string policy = std::string("exact+") + codec + ",sink=2,window=30";
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      double worst[2] = {};
      for (const bool biased : {false, true}) {
        Pair pair("exact", policy, dim, DType::kF16);
        if (biased) pair.bias_keys();
        for (const size_t tokens : {100, 157}) pair.run_chunk(tokens);
        pair.end_prefill();
        for (int t = 0; t < 70; ++t) pair.run_token();
        EXPECT_EQ(pair.same_rows(), 1);
        worst[biased] = pair.worst();
      }
      EXPECT_GT(worst[0], 1e-4);  // codes
      EXPECT_LT(worst[1], 2 * worst[0] + 1e-2);
    }
  }
}

// Rows of 16 bits beside codes are what they were, also where the other type has no such number.
TEST(CudaLevels, DenseSidesKeepTheirBits) {
  PITH_NEEDS_GPU();
  MemoryCounter counter;
  constexpr int kDim = 64, kRows = 64;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> rows(kRows * kDim);
    for (size_t i = 0; i < rows.size(); ++i) {
      // All exponents but that of infinity.
      const auto exponents = dtype == DType::kBF16 ? 0x7f80u : 0x7c00u;
      const auto bits = static_cast<uint32_t>(i * 2654435761u >> 16);
      rows[i] = static_cast<uint16_t>((bits & exponents) == exponents ? bits ^ 0x4000u : bits);
    }
    const auto codec = dense_levels(dtype);
    const GroupedBytes bytes = codec->block_bytes(kDim);
    EXPECT_EQ(bytes.key_side + bytes.value_side, 0u);
    const auto x = to_device(counter, rows);
    const auto codes = to_device(counter, std::vector<char>(kRows / 32 * bytes.key_codes));
    const auto out = to_device(counter, std::vector<uint16_t>(rows.size(), 1));
    const CodeJob job{x.data(), rows.size(), codes.data(), nullptr, kRows / 32, 0};
    codec->code({dtype, 1, kRows, kDim}, {&job, 1}, {}, nullptr);
    UnpackRowsCall call;
    call.codes = codes.data();
    call.block_stride = kRows / 32;
    call.heads = 1;
    call.blocks = kRows / 32;
    call.head_dim = kDim;
    call.dtype = dtype;
    call.out = out.data();
    call.head_stride = rows.size();
    codec->unpack_keys(call, nullptr);
    EXPECT_EQ(to_host(out), rows) << to_string(dtype);
  }
}

// Any sizes, tokens alone, a copy half-way: rows wait as they are until their group is full, so
// that attention is at most as far from the exact rows' as all in codes.
TEST(CudaLevels, AnyNumberOfRows) {
  PITH_NEEDS_GPU();
  for (const char* codec :
       {"turboquant(bits=4)", "gear(bits=4)", "kvquant(bits=4)", "int8(hadamard=true,center=64)",
        "turboquant(bits=4,center=256)", "ladder(rows=70,old=int4)",
        "int4(hadamard=true,center=100,pre_rope=true)"}) {
    for (const int dim : {64, 128, 256}) {
      const std::string policy = std::string("exact+") + codec + ",sink=3,window=21";
      SCOPED_TRACE(policy);
      if (!is_there(policy, dim)) continue;
      if (left_out()) continue;
      Pair pair("exact", policy, dim, DType::kF16);
      for (const size_t tokens : {130, 97, 2, 200}) pair.run_chunk(tokens);
      pair.end_prefill();
      for (int t = 0; t < 40; ++t) pair.run_token();
      pair.use_clone();
      for (int t = 0; t < 300; ++t) pair.run_token();
      EXPECT_EQ(pair.same_rows(), 1);
      EXPECT_GT(pair.worst(), 1e-3);  // codes, not rows
      EXPECT_LT(pair.worst(), 0.25);
    }
  }
}

// For compute-sanitizer too.
TEST(CudaLevels, SmallOnes) {
  PITH_NEEDS_GPU();
  for (const char* codec :
       {"turboquant(bits=3,center=64)", "gear(bits=4,rows=64)", "kvquant(calibrate=32)",
        "ladder(rows=5,old=int4)", "int8(hadamard=true,center=33,pre_rope=true)"}) {
    if (left_out()) continue;
    Pair pair("exact", std::string("exact+") + codec + ",sink=1,window=3", 64, DType::kF16);
    for (const size_t tokens : {70, 33}) pair.run_chunk(tokens);
    for (int t = 0; t < 3; ++t) pair.run_token();
    EXPECT_LT(pair.worst(), 0.6) << codec;
  }
}

}  // namespace
}  // namespace pith::cuda
