// Estimates for the GPU are bounds, as the CPU's are (src/session/estimate_test.cc): no session
// holds more, and they are not far above it.

#include <cstdlib>

#include <optional>

#include "pith/engine.h"
#include "policy_forms.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

/// All selectors and codecs, of which the GPU refuses some, and prompts that are read otherwise.
std::vector<std::string> forms() {
  std::vector<std::string> all = test::registered_forms("exact");
  for (const char* more :
       {"keydiff(budget=96)+int4,prompt=exact", "uniform(budget=96,heavy=32)+int4",
        "uniform(rate=0.25,heavy=32)+int8", "express(s=64,heavy=32)+turboquant,window=16",
        "exact+int4,window=16,sink=0", "adakv(budget=96)+k:int8+v:int4"})
    all.emplace_back(more);
  return all;
}

TEST(CudaEstimates, AreAnUpperBoundAndNotFarOff) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({.dtype = DType::kF16}).load();
  double loosest = 1, sum = 0;
  size_t cases = 0;
  const auto engine =
      std::make_shared<Engine>(model, EngineOptions{.device = Device::kCuda, .chunk = 64});
  for (const std::string& policy : forms()) {
    if (left_out()) continue;
    for (const size_t tokens : {40, 150, 420}) {
      SCOPED_TRACE(policy + ", " + std::to_string(tokens) + " tokens");
      SessionOptions o;
      o.policy = Policy::parse(policy);
      o.context = 1024;
      std::optional<Session> session;
      try {
        session.emplace(engine, o);
      } catch (const Error& e) {
        if (e.code() != ErrorCode::kUnsupported) throw;
        break;
      }
      constexpr size_t kAnswer = 3;
      const auto ids = random_ids(tokens, model->config().vocab, 7);
      session->prefill(std::span(ids).first(tokens - kAnswer));
      for (size_t i = tokens - kAnswer; i < tokens; ++i) session->decode(ids[i]);
      const Ledger ledger = session->ledger();
      const size_t held = ledger.payload + ledger.metadata + ledger.slack;
      const Ledger said = estimate_ledger(model->config(), o, tokens, Device::kCuda);
      const size_t most = said.payload + said.metadata + said.slack;
      EXPECT_LE(ledger.total_bytes(), said.total_bytes());
      EXPECT_LE(held, most);
      const double ratio = static_cast<double>(most) / static_cast<double>(held);
      loosest = std::max(loosest, ratio);
      sum += ratio;
      ++cases;
      if (std::getenv("PITH_SHOW_ESTIMATES"))
        std::printf("%-56s %4zu %9zu %9zu %.3f\n", policy.c_str(), tokens, held, most, ratio);
    }
  }
  EXPECT_LE(loosest, 3.5);
  EXPECT_LE(sum / static_cast<double>(cases), 1.5);
  std::printf("the loosest is %.3f of what is held, the mean %.3f\n", loosest,
              sum / static_cast<double>(cases));
}

}  // namespace
}  // namespace pith::cuda
