#pragma once
// Sessions on the GPU beside sessions on the CPU.

#include "harness.h"
#include "pith/session.h"

namespace pith::cuda {

inline std::vector<int32_t> random_ids(size_t count, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return ids;
}

inline StandaloneOptions options_for(Device device, const std::string& policy, size_t chunk = 512) {
  StandaloneOptions o;
  o.policy = Policy::parse(policy);
  o.device = device;
  o.chunk = chunk;
  o.threads = 2;
  o.f32_arithmetic = device == Device::kCpu;
  return o;
}

/// Logits after each of the ids: the first `prefilled` as one prompt, the others token by token.
inline std::vector<float> all_logits(Session& session, const std::vector<int32_t>& ids,
                                     size_t prefilled) {
  std::vector<float> out;
  const std::span<const int32_t> all(ids);
  if (prefilled > 0) {
    session.prefill_logits(all.first(prefilled), [&](size_t, size_t count, const float* logits) {
      out.insert(out.end(), logits, logits + count * session.model().config().vocab);
    });
  }
  for (size_t i = prefilled; i < ids.size(); ++i) {
    const auto logits = session.decode(ids[i]);
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

/// The larger of the relative errors over the prompt and over the tokens after it.
inline double difference(const std::shared_ptr<const Model>& model, const std::string& policy,
                         const std::vector<int32_t>& ids, size_t prefilled, size_t chunk) {
  Session cpu(model, options_for(Device::kCpu, policy, chunk));
  Session gpu(model, options_for(Device::kCuda, policy, chunk));
  const auto want = all_logits(cpu, ids, prefilled), got = all_logits(gpu, ids, prefilled);
  EXPECT_EQ(want.size(), got.size());
  const auto vocab = static_cast<ptrdiff_t>(model->config().vocab);
  const auto end = vocab * static_cast<ptrdiff_t>(ids.size());
  const auto split = vocab * static_cast<ptrdiff_t>(prefilled);
  double worst = 0;
  for (const auto& [first, last] : {std::pair{ptrdiff_t{0}, split}, std::pair{split, end}}) {
    if (first == last) continue;
    worst = std::max(worst, relative_error({got.begin() + first, got.begin() + last},
                                           {want.begin() + first, want.begin() + last}));
  }
  return worst;
}

}  // namespace pith::cuda
