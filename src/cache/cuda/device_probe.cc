#include "cache/cuda/device_probe.h"

#include <algorithm>
#include <cmath>

#include "cache/cuda/head_state.h"
#include "pith/error.h"
#include "probe/probe_tiles.h"
#include "rows/cuda/coded_store.h"

namespace pith::cuda {
namespace {

constexpr size_t kPieceRows = ChunkSpace::kPieceRows;

size_t slots_of(const DeviceProbeSite& site, const ErrorProbeOptions& options) {
  const size_t most = ErrorProbe::kFirst + options.rows;
  return site.shape.context > 0 ? std::min(most, site.shape.context) : most;
}

std::byte* at(const void* base, size_t row, size_t dim) {
  return static_cast<std::byte*>(const_cast<void*>(base)) + row * dim * 2;
}

}  // namespace

/// Where a head's sampled rows are.
struct DeviceProbe::Held {
  std::vector<HeadCodes> codes;  // the coded spans
  std::vector<int32_t> span;     // [m] as ProbedHead's
  std::vector<size_t> row;       // [m] in its span, if that is coded
  std::vector<size_t> place;     // [m] among the rows taken out of the codes
};

/// The terms of the sum.
struct DeviceProbe::Plan {
  struct Piece {
    const CodedStore* codes = nullptr;
    size_t first_row = 0, rows = 0;
    size_t first_tile = 0, tiles = 0;
    size_t first_copy = 0, copies = 0;
  };
  std::vector<Held> heads;  // [G]
  std::vector<ProbeTile> tiles;
  std::vector<int32_t> spans;  // [tiles] the coded span that a tile is of, or kDense
  size_t dense_tiles = 0;      // come first
  std::vector<Piece> pieces;
  std::vector<RowCopy> copies;  // `to` is set when there is room
};

/// One layer's.
struct DeviceProbe::Comparison {
  Layer* layer;
  ProbeSample sample;  // as it is at the step
  Plan plan;
};

DeviceProbe::Layer::Layer(const DeviceProbeSite& site, const ErrorProbeSite& of,
                          const ErrorProbeOptions& options)
    : probe(*site.memory, of, options.every),
      k(*site.memory, MemoryKind::kProbe, {of.sample.kv_heads, 2 * of.dim}, site.stream),
      v(k.like()) {
  k.renew(slots_of(site, options));
  v.renew(slots());
}

DeviceProbe::DeviceProbe(const DeviceProbeSite& site, const ErrorProbeOptions& options, int threads)
    : site_(site), pool_(std::make_shared<ThreadPool>(threads)) {
  const CacheShape& s = site.shape;
  layers_.resize(static_cast<size_t>(s.layers));
  for (int l = site.first_layer; l < site.end_layer; ++l) {
    const auto i = static_cast<size_t>(l);
    if (!s.sliding_window.empty() && s.sliding_window[i] > 0) continue;
    const ErrorProbeSite of{{kv_heads(), l, site.seed, options.rows}, group(), dim()};
    layers_[i].emplace(site, of, options);
  }
}

DeviceProbe::~DeviceProbe() {
  if (running_.valid()) running_.wait();
}

DeviceProbe::DeviceProbe(const DeviceProbe& o) : site_(o.site_), pool_(o.pool_) {
  o.finish_comparing();
  for (const auto& layer : o.layers_) {
    layers_.emplace_back();
    if (layer) layers_.back().emplace(*layer);
  }
}

void DeviceProbe::begin_token() {
  comparing_ = false;
  for (auto& layer : layers_) {
    if (layer && layer->probe.due()) comparing_ |= layer->probe.ready();
  }
}

void DeviceProbe::add_copies(std::vector<RowCopy>& copies, const Layer& layer,
                             const RowTarget& from) const {
  for (const ProbeSample::Entry& entry : entries_) {
    const size_t row =
        entry.head * (from.head_stride / dim()) + static_cast<size_t>(from.row) + entry.token;
    copies.push_back({at(from.k, row, dim()), at(from.v, row, dim()),
                      layer.k.at(entry.head, entry.slot), layer.v.at(entry.head, entry.slot)});
  }
}

void DeviceProbe::append_token(std::span<const RowTarget> rows) {
  start_comparing();
  std::vector<RowCopy> copies;
  for (size_t i = 0; i < rows.size(); ++i) {
    auto& layer = layers_[static_cast<size_t>(site_.first_layer) + i];
    if (!layer) continue;
    layer->probe.sample().append(1, entries_);
    add_copies(copies, *layer, rows[i]);
  }
  copy_rows(copies, dim(), site_.stream);
}

void DeviceProbe::append_chunk(int layer, const RowTarget& rows, size_t tokens) {
  auto& of = layers_[static_cast<size_t>(layer)];
  if (!of) return;
  std::vector<RowCopy> copies;
  of->probe.sample().append(tokens, entries_);
  add_copies(copies, *of, rows);
  copy_rows(copies, dim(), site_.stream);
}

// Positions tell what is gone; where coded rows lie follows from their order.
DeviceProbe::Held DeviceProbe::find_held(const Layer& layer, const LayerRows& rows,
                                         size_t head) const {
  const auto sample = layer.probe.sample().rows(head);
  HeadRows told;
  const HeadRun& run = rows.run_of(head);
  add_rows(told, *run.stores, head - run.first);
  Held held;
  add_codes(held.codes, *run.stores, head - run.first);
  std::erase_if(held.codes, [](const HeadCodes& codes) { return codes.rows == 0; });
  held.span.assign(sample.size(), ProbedHead::kGone);
  held.row.resize(sample.size());
  held.place.resize(sample.size());
  const SampleFinder sampled(sample, layer.probe.sample().tokens());
  for (size_t row = 0; row < told.positions.size(); ++row) {
    const int32_t found = sampled.at(told.positions[row]);
    if (found == SampleFinder::kNone) continue;
    const auto i = static_cast<size_t>(found);
    held.span[i] = ProbedHead::kDense;
    for (size_t s = 0; s < held.codes.size(); ++s) {
      const HeadCodes& codes = held.codes[s];
      if (row < codes.first || row >= codes.first + codes.rows) continue;
      held.span[i] = static_cast<int32_t>(s);
      held.row[i] = codes.begin + row - codes.first;
    }
  }
  return held;
}

void DeviceProbe::add_dense_tiles(Plan& plan, size_t head,
                                  std::span<const DeviceSpan> spans) const {
  size_t coded = 0;
  for (const DeviceSpan& span : spans) {
    const auto rows = static_cast<size_t>(span.rows);
    if (span.coded != 0) coded += rows;
    for (size_t first = 0; span.coded == 0 && first < rows; first += ProbeTile::kMostRows) {
      const size_t count = std::min(ProbeTile::kMostRows, rows - first);
      plan.tiles.push_back({at(span.keys, first, dim()), at(span.values, first, dim()),
                            static_cast<int32_t>(count), static_cast<int32_t>(head)});
      plan.spans.push_back(ProbedHead::kDense);
    }
  }
  for (const HeadCodes& codes : plan.heads[head].codes) coded -= codes.rows;
  if (coded != 0) {
    throw Error(ErrorCode::kInternal, "error probe: a body that does not say which rows are codes");
  }
}

void DeviceProbe::add_coded_tiles(Plan& plan, const RowTarget& room) const {
  std::vector<const CodedStore*> bodies;
  size_t most = 0;
  for (const Held& held : plan.heads) {
    for (const HeadCodes& codes : held.codes) {
      if (std::ranges::find(bodies, codes.codes) == bodies.end()) bodies.push_back(codes.codes);
      most = std::max(most, codes.begin + codes.rows);
    }
  }
  const auto add = [&](Plan::Piece& piece, size_t g, size_t s) {
    Held& held = plan.heads[g];
    const HeadCodes& codes = held.codes[s];
    const size_t from = codes.head * (room.head_stride / dim());
    const size_t begin = std::max(piece.first_row, codes.begin);
    const size_t end = std::min(piece.first_row + kPieceRows, codes.begin + codes.rows);
    for (size_t row = begin; row < end; row += ProbeTile::kMostRows) {
      const size_t count = std::min(ProbeTile::kMostRows, end - row);
      const size_t place = from + row - piece.first_row;
      plan.tiles.push_back({at(room.k, place, dim()), at(room.v, place, dim()),
                            static_cast<int32_t>(count), static_cast<int32_t>(g)});
      plan.spans.push_back(static_cast<int32_t>(s));
    }
    if (end > begin) piece.rows = std::max(piece.rows, end - piece.first_row);
    for (size_t i = 0; i < held.span.size(); ++i) {
      if (held.span[i] != static_cast<int32_t>(s)) continue;
      if (held.row[i] < begin || held.row[i] >= end) continue;
      const size_t place = from + held.row[i] - piece.first_row;
      held.place[i] = plan.copies.size();
      plan.copies.push_back({at(room.k, place, dim()), at(room.v, place, dim())});
    }
  };
  for (const CodedStore* body : bodies) {
    for (size_t first = 0; first < most; first += kPieceRows) {
      Plan::Piece piece{body, first, 0, plan.tiles.size(), 0, plan.copies.size(), 0};
      for (size_t g = 0; g < plan.heads.size(); ++g) {
        for (size_t s = 0; s < plan.heads[g].codes.size(); ++s) {
          if (plan.heads[g].codes[s].codes == body) add(piece, g, s);
        }
      }
      piece.tiles = plan.tiles.size() - piece.first_tile;
      piece.copies = plan.copies.size() - piece.first_copy;
      if (piece.tiles > 0) plan.pieces.push_back(piece);
    }
  }
}

void DeviceProbe::run(Layer& layer, Plan& plan, const RowTarget& room,
                      const DeviceProbeStep& step) const {
  const auto stream = site_.stream;
  MemoryCounter& memory = *site_.memory;
  const size_t copied = plan.copies.size() * dim(), heads = kv_heads() * group();
  DeviceArray<ProbeTile> tiles(memory, MemoryKind::kScratch, plan.tiles.size(), stream);
  DeviceArray<float> sums(memory, MemoryKind::kScratch,
                          plan.tiles.size() * group() * TileSums::numbers(dim()), stream);
  DeviceArray<uint16_t> coded_k(memory, MemoryKind::kScratch, copied, stream);
  DeviceArray<uint16_t> coded_v(memory, MemoryKind::kScratch, copied, stream);
  tiles.upload(plan.tiles.data(), plan.tiles.size(), stream);
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    plan.copies[i].to_k = at(coded_k.data(), i, dim());
    plan.copies[i].to_v = at(coded_v.data(), i, dim());
  }
  const auto sum = [&](size_t first, size_t count, DType dtype) {
    ProbeSumsCall call{dtype, site_.dtype, step.q, tiles.data() + first, static_cast<int>(count)};
    call.group = static_cast<int>(group());
    call.dim = static_cast<int>(dim());
    call.out = sums.data() + first * group() * TileSums::numbers(dim());
    sum_probe_tiles(call, stream);
  };
  sum(0, plan.dense_tiles, site_.dtype);
  for (const Plan::Piece& piece : plan.pieces) {
    // f16 keeps more of a code times its scale than bf16.
    piece.codes->blocks().calls().unpack(
        room,
        {piece.first_row / kBlockRows, (piece.rows + kBlockRows - 1) / kBlockRows, DType::kF16});
    sum(piece.first_tile, piece.tiles, DType::kF16);
    copy_rows(std::span(plan.copies).subspan(piece.first_copy, piece.copies), dim(), stream);
  }
  const auto fetch = [&]<class T>(PinnedArray<T>& to, const void* from, size_t n) {
    if (to.size() < n) to = PinnedArray<T>(n + n / 8);
    if (n == 0) return;
    check(cudaMemcpyAsync(to.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost, stream),
          "the error probe");
  };
  Found& found = layer.found;
  fetch(found.sums, sums.data(), sums.size());
  fetch(found.policy, step.out, heads * dim());
  fetch(found.q, step.q, heads * dim());
  fetch(found.k, layer.k.at(), layer.k.allocated_bytes() / 2);
  fetch(found.v, layer.v.at(), layer.v.allocated_bytes() / 2);
  fetch(found.coded_k, coded_k.data(), copied);
  fetch(found.coded_v, coded_v.data(), copied);
}

