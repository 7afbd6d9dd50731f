// Prefix trees over an engine on the GPU: a session from a snapshot answers as it would without,
// bit for bit, for one session and for many in a pass; snapshots are counted.

#include "pith/saved.h"
#include "random_model.h"
#include "session/test_prefix_tree.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

using test::with_policy;

std::shared_ptr<Engine> engine_for(const std::shared_ptr<const Model>& model, size_t parallel) {
  EngineOptions o;
  o.device = Device::kCuda;
  o.chunk = 80;
  o.parallel = parallel;
  return std::make_shared<Engine>(model, o);
}

TEST(CudaPrefixTree, WhatWasKeptChangesNoBit) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  for (const size_t parallel : {1, 4}) {
    for (const char* policy :
         {"exact", "exact+int4,sink=4,window=32", "keydiff(budget=48,interval=24)+int4,window=16",
          "h2o(budget=48,interval=40),window=16", "snapkv(budget=40)+int8",
          "streaming_llm(window=60,rope=cache)", "express(heavy=0,s=32)+int4,window=16",
          "exact+kivi(bits=2),window=32,sink=0", "exact+csr(s=4,online=32),window=16,sink=0",
          "exact+kvquant,window=16,sink=0", "exact+kvtc(calibrate=64),window=16",
          "exact+int4(center=32,pre_rope=true),window=16", "uniform(rate=0.25),sink=4,window=16",
          "buzz(T=64,s=8)"}) {
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      test::expect_kept_changes_no_bit(engine_for(model, parallel), engine_for(model, parallel),
                                       policy);
    }
  }
}

// A snapshot counts for what it takes, whatever its forks do, and goes with the tree.
TEST(CudaPrefixTree, SnapshotsAreCounted) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const auto engine = engine_for(model, 4);
  const SessionOptions options = with_policy("keydiff(budget=48)+int4,window=16");
  const auto ids = random_ids(200, model->config().vocab, 1);
  const size_t points[] = {100};
  const Prompt prompt{ids, points};
  const size_t before = engine->bytes_in_use();
  {
    PrefixTree tree(engine, {.max_bytes = size_t{1} << 30});
    size_t kept = 0;
    for (int i = 0; i < 5; ++i) {
      Reuse reuse;
      Session session = tree.begin(options, prompt, &reuse);
      EXPECT_EQ(reuse.tokens, i == 0 ? 0u : 100u);
      tree.read(session, prompt);
      session.decode(3);
      if (i == 0) kept = tree.statistics().bytes;
      EXPECT_EQ(tree.statistics().bytes, kept);
    }
    EXPECT_EQ(tree.statistics().snapshots, 1u);
    // Ids are kept on the host.
    EXPECT_EQ(engine->bytes_in_use() - engine->ledger().total_bytes(),
              kept - 100 * sizeof(int32_t));
  }
  EXPECT_EQ(engine->bytes_in_use(), engine->ledger().total_bytes());
  EXPECT_GE(engine->bytes_in_use(), before);
}

// Saved state can be kept, and a conversation continues from it.
TEST(CudaPrefixTree, KeepsWhatWasRestored) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const testing_files::TemporaryFolder folder;
  const auto path = folder.path() / "s.pith";
  const auto engine = engine_for(model, 4), other = engine_for(model, 4);
  const SessionOptions options = with_policy("snapkv(budget=40)+int4,window=16");
  const int vocab = model->config().vocab;
  auto ids = random_ids(150, vocab, 1);
  Session whole(engine, options);
  whole.append(ids);
  whole.decode(5);
  whole.save(path);
  PrefixTree tree(other, {.max_bytes = size_t{1} << 30});
  ids.push_back(5);
  const Prompt past{ids, {}, "", "talk"};
  EXPECT_TRUE(tree.keep(Session::restore(other, path, options), past));
  const auto question = random_ids(70, vocab, 2);
  ids.insert(ids.end(), question.begin(), question.end());
  const Prompt prompt{ids, {}, "", "talk"};
  Reuse reuse;
  Session session = tree.begin(options, prompt, &reuse);
  EXPECT_EQ(reuse.tokens, 151u);
  EXPECT_EQ(reuse.kind, Reuse::Kind::kAnswer);
  tree.read(session, prompt);
  whole.append(question, Append::kPromptEnds);
  const auto a = session.decode(7);
  const std::vector<float> got(a.begin(), a.end());
  const auto b = whole.decode(7);
  EXPECT_EQ(got, std::vector<float>(b.begin(), b.end()));
}

}  // namespace
}  // namespace pith::cuda
