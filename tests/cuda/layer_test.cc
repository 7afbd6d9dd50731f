// A layer's cache over device pointers against the CPU's over the same numbers.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "kernels/cuda/pinned.h"
#include "kernels/cuda/streams.h"
#include "layer_pair.h"

namespace pith::cuda {
namespace {

// Rows that are coded 32 at a time stay exact for longer than on the CPU: bounds are the codec's
// error. Heads of their own rules, of one KV head and of many.
const LayerCase kCases[] = {
    {"exact"},
    {"exact", 4e-3, 0, 0.9, 6, 1, 128, 0.25},
    {"exact", 4e-3, 0, 0.9, 2, 2, 256},
    {"exact,dtype=bf16", 2e-2, 0, 0.9, 16, 2, 128},
    {"exact,sink=3,window=9", 4e-3, 0, 0.9, 2, 2, 64, 0.0625},
    {"exact", 4e-3, 37},
    {"exact+int8", 2e-2, 0, 0.9, 8, 2, 128, 0.0625},
    {"exact+int4", 0.2},
    {"exact+int8", 2e-2, 90},
    {"exact+kivi(bits=4)", 0.3},
    {"exact+turboquant(bits=4)", 0.3},
    {"exact+int8(hadamard=true)", 2e-2},
    {"local(window=37)"},
    {"streaming_llm(window=40)"},
    {"streaming_llm(window=37,rope=cache),sink=7"},
    {"knorm(budget=40,interval=24)"},
    {"knorm(budget=40,interval=24)+int8", 2e-2, 0, 0.2},
    {"keydiff(budget=31,interval=20),window=20", 4e-3, 0, 0.5},
    {"snapkv(budget=40,interval=20,queries=7,kernel=3),sink=4,window=16", 4e-3, 0, 0.5},
    {"expected_attention(budget=40,interval=20)", 4e-3, 0, 0.2},
    {"adakv(budget=40,interval=20),sink=4,window=16", 4e-3, 0, 0.5},
    {"tova(budget=40,interval=25),window=9", 4e-3, 0, 0.5},
    {"h2o(budget=30,interval=50,decay=0.5),sink=2,window=30", 4e-3, 0, 0.5},
    {"buzz(T=50,weights=true),window=20", 4e-3, 0, 0.5},
    {"uniform(rate=0.3)"},
    {"uniform(budget=40)", 4e-3, 0, 0.05},
    {"balancekv(b=32,heavy=0),window=20", 4e-3, 0, 0.02},
    {"express(heavy=0,s=32),window=20", 4e-3, 0, 0.02},
    {"knorm(budget=40,interval=24);heads=0:exact"},
    {"adakv(budget=40,interval=24,by=knorm);heads=0:exact"},
};

/// Prompts, answers, rows without queries and queries without rows.
void hold_the_same(const LayerCase& c, const Layout& layout) {
  SCOPED_TRACE(std::string(c.policy) + ", " + to_string(layout.dtype) +
               (layout.gaps ? " with gaps" : ""));
  LayerPair pair(c, layout);
  for (const size_t tokens : {70, 33, 2}) pair.step(tokens);
  pair.attend(3);
  pair.append(20);
  pair.attend(1);
  pair.end_prompt();
  pair.attend(1);
  for (int t = 0; t < 40; ++t) {
    pair.step(1);
    if (t % 2 == 0) pair.attend(1);  // selectors do not see it
  }
  pair.append(1);
  pair.attend(5);
  pair.gpu() = pair.gpu().clone();
  pair.step(65);
  for (int t = 0; t < 20; ++t) pair.step(1);
  pair.attend(130);
  const double rounding = layout.dtype == DType::kBF16  ? 4e-3
                          : layout.dtype == DType::kF16 ? 5e-4
                                                        : 0;
  EXPECT_LT(pair.worst(), c.bound + rounding);
  EXPECT_GE(pair.compared(), c.compared);
  EXPECT_EQ(pair.cpu().tokens(), pair.gpu().tokens());
  EXPECT_EQ(pair.gpu().tokens(), 70u + 33 + 2 + 20 + 40 + 1 + 65 + 20);
  EXPECT_LE(pair.gpu().ledger().total_bytes(), pair.runtime()->bytes_in_use());
  pair.end_prompt();
  if (c.slides == 0) {
    EXPECT_EQ(pair.cpu().ledger().rows_kept, pair.gpu().ledger().rows_kept);
  }
}

/// Tensors of every type and with any strides give the bits of f32 ones without gaps.
void layouts_change_no_bit(const LayerCase& c) {
  SCOPED_TRACE(c.policy);
  std::vector<std::vector<float>> plain;
  for (const Layout& layout : kLayouts) {
    LayerPair pair(c, layout);
    size_t at = 0;
    for (const size_t tokens : {40, 1, 33, 1, 1}) {
      const auto got = pair.step_gpu(pair.gpu(), tokens, static_cast<uint32_t>(at) + 1);
      if (plain.size() <= at) plain.push_back(got);
      std::vector<float> want = plain[at++];
      if (layout.dtype != DType::kF32)
        for (float& f : want) f = to_float(layout.dtype, from_float(layout.dtype, f));
      EXPECT_EQ(got, want) << to_string(layout.dtype) << " at " << at;
    }
  }
}

/// Saved wherever, it goes on as if nothing had been; and a clone goes its own way.
void goes_on_where_it_was_saved(const LayerCase& c) {
  SCOPED_TRACE(c.policy);
  LayerPair pair(c, kLayouts[0]);
  const LayerCacheOptions o = layer_options(c);
  for (const size_t tokens : {0, 1, 63, 90}) {
    if (tokens > 0) pair.step_gpu(pair.gpu(), tokens, static_cast<uint32_t>(tokens));
    if (tokens == 63) pair.gpu().end_prompt();
    const std::vector<std::byte> saved = pair.gpu().save();
    LayerCache other = LayerCache::restore(pair.runtime(), o, saved);
    pair.follow(other);
    LayerCache copy = pair.gpu().clone();
    EXPECT_EQ(other.tokens(), pair.gpu().tokens());
    for (const size_t more : {1, 34, 1, 1}) {
      const auto seed = static_cast<uint32_t>(1000 + more);
      const auto want = pair.step_gpu(copy, more, seed);
      EXPECT_EQ(pair.step_gpu(other, more, seed), want) << tokens << " and " << more;
    }
    EXPECT_EQ(pair.gpu().save(), saved);
  }
  LayerCacheOptions changed = o;
  changed.seed = 8;
  EXPECT_THROW(LayerCache::restore(pair.runtime(), changed, pair.gpu().save()), Error);
  // The CPU stores rows in another way, and says so.
  const auto cpu = std::make_shared<Runtime>(RuntimeOptions{.threads = 1});
  try {
    LayerCache::restore(cpu, o, pair.gpu().save());
    ADD_FAILURE() << "the CPU went on from the GPU's state";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("device"), std::string::npos) << e.what();
  }
}

/// Impossible requests are refused by name, with nothing changed.
void refuse_what_cannot_be() {
  const LayerCase exact{"exact"};
  LayerPair pair(exact, kLayouts[0]);
  pair.step(9);
  std::vector<float> host(static_cast<size_t>(4 * 64));
  const RowsView there{host.data(), DType::kF32, 4 * 64, 64};
  refused(ErrorCode::kInvalidArgument, "q is memory of the host", [&] {
    MemoryCounter memory;
    const DeviceTensor out(memory, {1, 4, 64}, kLayouts[0], nullptr);
    pair.gpu().attend(out.out(), there, 1);
  });
  refused(ErrorCode::kInvalidArgument, "k is null", [&] { pair.gpu().append({}, there, 1); });
  refused(ErrorCode::kContextFull, "9 already", [&] { pair.step(592); });
  EXPECT_EQ(pair.gpu().tokens(), 9u);
  const auto with = [&](const char* policy, int dim = 64) {
    LayerCase c{policy};
    c.dim = dim;
    LayerCache{pair.runtime(), layer_options(c)};
  };
  refused(ErrorCode::kUnsupported, "f32", [&] { with("exact+f32"); });
  refused(ErrorCode::kUnsupported, "head_dim", [&] { with("exact", 80); });
  refused(ErrorCode::kInvalidArgument, "avx2",
          [] { Runtime({.device = Device::kCuda, .isa = "avx2"}); });
  LayerCacheOptions no_rope = layer_options({"streaming_llm(window=8,rope=cache)"});
  no_rope.rope_theta = 0;
  refused(ErrorCode::kUnsupported, "RoPE", [&] { LayerCache(pair.runtime(), no_rope); });
  pair.step(1);
  EXPECT_LT(pair.worst(), 4e-3);
}

TEST(CudaLayer, HoldsAndSaysWhatTheCpuDoes) {
  PITH_NEEDS_GPU();
  size_t layout = 0;
  for (const LayerCase& c : kCases) hold_the_same(c, kLayouts[layout++ % std::size(kLayouts)]);
}

TEST(CudaLayer, LayoutsChangeNoBit) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"exact", "knorm(budget=40,interval=24)+int4",
                             "snapkv(budget=20,interval=10);heads=0:exact"})
    layouts_change_no_bit({policy});
}