std::unique_ptr<CodedSpans> DeviceProbe::merge(const Layer& layer, size_t head, const Plan& plan,
                                               ProbedHead& out) const {
  HeadTiles tiles(group(), dim());
  for (size_t t = 0; t < plan.tiles.size(); ++t) {
    if (plan.tiles[t].head != static_cast<int32_t>(head)) continue;
    tiles.add(layer.found.sums.data() + t * group() * TileSums::numbers(dim()), plan.spans[t]);
  }
  tiles.answer(out);
  std::vector<size_t> rows;
  for (const HeadCodes& codes : plan.heads[head].codes) rows.push_back(codes.rows);
  return tiles.coded(std::move(rows));
}

void DeviceProbe::describe_sample(const Layer& layer, size_t head, const Plan& plan,
                                  ProbedHead& out) const {
  const Found& found = layer.found;
  const Kernels& kernels = kernels_for();
  const Held& held = plan.heads[head];
  const size_t m = held.span.size(), queries = group() * dim(), first = head * queries;
  out.policy = {found.policy.data() + first, queries};
  out.span = held.span;
  std::vector<float> q(queries), keys(m * dim());
  kernels.to_f32(q.data(), found.q.data() + first, site_.dtype, queries);
  const uint16_t* k = found.k.data() + head * layer.slots() * dim();
  const uint16_t* v = found.v.data() + head * layer.slots() * dim();
  out.values.resize(m * dim());
  out.back.resize(m * dim());
  kernels.to_f32(out.values.data(), v, site_.dtype, m * dim());
  for (size_t i = 0; i < m; ++i) {
    if (held.span[i] < 0) continue;
    const size_t from = held.place[i] * dim();
    kernels.to_f32(keys.data() + i * dim(), found.coded_k.data() + from, DType::kF16, dim());
    kernels.to_f32(out.back.data() + i * dim(), found.coded_v.data() + from, DType::kF16, dim());
  }
  const float scale = 1 / std::sqrt(static_cast<float>(dim()));
  out.own.resize(group() * m);
  out.stored.resize(group() * m);
  kernels.dot_rows(out.own.data(), m, q.data(), group(), {k, site_.dtype, dim()}, m, scale);
  kernels.dot_rows(out.stored.data(), m, q.data(), group(), {keys.data(), DType::kF32, dim()}, m,
                   scale);
}

