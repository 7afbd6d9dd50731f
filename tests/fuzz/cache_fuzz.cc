// A cache of any policy over rows of any kind that come in any cuts: answers are finite, the same
// for every cutting, and the account is what the allocator saw.

#include <cmath>
#include <cstring>

#include "cache_harness.h"
#include "fuzz/fuzz.h"

namespace pith::fuzz {
namespace {

const std::vector<MethodInfo>& all_methods() {
  static const auto all = methods();
  return all;
}

std::string a_policy(Choices& from) {
  std::vector<const MethodInfo*> selectors, codecs;
  for (const MethodInfo& m : all_methods()) (m.is_selector ? selectors : codecs).push_back(&m);
  const MethodInfo& selector = *selectors[from.below(selectors.size())];
  std::string text = selector.name;
  const std::string& size = selector.size_parameter;
  if (size == "rate") text += "(rate=0.5)";
  if (!size.empty() && size != "rate")
    text += "(" + size + "=" + std::to_string(8 + from.below(40)) + ")";
  if (from.below(3) > 0) text += "+" + codecs[from.below(codecs.size())]->name;
  text += ",sink=" + std::to_string(from.below(5));
  if (!selector_row(selector.name).owns_window) text += ",window=" + std::to_string(from.below(40));
  return text;
}

/// Rows as no model makes them: all alike, zero, enormous, too small for f16.
void bend(std::vector<float>& x, size_t kind) {
  for (size_t i = 0; i < x.size(); ++i) switch (kind) {
      case 1: x[i] = x[i % 16]; break;
      case 2: x[i] = 0; break;
      case 3: x[i] *= 1e4f; break;
      case 4: x[i] *= 1e-9f; break;
      case 5: x[i] = i % 16 == 0 ? 200.0f : 0.0f; break;
      case 6: x[i] *= 1e-39f; break;
      case 7: x[i] = i / 16 % 7 == 0 ? 6e4f : x[i]; break;
      default: break;
    }
}

struct Fed {
  bool taken = false;
  std::vector<std::vector<int64_t>> positions;
  std::vector<std::vector<float>> weights;
  std::vector<float> out;
};

Fed feed(const test::Shape& shape, const std::string& policy, const test::Rows& rows, size_t tokens,
         Choices cuts, size_t most) {
  Fed fed;
  fed.taken = harmless([&] {
    test::Harness h(shape, policy);
    for (size_t t = 0, n = 0; t < tokens; t += n) {
      n = std::min(tokens - t, 1 + cuts.below(most));
      h.append(rows, t, t + n, n);
      const Ledger ledger = h.cache().ledger();
      need(ledger.cache_bytes() + ledger.slack == h.memory().bytes(MemoryKind::kPayload) +
                                                      h.memory().bytes(MemoryKind::kMetadata) +
                                                      h.memory().bytes(MemoryKind::kShared),
           "the account is what the allocator saw: " + policy);
    }
    for (const HeadRows& held : test::held_rows(h.cache(), shape)) {
      fed.positions.push_back(held.positions);
      fed.weights.push_back(held.log_weights);
    }
    fed.out = h.attend(rows, 0, 1);
    for (const float x : fed.out) need(std::isfinite(x), "answers are finite: " + policy);
  });
  return fed;
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (int i = 0; i < 24; ++i) {
    std::string seed;
    for (int j = 0; j < 40; ++j) seed += static_cast<char>((i * 37 + j * (11 + i)) % 251);
    all.push_back(seed);
  }
  return all;
}

bool run(std::string_view input) {
  Choices from(input);
  const std::string policy = a_policy(from);
  const test::Shape shape{.head_dim = 64 << from.below(2),
                          .group = static_cast<int>(1 + from.below(3)),
                          .kv_heads = static_cast<int>(1 + from.below(2)),
                          .layers = 1,
                          .context = 400};
  const size_t tokens = 1 + from.below(150), most = 1 + from.below(70);
  test::Rows rows(shape, tokens, static_cast<uint32_t>(from.below(200)));
  bend(rows.k, from.below(8));
  bend(rows.v, from.below(8));
  const Fed whole = feed(shape, policy, rows, tokens, Choices(""), 1);
  const Fed cut = feed(shape, policy, rows, tokens, from, most);
  need(whole.taken == cut.taken, "cuts do not decide what is refused: " + policy);
  need(whole.positions == cut.positions && whole.weights == cut.weights,
       "cuts do not change the rows: " + policy);
  need(whole.out == cut.out, "cuts do not change the answer: " + policy);
  return true;
}

}  // namespace

std::span<const Target> cache_targets() {
  static const Target all[] = {{"cache", seeds, run}};
  return all;
}

}  // namespace pith::fuzz
