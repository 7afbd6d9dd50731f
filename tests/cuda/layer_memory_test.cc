// Memory of layers' caches on the GPU beside their rows.

#include <gtest/gtest.h>

#include <vector>

#include "layer_pair.h"

namespace pith::cuda {
namespace {

// Layers read one after the other take the same scratch memory, also under a policy of which an
// engine's layers wait for each other; and after a prompt it is given back.
TEST(CudaLayerMemory, ScratchIsOneLayersAndGoesAfterAPrompt) {
  PITH_NEEDS_GPU();
  constexpr size_t kTokens = 400;
  for (const char* policy : {"express(heavy=0,s=32)+int4,window=20", "exact+int8,window=20",
                             "knorm(budget=40);heads=0:exact"}) {
    SCOPED_TRACE(policy);
    LayerPair pair({policy}, {DType::kF16, false});
    std::vector<LayerCache> layers;
    std::vector<size_t> scratch;
    const auto beside_rows = [&] {
      size_t bytes = pair.runtime()->bytes_in_use();
      for (const LayerCache& layer : layers) bytes -= layer.ledger().total_bytes();
      return bytes;
    };
    for (uint32_t l = 0; l < 5; ++l) {
      layers.emplace_back(pair.runtime(), layer_options({policy}));
      pair.follow(layers.back());
      pair.step_gpu(layers.back(), kTokens, l + 1);
      scratch.push_back(beside_rows());
    }
    EXPECT_LT(scratch.back(), scratch.front() + 4 * 2048);  // where their rows lie
    const size_t rows = 2 * 2 * kTokens * 2 * 64;           // of one layer, exact
    EXPECT_GT(scratch.front(), rows);
    for (LayerCache& layer : layers) layer.end_prompt();
    EXPECT_LT(beside_rows(), scratch.front() - rows / 2);
    // The next chunk asks for it again: the answers are those of a copy that finds it there.
    LayerCache copy = layers[0].clone();
    const auto got = pair.step_gpu(layers[0], 30, 9);
    EXPECT_EQ(got, pair.step_gpu(copy, 30, 9));
  }
}

// Rows of a long chunk are young together for a moment: the room for that does not stay.
TEST(CudaLayerMemory, AChunkLeavesNoRoomAmongYoungRows) {
  PITH_NEEDS_GPU();
  const LayerCase ladder{"exact+ladder(rows=64,old=int4),window=20"};
  LayerPair at_once(ladder, kLayouts[0]), in_pieces(ladder, kLayouts[0]);
  at_once.step(550);
  for (int i = 0; i < 11; ++i) in_pieces.step(50);
  const Ledger one = at_once.gpu().ledger(), other = in_pieces.gpu().ledger();
  EXPECT_EQ(one.rows_kept, other.rows_kept);
  EXPECT_LE(one.total_bytes(), other.total_bytes() + other.total_bytes() / 50);
}

}  // namespace
}  // namespace pith::cuda