TEST(CudaLayer, GoesOnWhereItWasSaved) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"exact", "exact+int4,window=20", "knorm(budget=40,interval=24)",
        "snapkv(budget=40,interval=20)+int8", "adakv(budget=40,interval=20)", "uniform(rate=0.3)",
        "express(heavy=0,s=32),window=20", "knorm(budget=40,interval=24);heads=0:exact"})
    goes_on_where_it_was_saved({policy});
}

TEST(CudaLayer, RefusesWhatCannotBe) {
  PITH_NEEDS_GPU();
  refuse_what_cannot_be();
  LayerPair pair({"exact"}, kLayouts[0]);
  cudaStream_t captured = nullptr;
  check(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), "a stream");
  check(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed), "a capture");
  pair.step(3);
  MemoryCounter memory;
  const DeviceTensor x(memory, {1, 4, 64}, kLayouts[0], nullptr);
  pair.gpu().use_stream(captured);
  refused(ErrorCode::kUnsupported, "captured", [&] { pair.gpu().attend(x.out(), x.view(), 1); });
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(captured, &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaStreamDestroy(captured);
}

TEST(CudaLayer, ProtectsRowsAndProbesAsTheCpuDoes) {
  PITH_NEEDS_GPU();
  const LayerCase c{"knorm(budget=16,interval=8),sink=0,window=8"};
  LayerPair pair(c, kLayouts[0]);
  LayerCacheOptions o = layer_options(c);
  o.protect = {{3, 6}};
  o.error_probe = {64, 2, 0};
  const auto cpu = std::make_shared<Runtime>(RuntimeOptions{.threads = 1});
  pair.cpu() = LayerCache(cpu, o);
  pair.gpu() = LayerCache(pair.runtime(), o);
  pair.follow(pair.gpu());
  for (const size_t tokens : {80, 30}) pair.step(tokens);
  pair.protect({{110, 112}});
  for (int t = 0; t < 40; ++t) pair.step(1);
  for (const int64_t p : {3, 5, 110, 111}) {
    const auto held = pair.gpu().rows(1).positions;
    EXPECT_TRUE(std::ranges::binary_search(held, p)) << p << " of " << held.size();
  }
  EXPECT_GE(pair.compared(), 0.9);
  EXPECT_LT(pair.worst(), 4e-3);
  const auto want = pair.cpu().attention_error(), got = pair.gpu().attention_error();
  ASSERT_TRUE(want && got);
  EXPECT_GT(got->steps, 10u);
  EXPECT_EQ(got->steps, want->steps);
  EXPECT_NEAR(got->estimate, want->estimate, 0.02 * want->estimate);
}

