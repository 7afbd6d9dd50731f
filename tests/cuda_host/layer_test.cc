// A layer's cache over device pointers, with kernels as loops on the host (host_device.h): what it
// does with the caller's tensors, its books and its spans, without a GPU.

#include <gtest/gtest.h>

#include "cuda/layer_pair.h"
#include "host_device.h"

namespace pith::cuda {
namespace {

// Rows in codes are those of f16 here.
const LayerCase kCases[] = {
    {"exact"},
    {"exact,sink=3,window=9", 4e-3, nullptr, 0, 0.9, 2, 2, 64, 0.0625},
    {"exact", 4e-3, nullptr, 0, 0.9, 6, 1, 128, 0.25},
    {"exact", 4e-3, nullptr, 37},
    {"exact+int4,window=20,sink=0", 4e-3, "exact,window=20", 70},
    {"local(window=37)"},
    {"streaming_llm(window=40)"},
    {"streaming_llm(window=37,rope=cache),sink=7"},
    {"knorm(budget=40,interval=24)"},
    {"keydiff(budget=31,interval=20),window=20"},
    {"snapkv(budget=40,interval=20,queries=7,kernel=3),sink=4,window=16"},
    {"adakv(budget=40,interval=20),sink=4,window=16"},
    {"adakv(budget=40,interval=24)+int4,window=20", 4e-3, "adakv(budget=40,interval=24),window=20"},
    {"tova(budget=40,interval=25),window=9"},
    {"h2o(budget=30,interval=50,decay=0.5),sink=2,window=30"},
    {"buzz(T=50,weights=true),window=20"},
    {"uniform(rate=0.3)"},
    {"uniform(budget=40)", 4e-3, nullptr, 0, 0.05},
    {"balancekv(b=32,heavy=0),window=20", 4e-3, nullptr, 0, 0.3},
    {"express(heavy=0,s=32),window=20", 4e-3, nullptr, 0, 0.3},
    {"uniform(rate=0.4,heavy=20,heavy_interval=12),window=20", 4e-3, nullptr, 0, 0.3},
    {"h2o(budget=33,interval=19,decay=0.5)+int8,window=20", 4e-3,
     "h2o(budget=33,interval=19,decay=0.5),window=20"},
    {"knorm(budget=40,interval=24);heads=0:exact"},
    {"adakv(budget=40,interval=24,by=knorm);heads=0:exact"},
};

TEST(HostLayer, HoldsAndSaysWhatTheCpuDoes) {
  size_t layout = 0;
  for (const LayerCase& c : kCases) hold_the_same(c, kLayouts[layout++ % std::size(kLayouts)]);
}

TEST(HostLayer, LayoutsChangeNoBit) {
  for (const char* policy : {"exact", "knorm(budget=40,interval=24)+int4",
                             "snapkv(budget=20,interval=10);heads=0:exact"})
    layouts_change_no_bit({policy});
}

TEST(HostLayer, GoesOnWhereItWasSaved) {
  for (const LayerCase& c : kCases) goes_on_where_it_was_saved(c);
}

TEST(HostLayer, ProtectedRowsStay) {
  for (const char* policy : {"knorm(budget=16,interval=8),window=8", "exact,window=9",
                             "streaming_llm(window=12)", "h2o(budget=16,interval=8),window=8"}) {
    SCOPED_TRACE(policy);
    LayerPair pair({policy}, kLayouts[1]);
    pair.protect({{20, 26}, {50, 51}});
    for (const size_t tokens : {60, 30}) pair.step(tokens);
    pair.attend(1);
    for (int t = 0; t < 30; ++t) pair.step(1);
    pair.append(33);
    pair.attend(4);
    const auto held = pair.gpu().rows(1).positions;
    for (const int64_t p : {20, 25, 50})
      EXPECT_TRUE(std::ranges::binary_search(held, p)) << p << " of " << held.size();
    EXPECT_LT(pair.worst(), 5e-3);
    EXPECT_GE(pair.compared(), 0.9);
  }
}

TEST(HostLayer, RefusesWhatCannotBe) { refuse_what_cannot_be(); }

TEST(HostLayer, ACapturedStreamIsRefused) {
  LayerPair pair({"exact"}, kLayouts[0]);
  pair.step(3);
  pair.gpu().use_stream(kCapturedStream);
  refused(ErrorCode::kUnsupported, "captured", [&] { pair.step_gpu(pair.gpu(), 1, 1); });
  pair.gpu().use_stream(nullptr);
  EXPECT_EQ(pair.gpu().tokens(), 3u);
  pair.step(2);
  EXPECT_LT(pair.worst(), 4e-3);
}

// The caller's stream is waited for before the first work of a call, and waits behind the last.
TEST(HostLayer, ItsStreamIsOrderedWithTheCallers) {
  LayerPair pair({"knorm(budget=16,interval=4),window=8"}, kLayouts[1]);
  auto* const callers = reinterpret_cast<cudaStream_t>(0x10);
  pair.gpu().use_stream(callers);
  for (const size_t tokens : {40, 1, 1}) {
    forget_stream_order();
    pair.step_gpu(pair.gpu(), tokens, 5);
    const std::vector<StreamOrderNote> notes = stream_order();
    ASSERT_GE(notes.size(), 4u);
    EXPECT_TRUE(notes[0].records && notes[0].stream == callers);
    EXPECT_TRUE(!notes[1].records && notes[1].stream != callers);
    EXPECT_EQ(notes[1].copies_before, 0u) << "work began before the caller's stream was there";
    const StreamOrderNote &ready = *(notes.end() - 2), &goes_on = notes.back();
    EXPECT_TRUE(ready.records && ready.stream == notes[1].stream);
    EXPECT_TRUE(!goes_on.records && goes_on.stream == callers);
    EXPECT_GE(ready.copies_before, 2u) << "the caller went on before its answer was there";
  }
}

}  // namespace
}  // namespace pith::cuda
