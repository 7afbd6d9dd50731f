#include "cache/cuda/head_stores.h"

#include <algorithm>
#include <cmath>

#include "cache/cuda/aged_store.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// Of rows that go elsewhere.
class NoChoice final : public DeviceChooser {
 public:
  void choose(const SelectSpace&, const CandidateRows&, const Step&, cudaStream_t) const override {}
};

std::shared_ptr<const DeviceChooser> chooser_of(const LayerPlan& layer) {
  if (layer.selector.chooser) return layer.selector.chooser;
  return std::make_shared<NoChoice>();
}

std::unique_ptr<CodedStore> codes_of(const LayerPlan& layer, const LayerSite& site) {
  if (!layer.zones.packs() && !layer.zones.settles()) return nullptr;
  return std::make_unique<CodedStore>(layer.codec, body_site(layer, site));
}

std::unique_ptr<BodyStore> body_of(const LayerPlan& layer, const LayerSite& site) {
  if (layer.zones.at(Zone::kBody) != Place::kOwn) return nullptr;
  const StoreSite body = body_site(layer, site);
  if (layer.selector.body) return layer.selector.body(body);
  if (layer.codec->aged()) return std::make_unique<AgedStore>(layer.codec, body);
  return std::make_unique<CodedStore>(layer.codec, body);
}

std::unique_ptr<RaggedStore> ragged_of(const LayerPlan& layer, const LayerSite& site, bool mass) {
  if (layer.zones.at(Zone::kBody) != Place::kRagged) return nullptr;
  return std::make_unique<RaggedStore>(layer, site, mass);
}

}  // namespace

HeadStores::HeadStores(const LayerPlan& of_heads, const LayerSite& at)
    : layer(of_heads),
      site(at),
      plan(plan_of(layer)),
      chooser(chooser_of(layer)),
      codes(codes_of(layer, site)),
      body(body_of(layer, site)),
      sink(*site.memory, {site.heads, site.dim, 0}, site.stream),
      rows(*site.memory, run_shape(), site.stream),
      turned(*site.memory, MemoryKind::kScratch, {site.heads, 2 * site.dim}, site.stream),
      queries(layer, site, chooser),
      sides(*site.memory,
            {site.heads, plan.mass(1).queries > 0, chooser->weighs_rows() || weighs_codes()},
            site.stream),
      protected_rows(*site.memory, {site.heads, site.dim, 0}, layer.dtype, site.stream),
      ragged(ragged_of(layer, site, sides.has_mass())) {
  if (zones().flows()) sink.make_room(layer.schedule.sink);
  if (!layer.cache_positions) return;
  if (!site.rope) {
    throw Error(ErrorCode::kUnsupported,
                "positions inside the cache (rope=cache) need the model's RoPE; none is known "
                "here");
  }
  turned.renew(sink.capacity());
}

float HeadStores::log_weight(const RowRun::Weighted& of) const {
  const double stands_for = static_cast<double>(of.weight) / static_cast<double>(of.of);
  return chooser->weight_exponent() * static_cast<float>(std::log(stands_for));
}

void HeadStores::write_weights() const {
  if (!weighs_codes() || sides.capacity() == 0) return;
  size_t first = 0;
  if (chooser->weighs_rows()) {
    first = run.selected;
  } else {
    for (const RowRun::Weighted& of : run.weighted) {
      sides.weigh(first, of.rows, log_weight(of));
      first += of.rows;
    }
  }
  sides.weigh(first, sides.capacity() - first, 0);
}

// Coders read whole blocks, of which the last may end behind the rows.
size_t HeadStores::run_needs(size_t count) const { return device_run_rows(count, zones().packs()); }

DenseStoreShape HeadStores::run_shape() const {
  if (!zones().flows()) return {site.heads, site.dim, layer.straight ? site.context : 0};
  const size_t waiting = body ? body->least() : 0;
  const size_t most = device_window_rows(layer.schedule, waiting);
  return DenseStoreShape::window(site.heads, site.dim, most, static_cast<bool>(body));
}

void HeadStores::reserve(size_t count) {
  rows.reshape(run_shape());
  rows.reserve_more(run_needs(count));
  if (layer.straight || zones().flows()) return;
  const size_t needed = side_needs(count);
  if (sides.capacity() < needed) make_sides(std::max(needed, coded() + rows.capacity()));
}

bool HeadStores::has_room() const {
  if (!rows.has_shape(run_shape()) || !rows.has_room(run_needs(1))) return false;
  return layer.straight || zones().flows() || side_needs(1) <= sides.capacity();
}

void HeadStores::shrink() {
  if (zones().flows()) return;
  rows.shrink();
  const size_t needed = coded() + rows.capacity();
  if (sides.capacity() > needed) make_sides(needed);
}

void HeadStores::make_sides(size_t capacity) {
  sides.make_room(capacity, beside_rows());
  write_weights();
}

void HeadStores::protect(const ProtectedRows& all) {
  if (layer.straight) return;  // all of them stay
  const ProtectedRows behind_sink = all.from(static_cast<int64_t>(layer.schedule.sink));
  protected_rows.protect(all, layer.schedule.sink);
  plan.protect(behind_sink);
  if (body) body->protect(behind_sink.ranges());
}

void HeadStores::hide() {
  if (body && layer.seen > 0 && open() >= layer.seen) body->hide_first(open() + 1 - layer.seen);
}

}  // namespace pith::cuda
