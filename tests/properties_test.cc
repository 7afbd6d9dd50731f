// Properties of everything together, over cases that RapidCheck draws: policies print back to
// themselves; a conversation that is cut, forked, saved, restored, stopped and batched is the one
// that was had without any of it, bit for bit; the account is the allocator's at every step.
// RC_PARAMS="seed=N max_success=N" draws others (tests/CMakeLists.txt has those of ctest).

#include <gtest/gtest.h>

#include <rapidcheck.h>
#include <algorithm>
#include <cmath>

#include "cache_harness.h"
#include "gguf_test_model.h"
#include "pith/generate.h"
#include "pith/prefix_tree.h"
#include "pith/session.h"

namespace pith {
namespace {

using rc::gen::elementOf;
using rc::gen::inRange;

bool chance(int of) { return *inRange(0, of) == 0; }

/// NAME(PARAMETER=ITS DEFAULT,...) with some of a method's parameters.
std::string a_part(const MethodInfo& method) {
  std::string text;
  for (const ParameterInfo& p : method.parameters)
    if (!p.default_value.empty() && chance(3))
      text += (text.empty() ? "(" : ",") + p.name + "=" + p.default_value;
  return method.name + text + (text.empty() ? "" : ")");
}

std::vector<MethodInfo> methods_that(bool select) {
  std::vector<MethodInfo> all = methods();
  std::erase_if(all, [&](const MethodInfo& m) { return m.is_selector != select; });
  return all;
}

std::string a_rule() {
  static const auto selectors = methods_that(true), codecs = methods_that(false);
  std::string text = a_part(*elementOf(selectors));
  const int kind = *inRange(0, 4);
  if (kind == 1) text += "+" + a_part(*elementOf(codecs));
  if (kind >= 2) text += "+k:" + a_part(*elementOf(codecs));
  if (kind == 3) text += "+v:" + a_part(*elementOf(codecs));
  if (chance(3)) text += ",sink=" + std::to_string(*inRange(0, 100));
  if (chance(3)) text += ",window=" + std::to_string(*inRange(0, 300));
  if (chance(3)) text += ",dtype=" + *elementOf(std::vector<std::string>{"f32", "f16", "bf16"});
  return text;
}

/// "2", "0-3", "-2"
std::string a_range() {
  const int first = *inRange(-4, 4);
  return std::to_string(first) + (first >= 0 && chance(2) ? "-" + std::to_string(first + 3) : "");
}

bool same_part(const PolicyPart& a, const PolicyPart& b) {
  return a.name == b.name && a.parameters == b.parameters;
}

bool same_part(const std::optional<PolicyPart>& a, const std::optional<PolicyPart>& b) {
  return a.has_value() == b.has_value() && (!a || same_part(*a, *b));
}

bool same_rule(const PolicyRule& a, const PolicyRule& b) {
  return same_part(a.selector, b.selector) && same_part(a.key_codec, b.key_codec) &&
         same_part(a.value_codec, b.value_codec) && a.sink == b.sink && a.window == b.window &&
         a.dtype == b.dtype;
}

TEST(Properties, PoliciesPrintBackToThemselves) {
  size_t parsed = 0, drawn = 0;
  EXPECT_TRUE(rc::check([&] {
    std::string text = a_rule();
    if (chance(4))
      text += ",prompt=" + *elementOf(std::vector<std::string>{"chunks", "exact", "once"});
    for (int more = *inRange(0, 3); more > 0; --more) {
      text += chance(2) ? ";layers=" + a_range() : ";heads=" + a_range();
      text += ":" + a_rule();
    }
    ++drawn;
    std::optional<Policy> policy;
    try {
      policy = Policy::parse(text);
    } catch (const Error& error) {
      RC_ASSERT(error.code() == ErrorCode::kInvalidArgument);
      return;
    }
    ++parsed;
    const std::string printed = policy->to_string();
    const Policy again = Policy::parse(printed);
    RC_ASSERT(again.to_string() == printed);
    RC_ASSERT(again.prompt == policy->prompt);
    RC_ASSERT(again.rules.size() == policy->rules.size());
    for (int layer = 0; layer < 5; ++layer)
      for (int head = 0; head < 5; ++head)
        RC_ASSERT(
            same_rule(again.rule_for(layer, 5, head, 5), policy->rule_for(layer, 5, head, 5)));
  }));
  EXPECT_GT(parsed * 2, drawn) << "most that is drawn is a policy";
}

const std::vector<std::string>& policies() {
  static const std::vector<std::string> all = {
      "exact",
      "exact+int4,sink=4,window=16",
      "keydiff(budget=24,interval=8)+int4,sink=2,window=8",
      "h2o(budget=24,interval=16),window=8",
      "snapkv(budget=24)+int8",
      "tova(budget=24),window=4",
      "adakv(budget=24),window=8",
      "streaming_llm(window=20)",
      "express(heavy=0,s=16)+int4,window=8",
      "uniform(rate=0.25)+bf16,sink=4,window=8",
      "balancekv(heavy=0,rate=0.5)+int4,window=8",
      "buzz(T=32,s=4)",
      "exact+kivi(bits=2),window=16",
      "exact+gear(bits=4),window=16",
      "exact+turboquant(bits=3),window=8",
      "exact+k:qjl+v:int4,window=8",
      "exact+csr(online=32),window=8",
      "snapkv(budget=24)+int4,prompt=exact",
      "h2o(budget=24),prompt=once",
      "exact,dtype=f32;layers=-1:exact+int4,window=8",
  };
  return all;
}

/// A cache of one layer; its memory as the ledger tells it and as it was taken.
void expect_true_account(test::Harness& h, const test::Shape& shape, size_t tokens) {
  const Ledger ledger = h.cache().ledger();
  RC_ASSERT(ledger.cache_bytes() + ledger.slack == h.memory().bytes(MemoryKind::kPayload) +
                                                       h.memory().bytes(MemoryKind::kMetadata) +
                                                       h.memory().bytes(MemoryKind::kShared));
  RC_ASSERT(ledger.tokens == tokens);
  const Ledger most = h.cache().estimate(tokens);
  RC_ASSERT(ledger.cache_bytes() <= most.cache_bytes());
  size_t held = 0;
  for (const HeadRows& head : test::held_rows(h.cache(), shape)) held += head.positions.size();
  RC_ASSERT(ledger.rows_kept == held);
}

/// Selectors whose rows stand for all tokens, none lost and none counted twice.
bool keeps_the_sum(const std::string& policy) {
  return policy.starts_with("exact") || policy.starts_with("express(") ||
         policy.starts_with("buzz(");
}

TEST(Properties, TheAccountIsTheAllocatorsAndWeightsSumToTokens) {
  const test::Shape shape{.head_dim = 64, .group = 2, .kv_heads = 2, .layers = 1, .context = 400};
  EXPECT_TRUE(rc::check([&] {
    const std::string policy = *elementOf(policies());
    if (policy.find("prompt=") != std::string::npos) return;  // of sessions alone
    RC_TAG(policy);
    const size_t tokens = *inRange<size_t>(1, 160);
    const test::Rows rows(shape, tokens, *inRange<uint32_t>(0, 1000));
    test::Harness h(shape, policy);
    for (size_t t = 0, n = 0; t < tokens; t += n) {
      n = std::min(tokens - t, chance(3) ? *inRange<size_t>(1, 60) : 1);
      if (chance(2))
        h.append(rows, t, t + n, n);
      else
        for (const float x : h.step(rows, t, t + n, n)) RC_ASSERT(std::isfinite(x));
      if (chance(20)) h.cache().end_prefill();
      expect_true_account(h, shape, t + n);
      if (!keeps_the_sum(policy)) continue;
      for (const HeadRows& head : test::held_rows(h.cache(), shape)) {
        double sum = 0;
        for (const float w : head.log_weights) sum += std::exp(double{w});
        RC_ASSERT(std::abs(sum - static_cast<double>(t + n)) < 1e-4 * static_cast<double>(t + n));
      }
    }
  }));
}

/// A model of random weights, so that every row counts.
const std::shared_ptr<const Model>& model() {
  static const testing_gguf::TwoForms forms("llama");
  static const auto loaded = Model::load(forms.write_gguf());
  return loaded;
}

std::shared_ptr<Engine> engine() {
  EngineOptions o;
  o.threads = 1;
  o.chunk = 16;
  return std::make_shared<Engine>(model(), o);
}

/// A prompt, then the tokens of an answer.
struct Turn {
  std::vector<int32_t> prompt, answer;
};

/// One conversation by all the detours that promise its bits.
class Detour {
 public:
  Detour(const std::shared_ptr<Engine>& first, const SessionOptions& options)
      : engine_(first), options_(options), session_(first, options), other_(first, options) {
    other_.append(std::vector<int32_t>{1, 2, 3});
  }

