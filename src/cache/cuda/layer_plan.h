#pragma once
// Adjacent heads of one layer under one rule: the plan that a policy gives them, and the arguments
// of their rows.

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "kernels/cuda/device.h"
#include "methods/device_selector.h"
#include "plan/plan.h"
#include "plan/step.h"
#include "rows/cuda/body_store.h"
#include "rows/cuda/device_codec.h"

namespace pith::cuda {

/// Where the rows of a zone lie. A move between zones of one place moves a bound, one between two
/// places moves rows.
enum class Place : uint8_t {
  kNowhere,   ///< there are none, or they are dropped
  kApart,     ///< in a dense store of the zone's own
  kRun,       ///< dense, in the run
  kCodes,     ///< in codes, all that are selected from; the newest, fewer than 32, are in the run
  kSettling,  ///< in the run, but for the first, in codes once they are never selected from again
  kOwn,       ///< in a store that carries out the rule's steps, or takes what leaves the window
  kRagged,    ///< in a store whose heads have different numbers of rows
};

/// Which store each zone lies in, of heads under one rule.
struct ZoneTable {
  std::array<Place, kZones> of{};

  Place at(Zone zone) const { return of[static_cast<size_t>(zone)]; }
  /// Rows that leave the window stay nowhere beside it: they go into a body, or are dropped.
  bool flows() const { return at(Zone::kSink) == Place::kApart; }
  /// Rows that are selected from are in codes, or go there first.
  bool packs() const { return at(Zone::kLeaving) == Place::kCodes; }
  bool settles() const { return at(Zone::kBody) == Place::kSettling; }
};
/// "sink run, body codes, heavy -, leaving codes, window run".
std::string to_string(const ZoneTable& zones);

/// Their plan under the policy. Made by plan_layer.
struct LayerPlan {
  DType dtype = DType::kF16;  ///< of exact rows
  bool straight = true;       ///< every row stays, exact
  // Otherwise:
  size_t seen = 0;  ///< rows that a query sees, its own among them; 0: all
  ScheduleShape schedule;
  std::shared_ptr<const Rule> rule;  ///< when and how many: the CPU's
  bool cache_positions = false;      ///< the sink stands right before the window
  // Of the body:
  std::shared_ptr<const DeviceCodec> codec;  ///< of the rows that stay for good
  bool before_rope = false;                  ///< its keys are rotated when they are read
  /// The shared numbers of a group are found when it is coded: rows come in whole groups, and in no
  /// other number, also where each stands alone from then on.
  bool shares = false;
  std::string codec_name;  ///< of that codec and its form: equal names are equal codecs
  SelectorOnGpu selector;  ///< none: all rows do, or none
  ZoneTable zones;         ///< follows from the above
};

/// KV heads side by side.
struct HeadRange {
  int first = 0, count = 0;
};
/// For heads of a cohort that was resolved for the GPU.
LayerPlan plan_layer(const CohortPolicy& policy, const HeadRange& heads);

/// RoPE's radians a position of each pair of channels, on both sides.
struct RopeTable {
  RopeTable(MemoryCounter& memory, const std::vector<double>& radians, cudaStream_t stream)
      : host(radians), device(memory, MemoryKind::kScratch, radians.size(), stream) {
    device.upload(host.data(), host.size(), stream);
  }
  std::vector<double> host;    // [D/2]
  DeviceArray<double> device;  // [D/2]
};

/// The arguments of all layers' rows.
struct LayerSite {
  CountedBy memory;
  cudaStream_t stream = nullptr;
  size_t query_heads = 0, heads = 0, dim = 0;  // H, G, D
  size_t context = 0;                          ///< tokens expected; 0 = unknown
  const RopeTable* rope = nullptr;             ///< of the layer; null = not known
};

/// The arguments of a layer's bodies.
StoreSite body_site(const LayerPlan& plan, const LayerSite& site);

/// When the layer's rows move. Rows that leave a window together need no memory on the way.
Plan plan_of(const LayerPlan& layer);

}  // namespace pith::cuda
