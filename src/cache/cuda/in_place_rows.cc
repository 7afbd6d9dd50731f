#include "cache/cuda/in_place_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/grouped_layout.h"

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

}  // namespace

InPlaceRows::InPlaceRows(const LayerPlan& layer, const LayerSite& site)
    : layer_(layer),
      site_(site),
      plan_(plan_of(layer)),
      wants_mass_(plan_.mass(1).queries > 0),
      chooser_(chooser_of(layer)),
      coded_(layer.codec ? std::make_unique<CodedBody>(layer.codec, body_site(layer, site))
                         : nullptr),
      body_(layer.selector.body ? layer.selector.body->make(body_site(layer, site)) : nullptr),
      rows_(*site.memory, {site.heads, site.dim, layer.straight ? site.context : 0}, site.stream),
      positions_(*site.memory, MemoryKind::kMetadata),
      mass_(*site.memory, MemoryKind::kMetadata),
      weights_(*site.memory, MemoryKind::kMetadata),
      state_(*site.memory, MemoryKind::kMetadata,
             chooser_->state_numbers(site.query_heads, site.dim), site.stream),
      scaled_(*site.memory, MemoryKind::kScratch),
      protected_(*site.memory, {site.heads, site.dim, 0}, layer.dtype, site.stream),
      ragged_(layer.selector.shared ? std::make_unique<RaggedRows>(layer, site, wants_mass_)
                                    : nullptr) {
  make_scaled();
  if (state_.size() == 0) return;
  check(cudaMemsetAsync(state_.data(), 0, state_.size() * sizeof(float), site.stream),
        "statistics of queries");
}

InPlaceRows::InPlaceRows(const InPlaceRows& o)
    : layer_(o.layer_),
      site_(o.site_),
      plan_(o.plan_),
      run_(o.run_),
      late_(o.late_),
      wants_mass_(o.wants_mass_),
      chooser_(o.chooser_),
      coded_(o.coded_ ? std::make_unique<CodedBody>(*o.coded_) : nullptr),
      body_(o.body_ ? o.body_->clone() : nullptr),
      rows_(o.rows_),
      positions_(*site_.memory, MemoryKind::kMetadata),
      mass_(*site_.memory, MemoryKind::kMetadata),
      weights_(*site_.memory, MemoryKind::kMetadata),
      state_(*site_.memory, MemoryKind::kMetadata, o.state_.size(), o.site_.stream),
      scaled_(*site_.memory, MemoryKind::kScratch),
      protected_(o.protected_),
      ragged_(o.ragged_ ? std::make_unique<RaggedRows>(*o.ragged_) : nullptr),
      known_(o.known_) {
  make_scaled();
  if (o.stride_ > 0) make_side(o.stride_, o);
  if (state_.size() == 0) return;
  check(cudaMemcpyAsync(state_.data(), o.state_.data(), state_.size() * sizeof(float),
                        cudaMemcpyDeviceToDevice, site_.stream),
        "a copy of the cache");
}

void InPlaceRows::make_scaled() {
  if (chooser_->scales_queries()) scaled_.allocate(2 * site_.query_heads * site_.dim, site_.stream);
}

void InPlaceRows::make_side(size_t stride, const InPlaceRows& from) {
  const auto grow = [&](auto& to, const auto& old, size_t heads, size_t count) {
    using T = std::remove_reference_t<decltype(*to.data())>;
    DeviceArray<T> fresh(*site_.memory, MemoryKind::kMetadata, heads * stride, site_.stream);
    if (count > 0 && from.stride_ > 0) {
      check(
          cudaMemcpy2DAsync(fresh.data(), stride * sizeof(T), old.data(), from.stride_ * sizeof(T),
                            count * sizeof(T), heads, cudaMemcpyDeviceToDevice, site_.stream),
          "the growth of the cache");
    }
    to = std::move(fresh);
  };
  grow(positions_, from.positions_, site_.heads, from.settled() + from.known_);
  if (wants_mass()) {
    grow(mass_, from.mass_, site_.heads, from.rows_.rows() + from.packed());
  }
  if (chooser_->weighs_rows() || weighs_codes()) {
    grow(weights_, from.weights_, 1, chooser_->weighs_rows() ? from.run_.judged : 0);
  }
  stride_ = stride;
  write_weights();
}

float InPlaceRows::log_weight(const RowRun::Weighted& rows) const {
  const double stands_for = static_cast<double>(rows.weight) / static_cast<double>(rows.of);
  return chooser_->weight_exponent() * static_cast<float>(std::log(stands_for));
}

void InPlaceRows::write_weights() const {
  if (!weighs_codes() || stride_ == 0) return;
  size_t first = 0;
  if (chooser_->weighs_rows()) {
    first = run_.judged;
  } else {
    for (const RowRun::Weighted& rows : run_.weighted) {
      fill_numbers(weights_.data() + first, rows.rows, log_weight(rows), site_.stream);
      first += rows.rows;
    }
  }
  fill_numbers(weights_.data() + first, stride_ - first, 0, site_.stream);
}

// Coders read whole blocks, of which the last may end behind the rows.
size_t InPlaceRows::run_needs(size_t rows) const { return rows + (packs() ? kBlockRows - 1 : 0); }