// Inputs come late on the caller's stream, and are overwritten there right after the call; the
// answer is taken there. The host waits for none of it.
TEST(CudaLayer, IsOrderedWithTheCallersStream) {
  PITH_NEEDS_GPU();
  constexpr size_t kDim = 64, kHeads = 4, kKvHeads = 2, kTokens = 40;
  for (const char* policy : {"exact", "knorm(budget=16,interval=8)+int8,window=8"}) {
    SCOPED_TRACE(policy);
    const LayerCase c{policy};
    LayerPair quiet(c, kLayouts[0]), late(c, kLayouts[0]);
    MemoryCounter memory;
    const OwnStream own;
    cudaStream_t stream = own.stream;
    const auto x = normals(kHeads * kDim, DType::kF16, 1);
    PinnedArray<uint16_t> pinned(x.size());
    PinnedArray<float> answers(kTokens * x.size());
    std::ranges::copy(x, pinned.data());
    const DeviceArray<uint16_t> in(memory, MemoryKind::kPayload, x.size(), stream);
    const DeviceArray<float> out(memory, MemoryKind::kPayload, x.size(), stream);
    const RowsView q{in.data(), DType::kF16, kHeads * kDim, kDim},
        k{in.data(), DType::kF16, kKvHeads * kDim, kDim};
    const RowsOut to{out.data(), DType::kF32, kHeads * kDim, kDim};
    const auto run = [&](LayerCache& cache, bool sleeps) {
      std::vector<float> all(kTokens * x.size());
      const auto begin = std::chrono::steady_clock::now();
      for (size_t t = 0; t < kTokens; ++t) {
        if (sleeps && t % 10 == 0)
          check(
              cudaLaunchHostFunc(
                  stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(60)); },
                  nullptr),
              "a slow caller");
        check(
            cudaMemcpyAsync(in.data(), pinned.data(), x.size() * 2, cudaMemcpyHostToDevice, stream),
            "inputs");
        cache.step(to, q, k, k, 1);
        check(cudaMemsetAsync(in.data(), 0xff, x.size() * 2, stream), "inputs that go");
        check(cudaMemcpyAsync(answers.data() + t * x.size(), out.data(), x.size() * sizeof(float),
                              cudaMemcpyDeviceToHost, stream),
              "answers");
        if (!sleeps) check(cudaStreamSynchronize(stream), "a patient caller");
      }
      const auto asked = std::chrono::steady_clock::now() - begin;
      check(cudaStreamSynchronize(stream), "answers");
      if (sleeps) {
        EXPECT_LT(asked, std::chrono::milliseconds(200)) << "the host waited for the device";
      }
      std::copy_n(answers.data(), all.size(), all.begin());
      return all;
    };
    quiet.gpu().use_stream(stream);
    late.gpu().use_stream(stream);
    const auto want = run(quiet.gpu(), false);
    EXPECT_TRUE(std::ranges::all_of(want, [](float f) { return std::isfinite(f); }));
    EXPECT_EQ(run(late.gpu(), true), want);
  }
}

}  // namespace
}  // namespace pith::cuda
