#include "cache/cuda/layer_maker.h"

#include <fmt/format.h>

#include <string>

#include "cache/cuda/head_stores.h"

namespace pith::cuda {
namespace {

/// All bits of them.
std::string name_of(const std::vector<double>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)};
}

// A codec learns tables from its rows: such tables are made for each cache. One that has none is
// the same for all layers and caches, whose rows are coded together.
std::shared_ptr<const DeviceCodec> with_tables(const LayerPlan& plan, TableSite t,
                                               DeviceTables& tables) {
  if (!plan.codec) return nullptr;
  const auto make = [&] {
    const auto own = plan.codec->with_tables(t);
    return own ? own : tables.codecs.of(plan.codec_name, [&] { return plan.codec; });
  };
  if (plan.codec->learns_from() > 0) return make();
  t.memory = t.scratch = &tables.memory;
  const auto name =
      fmt::format("{}, layer {} of model {}, {} KV heads from {} of {} channels, seed {}, {}",
                  plan.codec_name, t.layer, t.model, t.kv_heads, t.first_head, t.head_dim, t.seed,
                  t.frequencies ? name_of(*t.frequencies) : "no RoPE");
  return tables.codecs.of(name, make);
}

}  // namespace

RopeTables::RopeTables(const LayerRopes& ropes, DeviceCommon& common, cudaStream_t stream)
    : ropes_(ropes) {
  for (const Rope* rope : ropes.distinct()) {
    const std::vector<double>& angles = rope->frequencies();
    DeviceTables& all = common.tables();
    tables_.push_back(all.ropes.of(
        name_of(angles), [&] { return std::make_shared<RopeTable>(all.memory, angles, stream); }));
  }
}

LayerSite site_of(MemoryCounter& memory, const CacheShape& shape, cudaStream_t stream) {
  return {&memory,
          stream,
          static_cast<size_t>(shape.query_heads),
          static_cast<size_t>(shape.kv_heads),
          static_cast<size_t>(shape.head_dim),
          shape.context};
}

LayerMaker::LayerMaker(const ResolvedPolicy& policy, const CacheShape& shape, int first, int end)
    : shape_(shape), first_(first) {
  for (int l = first; l < end; ++l) plans_.push_back(plan_heads(policy, l));
}

std::vector<LayerMaker::Part> LayerMaker::plan_heads(const ResolvedPolicy& policy,
                                                     int layer) const {
  std::vector<Part> parts;
  std::vector<const CohortPolicy*> rules(static_cast<size_t>(shape_.kv_heads));  // [G]
  for (const CohortPolicy& cohort : policy.layer(layer)) {
    for (const int head : cohort.heads) rules[static_cast<size_t>(head)] = &cohort;
  }
  for (size_t g = 0, end = 0; g < rules.size(); g = end) {
    while (end < rules.size() && rules[end] == rules[g]) ++end;
    const HeadRange heads{static_cast<int>(g), static_cast<int>(end - g)};
    parts.push_back({heads, plan_layer(*rules[g], heads)});
  }
  return parts;
}

CacheLayers LayerMaker::make(const Site& site) {
  CacheLayers layers(first_);
  for (size_t i = 0; i < plans_.size(); ++i)
    layers.add(make_layer(site, first_ + static_cast<int>(i), plans_[i]));
  return layers;
}

std::unique_ptr<LayerRows> LayerMaker::make_layer(const Site& site, int layer,
                                                  std::vector<Part>& parts) {
  const RopeTable* rope = site.ropes.of(layer);
  const LayerSite whole = site_of(site.memory, shape_, site.stream);
  std::vector<HeadRun> runs;
  for (Part& part : parts) {
    const TableSite tables{&site.memory.root(),
                           site.stream,
                           shape_.head_dim,
                           part.heads.count,
                           static_cast<uint32_t>(layer),
                           site.seed,
                           shape_.model,
                           rope ? &rope->host : nullptr,
                           static_cast<uint32_t>(part.heads.first),
                           &site.common.memory()};
    LayerPlan& plan = part.plan;
    plan.codec = with_tables(plan, tables, site.common.tables());
    LayerSite of_run = whole;
    of_run.rope = rope;
    of_run.heads = static_cast<size_t>(part.heads.count);
    of_run.query_heads = of_run.heads * static_cast<size_t>(shape_.query_heads / shape_.kv_heads);
    runs.push_back(
        {static_cast<size_t>(part.heads.first), std::make_unique<HeadStores>(plan, of_run)});
  }
  return std::make_unique<LayerRows>(std::move(runs), whole);
}

}  // namespace pith::cuda