  void read(const std::vector<int32_t>& all) {
    const Prompt prompt{all, {}};
    if (chance(3)) return read_until_stopped(all);
    while (session_.tokens() < all.size()) {
      PromptReader reader(session_, prompt);
      Work work = reader.next(session_);
      run(work);
      turn_aside();
    }
  }
  void decode(int32_t token) {
    turn_aside();
    Work work;
    work.session = &session_;
    work.tokens = {&token, 1};
    run(work);
  }
  Session& session() { return session_; }

 private:
  void run(Work& work) {
    const int32_t token = 5;
    Work beside;
    beside.session = &other_;
    beside.tokens = {&token, 1};
    std::vector<Work> works = {work};
    if (chance(2) && other_.tokens() + 1 < other_.context())
      works.insert(chance(2) ? works.begin() : works.end(), beside);
    engine_->step(works);
    for (const Work& w : works) RC_ASSERT(!w.failure);
  }
  /// The whole prompt, stopped after one chunk each time, and given again.
  void read_until_stopped(const std::vector<int32_t>& all) {
    const std::span<const int32_t> tokens(all);
    const bool chunks = options_.policy.prompt == PromptReading::kChunks;
    for (int stops = *inRange(0, 4); session_.tokens() < all.size(); --stops)
      session_.append(tokens.subspan(session_.tokens()), Append::kPromptEnds,
                      [&](size_t, size_t) { return stops <= 0 || !chunks; });
  }
  /// To a fork, to a file and back in another engine, or on.
  void turn_aside() {
    switch (*inRange(0, 8)) {
      case 0: {
        Session fork = session_.fork(chance(2) ? Copy::kNow : Copy::kWhenWritten);
        std::swap(fork, session_);
        if (chance(2) && fork.tokens() > 0 && fork.tokens() < fork.context()) (void)fork.decode(7);
        return;
      }
      case 1: {
        std::vector<std::byte> bytes;
        session_.save([&](std::span<const std::byte> more) {
          bytes.insert(bytes.end(), more.begin(), more.end());
        });
        if (chance(2)) {
          engine_ = engine();
          other_ = Session(engine_, options_);
        }
        session_ = Session::restore(engine_, bytes, options_);
        return;
      }
      default: return;
    }
  }

