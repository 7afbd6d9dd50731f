// Prompts that are read exactly on the GPU, a layer at a time: on the emulated card the bits of one
// pass over all tokens, in the memory of one layer; a card's products round by how many rows they
// have.

#include "pith/engine.h"
#include "pith/prefix_tree.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

using Logits = std::vector<float>;

Logits copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

std::string exactly(const std::string& policy) {
  const size_t rules = std::min(policy.find(';'), policy.size());
  return policy.substr(0, rules) + ",prompt=exact" + policy.substr(rules);
}

void expect_same(const Logits& got, const Logits& expected) {
  if (!emulated())
    EXPECT_LT(relative_error(got, {expected.begin(), expected.end()}), 3e-2);
  else
    EXPECT_EQ(got, expected);
}

void expect_same_counts(const Session& a, const Session& b) {
  const ModelConfig& c = a.model().config();
  for (int l = 0; l < c.layers; ++l)
    for (int h = 0; h < c.kv_heads; ++h) {
      const HeadRows got = a.rows(l, h), expected = b.rows(l, h);
      EXPECT_EQ(got.positions.size(), expected.positions.size());
      if (emulated()) EXPECT_EQ(got.positions, expected.positions) << l << ", " << h;
    }
}

class CudaPrompt : public testing::TestWithParam<const char*> {
 protected:
  static std::shared_ptr<const Model> model() {
    static const std::shared_ptr<const Model> made =
        RandomModelFolder({.dtype = DType::kF16}).load();
    return made;
  }
  static SessionOptions with(const std::string& policy) {
    SessionOptions o;
    o.policy = Policy::parse(policy);
    o.context = 1200;
    return o;
  }
  static std::shared_ptr<Engine> engine(size_t chunk, size_t limit = 0) {
    return std::make_shared<Engine>(
        model(), EngineOptions{.device = Device::kCuda, .chunk = chunk, .memory_limit = limit});
  }
  static std::vector<int32_t> ids(size_t count, uint32_t seed) {
    return random_ids(count, model()->config().vocab, seed);
  }
};

