// csr's pairs of 16 bits: what the card packs is what the CPU packs.

#include "csr_cases.h"

namespace pith::cuda {
namespace {

using namespace csr_test;  // NOLINT(google-build-using-namespace)

// Packed pairs are what words would be: number for number the CPU's packing of them.
TEST(CudaCsr, PairsArePackedAsTheCpuPacksThem) {
  PITH_NEEDS_GPU();
  constexpr int kHeads = 2, kRowsOfHead = 96;
  for (const bool keys : {true, false}) {
    for (const auto& [pairs, chunks, atoms] :
         {std::tuple{8, 2, 256}, {8, 1, 512}, {6, 2, 37}, {3, 1, 301}, {32, 1, 2}, {1, 1, 256}}) {
      for (const auto solver : {CsrSolver::kMp, CsrSolver::kOmp}) {
        Case c{{pairs, chunks, solver}, keys, atoms, 64, DType::kF16};
        c.coding.key_chunks = chunks;
        MemoryCounter counter;
        const Dictionary dictionary(counter, c, kHeads, 5);
        auto x = normals(static_cast<size_t>(kHeads) * kRowsOfHead * c.dim, c.dtype, 6);
        for (int i = 0; i < c.dim; ++i) {
          x[3 * c.dim + i] = 0;                          // a row of nothing
          x[4 * c.dim + i] = x[4 * c.dim + i] & 0x83FF;  // one below f16's normal range
          x[5 * c.dim + i] = (x[5 * c.dim + i] & 0x83FF) | (26 << 10);  // and a large one
        }
        const auto words = code(counter, c, dictionary.device, x, kHeads, kRowsOfHead);
        const Case p = c.packed();
        const auto got = code_blocks(counter, p, dictionary.device, x, kHeads, kRowsOfHead);
        const PackedPairs packed(static_cast<size_t>(atoms));
        const size_t block = 32 * static_cast<size_t>(pairs + 1);
        ASSERT_EQ(got.size(), kHeads * kRowsOfHead / 32 * block);
        for (size_t t = 0; t < static_cast<size_t>(kHeads) * kRowsOfHead; ++t) {
          std::vector<uint16_t> indices, coefficients, want(pairs);
          for (int j = 0; j < pairs; ++j) {
            const size_t at = t / 32 * 32 * pairs + csr_word(keys, pairs, t % 32, j);
            indices.push_back(static_cast<uint16_t>(words[at] % 65536 / 16));
            coefficients.push_back(static_cast<uint16_t>(words[at] >> 16));
          }
          const uint16_t scale =
              packed.pack(want.data(), indices.data(), coefficients.data(), indices.size());
          const uint16_t* codes = got.data() + t / 32 * block;
          ASSERT_EQ(codes[32 * pairs + t % 32], scale) << "row " << t << ", " << pairs << " pairs";
          for (int j = 0; j < pairs; ++j) {
            ASSERT_EQ(codes[csr_word(keys, pairs, t % 32, j)], want[j])
                << "row " << t << ", pair " << j << " of " << pairs << ", keys " << keys;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pith::cuda
