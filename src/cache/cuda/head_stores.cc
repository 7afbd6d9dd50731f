#include "cache/cuda/head_stores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cache/cuda/aged_store.h"
#include "kernels/cuda/grouped_layout.h"
#include "kernels/cuda/turn.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// Of rows that go elsewhere.
class NoChoice final : public DeviceChooser {
 public:
  void choose(const SelectSpace&, const JudgedRows&, const Step&, cudaStream_t) const override {}
};

std::shared_ptr<const DeviceChooser> chooser_of(const LayerPlan& layer) {
  if (layer.selector.chooser) return layer.selector.chooser;
  return std::make_shared<NoChoice>();
}

std::unique_ptr<CodedStore> codes_of(const LayerPlan& layer, const LayerSite& site) {
  if (layer.flows() || !layer.codec) return nullptr;
  return std::make_unique<CodedStore>(layer.codec, body_site(layer, site));
}

std::unique_ptr<BodyStore> body_of(const LayerPlan& layer, const LayerSite& site) {
  const StoreSite body = body_site(layer, site);
  if (layer.selector.body) return layer.selector.body(body);
  if (!layer.flows() || !layer.codec) return nullptr;
  if (layer.codec->aged()) return std::make_unique<AgedStore>(layer.codec, body);
  return std::make_unique<CodedStore>(layer.codec, body);
}

}  // namespace

HeadStores::HeadStores(const LayerPlan& layer, const LayerSite& site)
    : layer_(layer),
      site_(site),
      plan_(plan_of(layer)),
      chooser_(chooser_of(layer)),
      coded_(codes_of(layer, site)),
      body_(body_of(layer, site)),
      sink_(*site.memory, {site.heads, site.dim, 0}, site.stream),
      rows_(*site.memory, run_shape(), site.stream),
      turned_(*site.memory, MemoryKind::kScratch, {site.heads, 2 * site.dim}, site.stream),
      queries_(layer, site, chooser_),
      sides_(*site.memory,
             {site.heads, plan_.mass(1).queries > 0, chooser_->weighs_rows() || weighs_codes()},
             site.stream),
      protected_(*site.memory, {site.heads, site.dim, 0}, layer.dtype, site.stream),
      ragged_(layer.selector.shared ? std::make_unique<RaggedStore>(layer, site, sides_.has_mass())
                                    : nullptr) {
  if (flows()) sink_.make_room(layer.schedule.sink);
  if (layer.cache_positions) {
    if (!site.rope) {
      throw Error(ErrorCode::kUnsupported,
                  "positions inside the cache (rope=cache) need the model's RoPE; none is known "
                  "here");
    }
    turned_.renew(sink_.capacity());
  }
}

// Tables, and numbers that choosers keep of queries, are of these heads alone.
std::string HeadStores::form() const {
  const DeviceCodec* codec = layer_.codec.get();
  const bool tables = codec && (codec->shared_bytes() > 0 || codec->learns_from() > 0);
  if (tables || queries_.own() || ragged_ || layer_.cache_positions) return {};
  return fmt::format("{}{}{}", codec ? layer_.codec_name : "dense", packs() ? ", packed" : "",
                     sides_.has_mass() ? ", with mass" : "");
}

void HeadStores::make_sides(size_t capacity) {
  sides_.make_room(capacity, beside_rows());
  write_weights();
}

float HeadStores::log_weight(const RowRun::Weighted& rows) const {
  const double stands_for = static_cast<double>(rows.weight) / static_cast<double>(rows.of);
  return chooser_->weight_exponent() * static_cast<float>(std::log(stands_for));
}

void HeadStores::write_weights() const {
  if (!weighs_codes() || sides_.capacity() == 0) return;
  size_t first = 0;
  if (chooser_->weighs_rows()) {
    first = run_.judged;
  } else {
    for (const RowRun::Weighted& rows : run_.weighted) {
      sides_.weigh(first, rows.rows, log_weight(rows));
      first += rows.rows;
    }
  }
  sides_.weigh(first, sides_.capacity() - first, 0);
}

// Coders read whole blocks, of which the last may end behind the rows.
size_t HeadStores::run_needs(size_t rows) const { return rows + (packs() ? kBlockRows - 1 : 0); }

DenseStoreShape HeadStores::run_shape() const {
  if (!flows()) return {site_.heads, site_.dim, layer_.straight ? site_.context : 0};
  const size_t waiting = body_ ? body_->least() : 0;
  const size_t rows = layer_.schedule.window + layer_.schedule.block + waiting;
  return DenseStoreShape::window(site_.heads, site_.dim, rows, static_cast<bool>(body_));
}

void HeadStores::reserve(size_t rows) {
  rows_.reshape(run_shape());
  rows_.reserve_more(run_needs(rows));
  if (layer_.straight || flows()) return;
  const size_t needed = side_needs(rows);
  if (sides_.capacity() < needed) make_sides(std::max(needed, coded_rows() + rows_.capacity()));
}

