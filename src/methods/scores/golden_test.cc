// The rows that each rule keeps are those of kvpress 0.5 on the same tensors (files made by
// tools/golden/make_selectors.py, which shares no code with src/).

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cache_harness.h"
#include "core/safetensors.h"
#include "paths.h"

namespace pith {
namespace {

const std::filesystem::path kFolder = repo_dir() / "tests" / "data" / "selectors";

/// [heads, T, D] of the file -> [T, heads, D] of a step.
std::vector<float> step_order(const Tensor& t) {
  const size_t heads = t.shape[0], tokens = t.shape[1], dim = t.shape[2];
  const auto* x = reinterpret_cast<const float*>(t.data);
  std::vector<float> out(t.count());
  for (size_t h = 0; h < heads; ++h)
    for (size_t i = 0; i < tokens; ++i)
      std::copy_n(x + (h * tokens + i) * dim, dim, out.data() + (i * heads + h) * dim);
  return out;
}

std::string policy_of(const nlohmann::json& c) {
  const std::string name = c["policy"];
  const int window = c["window"], sink = c["sink"], mean = c["mean_kept"];
  std::string text = name + "(interval=1000,budget=" + std::to_string(mean - window - sink);
  if (c["kernel"] != 0) text += ",kernel=" + std::to_string(int{c["kernel"]});
  if (c["beta"] != 0) text += ",beta=" + std::to_string(int{c["beta"]});
  return text + "),dtype=f32,sink=" + std::to_string(sink) + ",window=" + std::to_string(window);
}

TEST(KvpressGolden, EveryRuleKeepsTheSameRows) {
  const auto cases = nlohmann::json::parse(std::ifstream(kFolder / "kept.json"));
  std::map<std::string, int> compared;
  for (const auto& c : cases) {
    const std::string name = c["tensors"];
    const SafeTensors file = SafeTensors::open(kFolder / (name + ".safetensors"));
    const Tensor &q = file.at("q"), &k = file.at("k"), &v = file.at("v");
    const size_t tokens = q.shape[1];
    const std::vector<float> queries = step_order(q), keys = step_order(k), values = step_order(v);
    test::Shape shape;
    shape.head_dim = static_cast<int>(q.shape[2]);
    shape.kv_heads = static_cast<int>(k.shape[0]);
    shape.group = static_cast<int>(q.shape[0] / k.shape[0]);
    shape.layers = c["layers"];
    const Rope rope(q.shape[2], 10000.0);
    test::Harness h(shape, policy_of(c), 1, 2, "", &rope);
    std::vector<float> out(queries.size());
    const int layer = c["layer"];
    h.cache().step(layer, out.data(), queries.data(), keys.data(), values.data(), tokens);
    h.cache().end_prefill();
    for (int g = 0; g < shape.kv_heads; ++g)
      EXPECT_EQ(h.cache().rows(layer, g).positions,
                c["kept"][static_cast<size_t>(g)].get<std::vector<int64_t>>())
          << policy_of(c) << " on " << name << ", layer " << layer << ", KV head " << g;
    ++compared[c["policy"]];
  }
  EXPECT_EQ(compared.size(), 6u);
  for (const auto& [policy, count] : compared) EXPECT_GE(count, 8) << policy;
}

}  // namespace
}  // namespace pith
