// The rows that each rule keeps are those of kvpress 0.5 on the same tensors (files made by
// tools/golden/make_selectors.py, which shares no code with src/).

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

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

/// The rows that a policy keeps of a file's tensors, after one step.
struct Kept {
  Kept(const std::string& tensors, const std::string& policy, int layers, int layer) {
    const SafeTensors file = SafeTensors::open(kFolder / (tensors + ".safetensors"));
    const Tensor &q = file.at("q"), &k = file.at("k"), &v = file.at("v");
    const std::vector<float> queries = step_order(q), keys = step_order(k), values = step_order(v);
    test::Shape shape;
    shape.head_dim = static_cast<int>(q.shape[2]);
    shape.kv_heads = static_cast<int>(k.shape[0]);
    shape.group = static_cast<int>(q.shape[0] / k.shape[0]);
    shape.layers = layers;
    const Rope rope(q.shape[2], 10000.0);
    test::Harness h(shape, policy, 1, 2, "", &rope);
    std::vector<float> out(queries.size());
    h.cache().step(layer, out.data(), queries.data(), keys.data(), values.data(), q.shape[1]);
    h.cache().end_prefill();
    for (int g = 0; g < shape.kv_heads; ++g) rows.push_back(h.cache().rows(layer, g).positions);
  }
  std::vector<std::vector<int64_t>> rows;  // [G]
};

TEST(KvpressGolden, EveryRuleKeepsTheSameRows) {
  const auto cases = nlohmann::json::parse(std::ifstream(kFolder / "kept.json"));
  std::map<std::string, int> compared;
  for (const auto& c : cases) {
    const int layer = c["layer"];
    const Kept kept(c["tensors"], policy_of(c), c["layers"], layer);
    for (size_t g = 0; g < kept.rows.size(); ++g)
      EXPECT_EQ(kept.rows[g], c["kept"][g].get<std::vector<int64_t>>())
          << policy_of(c) << " on " << c["tensors"] << ", layer " << layer << ", KV head " << g;
    ++compared[c["policy"]];
  }
  EXPECT_EQ(compared.size(), 6u);
  for (const auto& [policy, count] : compared) EXPECT_GE(count, 8) << policy;
}

// Heads share their budgets: kept by tools/golden/make_adakv.py.
TEST(KvpressGolden, HeadsThatShareTheirBudgetsKeepTheSameRows) {
  const auto cases = nlohmann::json::parse(std::ifstream(kFolder / "adakv.json"));
  size_t ragged = 0;
  for (const auto& c : cases) {
    const int window = c["window"], sink = c["sink"], mean = c["mean_kept"];
    const std::string by = c["by"];
    const std::string policy =
        fmt::format("adakv(by={},interval=1000,budget={},safeguard={}),dtype=f32,sink={},window={}",
                    by, mean - window - sink, c["safeguard"].get<double>(), sink, window);
    const Kept kept(c["tensors"], policy, 1, 0);
    std::set<size_t> counts;
    for (size_t g = 0; g < kept.rows.size(); ++g) {
      EXPECT_EQ(kept.rows[g], c["kept"][g].get<std::vector<int64_t>>())
          << policy << " on " << c["tensors"] << ", KV head " << g;
      counts.insert(kept.rows[g].size());
    }
    ragged += counts.size() > 1;
  }
  EXPECT_GT(ragged, 50u) << "heads differ in their number of rows";
}

}  // namespace
}  // namespace pith