  std::shared_ptr<Engine> engine_;
  SessionOptions options_;
  Session session_, other_;
};

void expect_same(const Session& a, const Session& b) {
  RC_ASSERT(std::ranges::equal(a.token_ids(), b.token_ids()));
  for (int layer = 0; layer < a.model().config().layers; ++layer)
    for (int head = 0; head < a.model().config().kv_heads; ++head) {
      const HeadRows x = a.rows(layer, head), y = b.rows(layer, head);
      RC_ASSERT(x.positions == y.positions);
      RC_ASSERT(x.log_weights == y.log_weights);
      RC_ASSERT(x.roles == y.roles);
    }
  RC_ASSERT(a.ledger().cache_bytes() == b.ledger().cache_bytes());
}

TEST(Properties, NoDetourChangesAConversation) {
  const auto plain_engine = engine();
  EXPECT_TRUE(rc::check([&] {
    SessionOptions options;
    options.policy = Policy::parse(*elementOf(policies()));
    options.context = 200;
    options.seed = *inRange<uint64_t>(0, 5);
    RC_TAG(options.policy.to_string());
    Session plain(plain_engine, options);
    Detour detour(engine(), options);
    std::vector<int32_t> all;
    const auto id = [&] { return *inRange<int32_t>(0, testing_gguf::kVocab); };
    for (int turns = *inRange(1, 4); turns > 0; --turns) {
      // One token alone would be part of an answer.
      std::vector<int32_t> prompt(*inRange<size_t>(2, 40));
      for (int32_t& x : prompt) x = id();
      all.insert(all.end(), prompt.begin(), prompt.end());
      plain.append(prompt, Append::kPromptEnds);
      detour.read(all);
      expect_same(plain, detour.session());
      for (int tokens = *inRange(0, 12); tokens > 0; --tokens) {
        all.push_back(id());
        plain.append({&all.back(), 1});
        detour.decode(all.back());
      }
    }
    expect_same(plain, detour.session());
    const auto a = plain.decode(3), b = detour.session().decode(3);
    RC_ASSERT(std::ranges::equal(a, b));
  }));
}

}  // namespace
}  // namespace pith