void DeviceProbe::compare(int l, const DeviceProbeStep& step) {
  auto& layer = layers_[static_cast<size_t>(l)];
  if (!comparing_ || !layer) return;
  finish_comparing();
  Plan plan;
  plan.heads.resize(kv_heads());
  pool_->parallel_for(kv_heads(),
                      [&](size_t g, int) { plan.heads[g] = find_held(*layer, step.rows, g); });
  bool any_codes = false;
  for (size_t g = 0; g < kv_heads(); ++g) {
    add_dense_tiles(plan, g, step.rows.forms().spans_of(step.spans, g));
    any_codes |= !plan.heads[g].codes.empty();
  }
  plan.dense_tiles = plan.tiles.size();
  const RowTarget room = any_codes ? step.piece() : RowTarget{};
  add_coded_tiles(plan, room);
  run(*layer, plan, room, step);
  comparisons_.push_back({&*layer, layer->probe.sample(), std::move(plan)});
}

void DeviceProbe::start_comparing() {
  if (comparisons_.empty()) return;
  found_.set(site_.stream);
  running_ = std::async(std::launch::async, [this, all = std::move(comparisons_)]() mutable {
    found_.wait();
    const Context context{*pool_, *site_.memory, kernels_for()};
    for (const Comparison& c : all) {
      c.layer->probe.measure(context, c.sample, [&](size_t g, ProbedHead& head) {
        describe_sample(*c.layer, g, c.plan, head);
        return merge(*c.layer, g, c.plan, head);
      });
    }
    all.clear();
  });
  comparisons_.clear();
}

void DeviceProbe::finish_comparing() const {
  if (running_.valid()) running_.get();
}

void DeviceProbe::archive(int l, Archive& a, size_t tokens) {
  auto& layer = layers_[static_cast<size_t>(l)];
  if (!layer) return;
  finish_comparing();
  layer->probe.archive(a, tokens);
  const size_t slots = layer->probe.sample().rows(0).size();
  for (const Slab* side : {&layer->k, &layer->v})
    archive_finite(a, side->runs(slots), site_.dtype, site_.stream);
}

std::vector<AttentionError> DeviceProbe::errors() const {
  finish_comparing();
  std::vector<AttentionError> errors;
  for (const auto& layer : layers_) {
    if (layer) errors.push_back(layer->probe.result());
  }
  return errors;
}

}  // namespace pith::cuda
