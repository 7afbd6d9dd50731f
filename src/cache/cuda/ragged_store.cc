#include "cache/cuda/ragged_store.h"

#include <algorithm>

#include "kernels/cuda/fetched.h"
#include "rows/cuda/dense_store.h"

namespace pith::cuda {
namespace {

/// The first of all heads' rows, one head's behind the other's.
RowTarget first_of(const Slab& rows) { return {rows.at(0), rows.at(1), 0, 0}; }

}  // namespace

RaggedStore::RaggedStore(const LayerPlan& plan, const LayerSite& site, bool mass)
    : site_(site),
      body_(body_site(plan, site)),
      has_mass_(mass),
      places_(*site.memory, MemoryKind::kMetadata, {2 * kPlaces, sizeof(int32_t), true},
              site.stream),
      held_(std::make_unique<Lists>(site)),
      told_(site.heads) {
  body_.heads = 1;
  body_.context = 0;
  places_.renew(site.heads);
}

size_t RaggedStore::begin_of(size_t head) const {
  size_t begin = 0;
  for (size_t h = 0; h < head; ++h) begin += (counts()[h] + unit() - 1) / unit() * unit();
  return begin;
}

size_t RaggedStore::most() const { return *std::ranges::max_element(counts()); }

RowTarget RaggedStore::unpacked(DeviceBuffer& room, const CodedStore& codes, size_t heads,
                                DType dtype) const {
  const size_t blocks = (codes.rows() + kBlockRows - 1) / kBlockRows, rows = blocks * kBlockRows;
  room.allocate(4 * heads * rows * site_.dim, site_.stream);
  const RowTarget to = rows_in(room, rows, site_.dim);
  codes.blocks().calls().unpack(to, {0, blocks, dtype});
  return to;
}

DeviceSpan RaggedStore::span(size_t head) const {
  const size_t count = counts()[head];
  if (body_.codec) {
    if (held_->codes) return held_->codes->blocks().calls().span(0, begin_of(head), count);
    DeviceSpan none;
    none.coded = 1;
    return none;
  }
  DeviceSpan span = dense_span(first_of(held_->rows) + begin_of(head), 0, count, site_.dim);
  span.ready_rows = span.rows;
  return span;
}

void RaggedStore::attend_chunk(ChunkAttention& attention) const {
  if (rows_ == 0) return;
  DeviceBuffer room(*site_.memory, MemoryKind::kScratch);
  const RowTarget rows =
      held_->codes ? unpacked(room, *held_->codes, 1, body_.dtype) : first_of(held_->rows);
  CausalSpan span = causal_span(rows, most(), site_.dim);
  span.heads = heads_at(now_);
  attention.add(span);
  if (held_->codes) attention.flush();  // the room is scratch
}

MassTarget RaggedStore::mass_target(bool anew) const {
  MassTarget target;
  if (rows_ == 0) return target;
  const auto most = static_cast<int32_t>(this->most());
  if (held_->codes) {
    held_->codes->blocks().calls().add_keys(target, held_->codes->rows());
    target.coded = most;
  } else {
    target.keys = held_->rows.at();
    target.rows = most;
  }
  target.mass = held_->mass.at<float>();
  target.known = anew ? 0 : most;
  target.heads = heads_at(now_);
  return target;
}

void RaggedStore::add_chunk_mass(ChunkMass of, bool anew) const {
  if (rows_ == 0) return;
  MassTarget target = mass_target(anew);
  DeviceBuffer room(*site_.memory, MemoryKind::kScratch);
  if (held_->codes) {
    target.keys = unpacked(room, *held_->codes, 1, body_.dtype).k;
    target.rows = target.coded;
    target.codes = nullptr;
    target.coded = 0;
  }
  of.before = target.rows;
  cuda::add_chunk_mass(of, target, site_.stream);
}

CandidateRows RaggedStore::view() const {
  CandidateRows rows;
  rows.dtype = body_.dtype;
  rows.heads = static_cast<int>(site_.heads);
  rows.dim = static_cast<int>(site_.dim);
  const RowTarget first = first_of(held_->rows);
  rows.k = first.k;
  rows.v = first.v;
  rows.positions = held_->positions.at<int32_t>();
  rows.known = rows.rows = static_cast<int>(rows_);
  rows.mass = held_->mass.at<float>();
  rows.ragged = heads_at(now_);
  return rows;
}

void RaggedStore::place(int places, const int32_t* from, int more, size_t unit) const {
  place_heads({from, more, static_cast<int>(site_.heads), static_cast<int>(unit), rows_at(places),
               begins_at(places)},
              site_.stream);
}

std::unique_ptr<RaggedStore::Lists> RaggedStore::lists(size_t rows) const {
  auto lists = std::make_unique<Lists>(site_);
  const size_t places = most_places(rows);
  if (body_.codec) {
    lists->codes = std::make_unique<CodedStore>(body_.codec, body_);
    lists->codes->announce(places);
  } else {
    lists->rows.renew(rows);
  }
  lists->positions.renew(places);
  if (has_mass_) lists->mass.renew(places);
  return lists;
}

/// Of such lists.
size_t RaggedStore::bytes_of(size_t rows) const {
  const size_t places = most_places(rows);
  const size_t side = sizeof(int32_t) + (has_mass_ ? sizeof(float) : 0);
  if (!body_.codec) return rows * 4 * site_.dim + places * side;
  return codes_bytes(*body_.codec, body_, places) + places * side;
}

// Rows that stay are written to new memory, and codes are given back as rows.
StoreRoom RaggedStore::room(size_t stay, size_t fresh) const {
  const size_t held = rows_ > 0 ? bytes_of(rows_) : 0;
  const size_t most = std::max(rows_, stay * site_.heads);
  StoreRoom room = StoreRoom::growth(held, bytes_of(most));
  if (!body_.codec) return room;
  const size_t places = most_places(most);
  const size_t given_back = places + site_.heads * (fresh + kBlockRows);
  room.passing += given_back * 4 * site_.dim + 2 * places * sizeof(int32_t);
  return room;
}

void RaggedStore::select(const DeviceChooser& chooser, const Step& step, const Fresh& fresh,
                         ChunkSpace& space) {
  const size_t heads = site_.heads, mean = rows_ / heads + static_cast<size_t>(fresh.rows.rows);
  const int next = now_ == kOne ? kOther : kOne;
  SelectSpace scratch = space.select(mean, has_mass_ || fresh.rows.queries.state);
  scratch.stay = rows_at(next);
  place(kAll, rows_at(now_), fresh.rows.rows, 1);
  LineUpCall call{view(), fresh.rows};
  call.to = heads_at(kAll);
  CandidateRows all = fresh.rows;
  all.ragged = call.to;
  all.rows = static_cast<int>(rows_) + fresh.rows.rows;  // others may have had none
  DeviceBuffer held_room(*site_.memory, MemoryKind::kScratch),
      fresh_room(*site_.memory, MemoryKind::kScratch);
  if (chooser.reads_rows()) {
    if (body_.codec) {
      all.dtype = DType::kF16;
      const RowTarget rows = unpacked(fresh_room, *fresh.codes, heads, all.dtype);
      call.fresh.k = rows.k;
      call.fresh.v = rows.v;
      call.fresh.head_stride = rows.head_stride;
    }
    if (held_->codes) {
      const RowTarget rows = unpacked(held_room, *held_->codes, 1, all.dtype);
      call.held.k = rows.k;
      call.held.v = rows.v;
    }
    const RowTarget room = space.unpacked(mean);
    call.k = all.k = room.k;
    call.v = all.v = room.v;
  }
  if (has_mass_) call.mass = all.mass = scratch.logits;
  if (call.k || call.mass) line_up(call, site_.stream);
  chooser.choose(scratch, all, step, site_.stream);

  place(next, scratch.stay, 0, unit());
  std::unique_ptr<Lists> kept = lists(step.keep * heads);
  call.kept = scratch.kept;
  call.named = call.to;
  call.to = heads_at(next);
  const RowTarget to = body_.codec ? RowTarget{} : first_of(kept->rows);
  call.k = to.k;
  call.v = to.v;
  call.positions = kept->positions.at<int32_t>();
  call.mass = kept->mass.at<float>();
  call.mass_factor = chooser.mass_kept();
  line_up(call, site_.stream);
  if (body_.codec) keep_codes(call, *fresh.codes, *kept);
  held_ = std::move(kept);
  rows_ = step.keep * heads;
  now_ = next;
  told_.tell(rows_at(now_), site_.stream);
}

// From what was held, then from the fresh rows: to the codec each is one head's.
void RaggedStore::keep_codes(const LineUpCall& call, const CodedStore& fresh, Lists& kept) const {
  const size_t count = kept.codes->rows();
  DeviceArray<int32_t> names(*site_.memory, MemoryKind::kScratch, 2 * count, site_.stream);
  NameCall name{call.held.ragged, call.named, call.to, call.kept};
  name.heads = static_cast<int>(site_.heads);
  name.fresh_stride = static_cast<int>(fresh.blocks().all().stride * kBlockRows);
  name.count = static_cast<int>(count);
  name.stays = MoveCodesCall::kStays;
  name.zero = MoveCodesCall::kZero;
  name.held = names.data();
  name.fresh = names.data() + count;
  name_rows(name, site_.stream);
  MoveCodesCall move;
  move.to = kept.codes->blocks().all();
  move.heads = 1;
  move.head_dim = static_cast<int>(site_.dim);
  move.count = static_cast<int>(count);
  if (held_->codes) move.from = held_->codes->blocks().all();
  move.kept = name.held;
  body_.codec->move_rows(move, site_.stream);
  move.from = fresh.blocks().all();
  move.kept = name.fresh;
  body_.codec->move_rows(move, site_.stream);
}

void RaggedStore::add_rows(HeadRows& out, size_t head) const {
  const auto positions =
      fetched(held_->positions.at<const int32_t>(0, begin_of(head)), counts()[head], site_.stream);
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  out.log_weights.insert(out.log_weights.end(), positions.size(), 0.0f);
}

void RaggedStore::add_codes(std::vector<HeadCodes>& codes, size_t head, size_t first) const {
  if (!held_->codes) return;
  codes.push_back({held_->codes.get(), 0, first, counts()[head], begin_of(head)});
}

// Where heads begin follows from how many rows each has.
void RaggedStore::archive(Archive& a, size_t tokens, size_t least) {
  const size_t heads = site_.heads;
  std::vector<size_t> each = counts();
  size_t rows = 0;
  for (size_t& count : each) {
    a.number(count, tokens, "more rows than tokens");
    rows += count;
  }
  a.need(rows % heads == 0, "heads that share another number of rows than they have");
  const size_t fewest = *std::ranges::min_element(each);
  a.need(!a.loads() || rows == 0 || fewest >= least, "a head with fewer rows than it was left");
  if (a.loads()) {
    a.check_left(rows, sizeof(int32_t));
    told_.set(each);
    rows_ = rows;
    std::vector<int32_t> places(each.begin(), each.end());
    for (size_t g = 0; g < heads; ++g) places.push_back(static_cast<int32_t>(begin_of(g)));
    put(rows_at(now_), places, site_.stream);
    if (rows > 0) held_ = lists(rows);
  }
  if (rows == 0) return;
  if (held_->codes) {
    held_->codes->archive(a, most_places(rows));
    a.need(held_->codes->rows() == most_places(rows), "another number of codes than rows");
  } else {
    archive_finite(a, held_->rows.runs(rows), body_.dtype, site_.stream);
  }
  for (size_t g = 0; g < heads; ++g) {
    const size_t at = begin_of(g), bytes = each[g] * sizeof(int32_t);
    archive_numbers(a, {held_->positions.at(0, at), bytes}, 0, static_cast<int32_t>(tokens) - 1,
                    site_.stream);
    if (has_mass_) archive_finite(a, {held_->mass.at(0, at), bytes}, DType::kF32, site_.stream);
  }
}

// Bodies of codes also have room for whole blocks.
void RaggedStore::add_to(Ledger& ledger) const {
  const size_t side = rows_ * (sizeof(int32_t) + (has_mass_ ? sizeof(float) : 0));
  ledger.metadata += side + places_.allocated_bytes();
  ledger.slack += held_->positions.allocated_bytes() + held_->mass.allocated_bytes() - side;
  ledger.payload += held_->rows.allocated_bytes();
  ledger.rows_kept += rows_;
  if (!held_->codes) return;
  Ledger codes;
  held_->codes->add_to(codes);
  const GroupedBytes bytes = body_.codec->block_bytes(static_cast<int>(site_.dim));
  const size_t payload = rows_ * (bytes.key_codes + bytes.value_codes) / kBlockRows;
  const size_t sides = rows_ * (bytes.key_side + bytes.value_side) / kBlockRows;
  ledger.payload += payload;
  ledger.metadata += sides;
  ledger.slack += codes.payload + codes.metadata + codes.slack - payload - sides;
}

}  // namespace pith::cuda