// With a chunk's rows those of the sink are still in the run: there they are seen causally.
HeadStores::Parts HeadStores::parts(const NewRows& fresh, const RowTarget& run) const {
  if (!flows()) return parts_in_place(fresh, run);
  Parts parts;
  if (layer_.schedule.sink > 0) parts.add({seen_sink(), sink_.rows() + fresh.sink});
  parts.behind = parts.count;
  parts.add({run, rows_.rows() + fresh.run});
  return parts;
}

HeadStores::Parts HeadStores::parts_in_place(const NewRows& fresh, const RowTarget& run) const {
  const size_t all = rows_.rows() + fresh.sink + fresh.run;
  Parts parts;
  size_t first = 0;
  const auto add = [&](size_t rows, float log_weight = 0, bool apart = false) {
    parts.add({run + first, rows, log_weight, apart});
    first += rows;
  };
  if (!one_run()) add(sink() + fresh.sink);
  if (!packs() && chooser_->weighs_rows()) {
    add(run_.judged, 0, true);
  } else if (!packs()) {
    size_t gone = settled();
    for (const RowRun::Weighted& rows : run_.weighted) {
      add(rows.rows - gone, log_weight(rows));
      gone = 0;  // of one weight
    }
  }
  while (parts.count + 1 < dense_parts()) add(0);
  add(all - first);
  return parts;
}

MassTarget HeadStores::mass_target(size_t rows, bool fresh) const {
  if (!sides_.has_mass()) return {};
  MassTarget target;
  target.keys = rows_.keys();
  target.head_stride = rows_.head_stride();
  target.rows = static_cast<int32_t>(rows);
  sides_.add_mass(target, fresh ? 0 : beside_rows().with_mass);
  if (packed() == 0) return target;
  coded_->add_keys(target);
  target.coded_from = static_cast<int32_t>(layer_.schedule.sink);
  return target;
}

void HeadStores::end_prefill(ChunkSpace& space) {
  if (flows()) return hide();
  LateWork none;
  carry_out(plan_.end_prompt(), true, space, none);
  rows_.shrink();
  const size_t needed = coded_rows() + rows_.capacity();
  if (sides_.capacity() > needed) make_sides(needed);
}

void HeadStores::protect(const ProtectedRows& rows) {
  if (layer_.straight) return;  // all of them stay
  const ProtectedRows behind_sink = rows.from(static_cast<int64_t>(layer_.schedule.sink));
  protected_.protect(rows, layer_.schedule.sink);
  plan_.protect(behind_sink);
  if (body_) body_->protect(behind_sink.ranges());
}

void HeadStores::add_rows(HeadRows& out, size_t head) const {
  const auto add = [&](size_t first, size_t count) {
    for (size_t i = first; i < first + count; ++i) out.positions.push_back(static_cast<int64_t>(i));
    out.log_weights.resize(out.positions.size(), 0.0f);
  };
  add(0, sink());
  const bool counted = flows() && body_ && !body_->keeps_positions();
  if (counted) body_->add_rows(out, head, static_cast<int64_t>(sink()));
  const std::vector<int32_t> positions = sides_.positions_of(head);
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  const size_t left = unsettled() - known();
  add(open() - left, left);
  if (!flows()) add_weights(out);
  protected_.finish(out, sink() + sides_.named());  // ordinals until they are selected from
  if (body_ && !counted) body_->add_rows(out, head, 0);
  if (ragged_) ragged_->add_rows(out, head);
}

void HeadStores::add_weights(HeadRows& out) const {
  auto at = out.log_weights.begin();
  const auto set = [&](size_t rows, float log_weight, bool apart) {
    const std::vector<float> one(apart ? 0 : rows, log_weight);
    at = std::ranges::copy(apart ? sides_.log_weights(rows) : one, at).out;
  };
  const Parts parts = this->parts({}, rows_.begin());
  for (const DensePart& part : parts.all()) {
    if (coded_ && &part == &parts.part[parts.behind])
      set(coded_rows(), coded_log_weight(), weighs_codes());
    set(part.rows, part.log_weight, part.apart);
  }
}

void HeadStores::add_codes(std::vector<HeadCodes>& codes, size_t head) const {
  if (coded_rows() > 0) coded_->add_codes(codes, head, sink());
  const size_t run = sink_.rows() + coded_rows() + rows_.rows() + protected_.rows();
  const bool counted = flows() && body_ && !body_->keeps_positions();
  if (body_) body_->add_codes(codes, head, counted ? sink() : run);
  if (ragged_) ragged_->add_codes(codes, head, run);
}

void HeadStores::add_to(Ledger& ledger) const {
  RowSides::Held held = beside_rows();
  if (weighs_codes()) held.weighed = packed();
  sink_.add_to(ledger);
  rows_.add_to(ledger);
  queries_.add_to(ledger);
  sides_.add_to(ledger, held);
  protected_.add_to(ledger);
  if (ragged_) ragged_->add_to(ledger);
  if (coded_) coded_->add_to(ledger);
  if (body_) body_->add_to(ledger);
}

}  // namespace pith::cuda