void InPlaceRows::reserve(size_t rows) {
  rows_.reserve_more(run_needs(rows));
  if (layer_.straight) return;
  const size_t needed = side_needs(rows);
  if (stride_ < needed) make_side(std::max(needed, coded_rows() + rows_.capacity()), *this);
}

InPlaceRows::Parts InPlaceRows::parts(size_t fresh, size_t to_sink) const {
  const size_t all = rows_.rows() + fresh;
  Parts parts;
  parts.part[0].rows = all;
  if (one_run()) return parts;
  parts.count = dense_parts();
  parts.part[0].rows = sink() + to_sink;
  if (!packs() && chooser_->weighs_rows()) {
    parts.part[1] = {run_.judged, 0, true};
  } else if (!packs()) {
    size_t gone = settled();
    WeightedPart* part = &parts.part[1];
    for (const RowRun::Weighted& rows : run_.weighted) {
      *part++ = {rows.rows - gone, log_weight(rows)};
      gone = 0;  // of one weight
    }
  }
  size_t rest = all;
  for (const WeightedPart& part : parts.all().first(parts.count - 1)) rest -= part.rows;
  parts.part[parts.count - 1].rows = rest;
  return parts;
}

MassTarget InPlaceRows::mass_target(size_t rows, bool fresh) const {
  if (!wants_mass()) return {};
  MassTarget target;
  target.keys = rows_.keys();
  target.mass = mass_.data();
  target.head_stride = rows_.head_stride();
  target.stride = stride_;
  target.rows = static_cast<int32_t>(rows);
  target.known = fresh ? 0 : static_cast<int32_t>(rows_.rows() + packed());
  if (packed() == 0) return target;
  coded_->add_keys(target);
  target.coded_from = static_cast<int32_t>(layer_.schedule.sink);
  return target;
}

void InPlaceRows::end_prefill(ChunkSpace& space) {
  LateWork none;
  carry_out(plan_.end_prompt(), true, space, none);
  rows_.shrink();
  const size_t needed = coded_rows() + rows_.capacity();
  if (stride_ > needed) make_side(needed, *this);
}

void InPlaceRows::protect(const ProtectedRows& rows) {
  if (layer_.straight) return;  // all of them stay
  protected_.protect(rows, layer_.schedule.sink);
  plan_.protect(rows.from(static_cast<int64_t>(layer_.schedule.sink)));
}

void InPlaceRows::add_rows(HeadRows& out, size_t head) const {
  const size_t sink = this->sink(), known = settled() + known_;
  for (size_t i = 0; i < sink; ++i) out.positions.push_back(static_cast<int64_t>(i));
  std::vector<int32_t> positions(known);
  if (known > 0) {
    check(cudaMemcpyAsync(positions.data(), positions_.data() + head * stride_,
                          known * sizeof(int32_t), cudaMemcpyDeviceToHost, site_.stream),
          "rows held");
    check(cudaStreamSynchronize(site_.stream), "rows held");
  }
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  for (size_t left = unsettled() - known_; left > 0; --left) {
    out.positions.push_back(static_cast<int64_t>(open() - left));
  }
  const Parts parts = this->parts(0, 0);
  const auto add_weights = [&](const WeightedPart& part) {
    const size_t first = out.log_weights.size();
    out.log_weights.resize(first + part.rows, part.log_weight);
    if (!part.apart || part.rows == 0) return;
    weights_.download(out.log_weights.data() + first, part.rows, site_.stream);
    check(cudaStreamSynchronize(site_.stream), "rows held");
  };
  for (const WeightedPart& part : parts.all()) {
    if (coded_ && &part == &parts.part[1]) {
      add_weights({coded_rows(), coded_log_weight(), weighs_codes()});
    }
    add_weights(part);
  }
  protected_.finish(out, sink + known);  // ordinals until they are judged
  if (body_) body_->add_rows(out, head, 0);
  if (ragged_) ragged_->add_rows(out, head);
}

void InPlaceRows::add_codes(std::vector<HeadCodes>& codes, size_t head) const {
  if (coded_rows() > 0) coded_->add_codes(codes, head, sink());
  const size_t run = coded_rows() + rows_.rows() + protected_.rows();
  if (body_) body_->add_codes(codes, head, run);
  if (ragged_) ragged_->add_codes(codes, head, run);
}

void InPlaceRows::add_to(Ledger& ledger) const {
  const size_t weighed = weighs_codes() ? packed() : chooser_->weighs_rows() ? run_.judged : 0;
  const size_t side =
      site_.heads * ((settled() + known_) * sizeof(int32_t) +
                     (wants_mass() ? (rows_.rows() + packed()) * sizeof(float) : 0)) +
      weighed * sizeof(float);
  rows_.add_to(ledger);
  ledger.metadata += side + state_.size() * sizeof(float);
  ledger.slack +=
      positions_.size() * sizeof(int32_t) + (mass_.size() + weights_.size()) * sizeof(float) - side;
  protected_.add_to(ledger);
  if (ragged_) ragged_->add_to(ledger);
  if (coded_) coded_->add_to(ledger);
  if (body_) body_->add_to(ledger);
}

}  // namespace pith::cuda
