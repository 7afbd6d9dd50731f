// A resolved rule in one layer on the GPU: the codec whose kernels take it, and the
// selector's half there. Whether it can be has been settled (policy/offers.h).

#include "cache/cuda/layer_plan.h"

#include <fmt/format.h>

#include "methods/registry_cuda.h"
#include "pith/error.h"
#include "plan/simple_rules.h"
#include "policy/registry.h"
#include "rows/cuda/level_codec.h"

namespace pith::cuda {
namespace {

[[noreturn]] void lacks_half(const std::string& name) {
  throw Error(ErrorCode::kInternal,
              "registry_cuda.cc lacks a row that the registry promises: " + name);
}

/// Null: rows are plain numbers.
std::shared_ptr<const DeviceCodec> make_side(const SideChoice& side) {
  if (!side.offers.coded) return nullptr;
  const DeviceCodecRow* device = find_device_codec(side.codec.name);
  if (!device || !device->make) lacks_half(side.codec.name);
  return device->make(side.options);
}

/// The codec of keys and values.
std::shared_ptr<const DeviceCodec> codec_of(const CohortPolicy& policy) {
  const SideChoice &keys = policy.keys, &values = policy.values;
  const bool wide = policy.site.head_dim > kMostFragmentDim;
  auto k = make_side(keys), v = make_side(values);
  if (k && v && keys.offers.code == values.offers.code) {
    if (const auto rows = wide ? k->as_levels() : nullptr) return rows;
    return k;
  }
  if (!k) k = dense_levels(keys.body);
  if (!v) v = dense_levels(values.body);
  if (auto both = wide ? nullptr : make_pair_on_gpu(k, v)) return both;
  return mix_levels(k->as_levels(), v->as_levels());
}

/// As rows are stored in a body that the selector keeps.
std::shared_ptr<const DeviceCodec> codec_under(const CohortPolicy& policy) {
  const Needs& needs = policy.selector.needs;
  // Rows that stay where they are may lie in any codec's groups.
  const bool stay = needs.all() || (needs.body == Needs::Body::kDrawn && needs.evicts == 0);
  std::shared_ptr<const DeviceCodec> codec = codec_of(policy);
  if (stay || (needs.body == Needs::Body::kHalved && !policy.keys.offers.before_rope)) return codec;
  // They may be selected again, or do not follow each other.
  const auto alone = codec->with_rows_alone(static_cast<int>(policy.site.head_dim));
  return alone ? alone : codec;
}

/// But for where zones lie.
LayerPlan rows_of(const CohortPolicy& policy, const HeadRange& heads) {
  const Needs& needs = policy.selector.needs;
  const bool coded = policy.asked().coded();
  LayerPlan plan;
  plan.dtype = policy.keys.exact;
  plan.seen = policy.slides;
  plan.rule = policy.selector.rule;
  plan.straight = needs.all() && !coded && plan.seen == 0;
  if (plan.straight) return plan;
  plan.schedule = policy.schedule;
  plan.before_rope = policy.keys.offers.before_rope;
  plan.shares = policy.keys.offers.shares || policy.values.offers.shares;
  // Positions inside the cache are the sink's business, which sliding layers have none of.
  plan.cache_positions = needs.cache_positions && policy.site.sliding_window == 0;
  if (needs.body == Needs::Body::kNone) return plan;
  if (!needs.all()) {
    const std::string& name = policy.rule.selector.name;
    const DeviceSelectorRow* device = find_device_selector(name);
    if (!device || !device->make) lacks_half(name);
    SelectorSite site = policy.site;
    site.first_head = static_cast<uint32_t>(heads.first);
    site.heads = static_cast<size_t>(heads.count);
    plan.selector = device->make({policy.options, policy.budget, site});
  }
  if (needs.all() && plan.seen > 0 && plan.schedule.window + 1 == plan.seen) {
    plan.rule = std::make_shared<DropAll>();  // hidden rows need not wait for others
    return plan;
  }
  if (!coded) return plan;
  plan.codec = codec_under(policy);
  const bool alone = !plan.codec->with_rows_alone(static_cast<int>(policy.site.head_dim));
  for (const SideChoice* side : {&policy.keys, &policy.values})
    plan.codec_name += fmt::format("{} as {} in {}, ", side->offers.codec, side->offers.code,
                                   to_string(side->body));
  plan.codec_name += alone ? "rows alone" : "in groups";
  return plan;
}

ZoneTable zones_of(const LayerPlan& plan) {
  const SelectorOnGpu& selector = plan.selector;
  const bool flows = !plan.straight && !selector.chooser && !selector.heavy;
  const bool settles = !selector.heavy && selector.chooser && selector.chooser->settles();
  const bool body = selector.body || (flows && plan.codec);
  const Place beside = body ? Place::kOwn : Place::kNowhere;  // of what leaves the run
  // Rows between the sink and the window, as the plan moves them.
  const Place rows = flows ? beside : plan.codec && !settles ? Place::kCodes : Place::kRun;
  ZoneTable zones;
  const auto put = [&](Zone zone, Place at) { zones.of[static_cast<size_t>(zone)] = at; };
  put(Zone::kSink, flows ? Place::kApart : Place::kRun);
  put(Zone::kProtected, Place::kApart);
  put(Zone::kBody, body                    ? Place::kOwn
                   : selector.shared       ? Place::kRagged
                   : plan.codec && settles ? Place::kSettling
                                           : rows);
  put(Zone::kHeavy, selector.heavy ? rows : Place::kNowhere);
  put(Zone::kWindow, Place::kRun);
  put(Zone::kLeaving, rows);
  put(Zone::kEvicted, selector.heavy ? (body ? Place::kOwn : rows) : Place::kNowhere);
  return zones;
}

}  // namespace

LayerPlan plan_layer(const CohortPolicy& policy, const HeadRange& heads) {
  LayerPlan plan = rows_of(policy, heads);
  plan.zones = zones_of(plan);
  return plan;
}

std::string to_string(const ZoneTable& zones) {
  const auto name = [&](Zone zone) {
    switch (zones.at(zone)) {
      case Place::kApart: return "apart";
      case Place::kRun: return "run";
      case Place::kCodes: return "codes";
      case Place::kSettling: return "run after codes";
      case Place::kOwn: return "own";
      case Place::kRagged: return "ragged";
      case Place::kNowhere: break;
    }
    return "-";
  };
  return fmt::format("sink {}, body {}, heavy {}, leaving {}, window {}", name(Zone::kSink),
                     name(Zone::kBody), name(Zone::kHeavy), name(Zone::kLeaving),
                     name(Zone::kWindow));
}

Plan plan_of(const LayerPlan& layer) { return {layer.rule, layer.schedule, size_t{1} << 30}; }

StoreSite body_site(const LayerPlan& plan, const LayerSite& site) {
  return {site.memory,
          site.stream,
          plan.dtype,
          site.heads,
          site.dim,
          site.context,
          static_cast<int64_t>(plan.schedule.sink),
          plan.codec,
          plan.seen > 0,
          plan.shares};
}

}  // namespace pith::cuda