// Two prompts with an answer between them: the second attends to compressed rows.
TEST_P(CudaPrompt, IsOnePassOverAllTokens) {
  PITH_NEEDS_GPU();
  Session whole(engine(300), with(GetParam())), layers(engine(96), with(exactly(GetParam())));
  for (const size_t tokens : {260, 110}) {
    const auto prompt = ids(tokens, static_cast<uint32_t>(tokens));
    expect_same(copy(layers.prefill(prompt)), copy(whole.prefill(prompt)));
    expect_same_counts(layers, whole);
    for (const int32_t id : ids(3, 3)) expect_same(copy(layers.decode(id)), copy(whole.decode(id)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Policies, CudaPrompt,
    testing::Values("exact", "snapkv(budget=40)+int8", "exact+int4,sink=4,window=32",
                    "h2o(budget=48,interval=40),window=16", "express(s=32,heavy=16),window=16",
                    "exact;heads=0:exact+int4,window=16",
                    "balancekv(heavy=0,rate=0.5)+int4,window=16", "exact+kivi(bits=2),window=32"));

using CudaPrompts = CudaPrompt;

TEST_F(CudaPrompts, GiveTheLogitsOfAllTheirTokens) {
  PITH_NEEDS_GPU();
  const auto prompt = ids(170, 5);
  Session whole(engine(300), with("exact+int4,window=32"));
  Session layers(engine(80), with("exact+int4,window=32,prompt=exact"));
  expect_same(all_logits(layers, prompt, prompt.size()), all_logits(whole, prompt, prompt.size()));
}

// The session is untouched until the prompt is through, whoever decodes between; forks and files
// continue from where it stands.
TEST_F(CudaPrompts, AreReadInSlicesAndGoOnFromFiles) {
  PITH_NEEDS_GPU();
  const auto e = engine(64);
  const SessionOptions o = with("snapkv(budget=64)+int4,prompt=exact");
  const auto first = ids(150, 1), second = ids(200, 2);
  Session alone(e, o), session(e, o), other(e, o);
  for (Session* s : {&alone, &session, &other}) s->append(first);
  const int32_t token = 9;
  std::vector<Work> works{{&session, second}, {&other, {&token, 1}}};
  works[0].slice = 2;
  size_t steps = 0;
  do {
    EXPECT_EQ(session.tokens(), first.size());
    e->step(works);
    for (const Work& w : works) ASSERT_FALSE(w.failure) << w.failure->what();
    ++steps;
  } while (works[0].goes_on);
  EXPECT_EQ(steps, 4u) << "200 tokens in blocks of 64, of two layers";
  alone.append(second);
  Session broken = session.fork();
  broken.append(ids(100, 7), [](size_t, size_t) { return false; });
  EXPECT_EQ(broken.tokens(), 350u);
  std::vector<std::byte> file;
  session.save(
      [&](std::span<const std::byte> more) { file.insert(file.end(), more.begin(), more.end()); });
  Session restored = Session::restore(e, file, o);
  for (const int32_t id : ids(4, 4)) {
    const Logits expected = copy(alone.decode(id));
    EXPECT_EQ(copy(session.decode(id)), expected);
    EXPECT_EQ(copy(restored.decode(id)), expected);
    EXPECT_EQ(copy(broken.decode(id)), expected);
  }
}

// A layer's many rows at once are halved by all blocks of the device (the emulated card has as few
// multiprocessors as that takes), those of several layers by one block per head.
TEST_F(CudaPrompts, HoldTheSameByAllBlocks) {
  PITH_NEEDS_GPU();
  const RandomModel shape{.dtype = DType::kF16, .heads = 2, .hidden = 64, .inner = 96};
  const auto e = std::make_shared<Engine>(RandomModelFolder(shape).load(),
                                          EngineOptions{.device = Device::kCuda, .chunk = 816});
  const auto prompt = random_ids(800, shape.vocab, 6);
  for (const std::string policy :
       {"express(s=512,heavy=16),window=16", "express(s=512,heavy=16)+int4,window=16"}) {
    Session whole(e, with(policy)), layers(e, with(exactly(policy)));
    expect_same(copy(layers.prefill(prompt)), copy(whole.prefill(prompt)));
    expect_same_counts(layers, whole);
    expect_same(copy(layers.decode(3)), copy(whole.decode(3)));
  }
}

// The engine's peak: what is held at last, the residual stream, queries and results, and one
// layer's exact rows of four; heavy rows are selected in as much again. Afterwards its scratch is
// what chunks need.
TEST_F(CudaPrompts, TakeOneLayersRowsBesideTheActivations) {
  PITH_NEEDS_GPU();
  const RandomModel shape{
      .dtype = DType::kF16, .heads = 2, .kv_heads = 2, .layers = 4, .hidden = 64, .inner = 96};
  const auto model = RandomModelFolder(shape).load();
  const auto prompt = random_ids(2000, model->config().vocab, 1);
  const ModelConfig& c = model->config();
  const size_t layer = prompt.size() * static_cast<size_t>(2 * c.kv_heads * c.head_dim) * 2;
  const size_t queries = static_cast<size_t>(c.query_heads * c.head_dim);
  // The residual stream; queries and results of 16 bits, partial results; angles.
  const size_t activations =
      prompt.size() * (4 * static_cast<size_t>(c.hidden) + 8 * queries + 4 * c.query_heads +
                       4 * static_cast<size_t>(c.head_dim));
  for (const auto& [policy, most] : {std::pair("exact+int4,window=32,prompt=exact", 1.5),
                                     std::pair("snapkv(budget=64),prompt=exact", 1.5),
                                     std::pair("express(s=64),prompt=exact", 2.5)}) {
    const auto e =
        std::make_shared<Engine>(model, EngineOptions{.device = Device::kCuda, .chunk = 64});
    SessionOptions o;
    o.policy = Policy::parse(policy);
    o.context = 2100;
    Session session(e, o);
    session.append(random_ids(64, c.vocab, 2));  // what any chunk takes is there
    const size_t before = e->bytes_in_use(), held_before = session.ledger().total_bytes();
    session.append(prompt);
    const size_t held = session.ledger().total_bytes() - held_before;
    const double rows = static_cast<double>(e->peak_bytes() - before - held - activations);
    EXPECT_LE(rows, most * static_cast<double>(layer)) << policy;
    EXPECT_LT(e->bytes_in_use(), before + held + layer / 4) << policy;
    EXPECT_LE(e->peak_bytes() - before,
              estimate_ledger(c, o, o.context, Device::kCuda).total_bytes())
        << policy;
  }
}

TEST_F(CudaPrompts, ForWhichThereIsNoRoomLeaveTheSessionAsItWas) {
  PITH_NEEDS_GPU();
  const size_t own = engine(64)->bytes_in_use();
  const auto e = engine(64, own + (size_t{2} << 20));
  Session session(e, with("snapkv(budget=64),prompt=exact"));
  session.append(ids(60, 1));
  Session twin = session.fork();
  EXPECT_THROW(session.append(ids(1100, 2)), Error);
  EXPECT_EQ(copy(session.decode(3)), copy(twin.decode(3)));
}

TEST_F(CudaPrompts, ThatGatherAreRefused) {
  PITH_NEEDS_GPU();
  try {
    Session(engine(64), with("snapkv(budget=64),prompt=once"));
    ADD_FAILURE() << "a prompt whose rows gather";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("snapkv(budget=64),prompt=exact"), std::string::npos);
  }
}

}  // namespace
}  // namespace pith::cuda
