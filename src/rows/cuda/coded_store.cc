#include "rows/cuda/coded_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace pith::cuda {

namespace {

constexpr size_t kPieceRows = 8192;  // unpacked at a time
constexpr size_t kHiddenRows = 256;  // given back at a time

/// Weights of the rows of a block of which the first h are hidden begin at `rows` - h.
std::shared_ptr<const DeviceArray<float>> make_veil(const StoreSite& site, size_t rows) {
  std::vector<float> weights(2 * rows);
  std::fill_n(weights.begin(), rows, -std::numeric_limits<float>::infinity());
  auto veil = std::make_shared<DeviceArray<float>>(site.memory->root(), MemoryKind::kScratch,
                                                   weights.size(), site.stream);
  veil->upload(weights.data(), weights.size(), site.stream);
  return veil;
}

/// Blocks are saved whole, the last one with places of rows that are not there: what others left on
/// the card must not get into a file.
std::array<Slab, 4> parts_of(const DeviceCodec& codec, const StoreSite& site, bool saved) {
  const auto part = [&](MemoryKind kind, size_t bytes) {
    return Slab(*site.memory, kind, {site.heads, bytes, saved}, site.stream);
  };
  const GroupedBytes bytes = codec.block_bytes(static_cast<int>(site.dim));
  return {part(MemoryKind::kPayload, bytes.key_codes), part(MemoryKind::kMetadata, bytes.key_side),
          part(MemoryKind::kPayload, bytes.value_codes),
          part(MemoryKind::kMetadata, bytes.value_side)};
}

}  // namespace

size_t codes_bytes(const DeviceCodec& codec, const StoreSite& site, size_t rows) {
  const GroupedBytes block = codec.block_bytes(static_cast<int>(site.dim));
  const size_t blocks = DeviceGrowth{1, kDeviceBlocks}.most_for((rows + 31) / 32);
  return site.heads * blocks *
         (block.key_codes + block.key_side + block.value_codes + block.value_side);
}

CodedStore::CodedStore(const Beside& use, const CodedStore& owner)
    : CodedStore(owner.codec_, owner.site_, use.stays) {
  learned_ = owner.learned_;
  owners_ = &owner.records_;
}

CodedStore::CodedStore(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site, bool saved)
    : codec_(std::move(codec)),
      site_(site),
      parts_(parts_of(*codec_, site, saved)),
      records_(*codec_, site),
      waiting_(*site.memory, MemoryKind::kPayload) {
  if (site.slides) veil_ = make_veil(site, codec_->block_rows());
}

CodedStore::CodedStore(const CodedStore& other)
    : codec_(other.codec_->learns_from() > 0 && !other.learned_
                 ? other.codec_->copy(other.site_.stream)
                 : other.codec_),
      site_(other.site_),
      parts_(parts_of(*codec_, site_, true)),
      rows_(other.rows_),
      gone_(other.gone_),
      hidden_(other.hidden_),
      learned_(other.learned_),
      follows_(other.follows_),
      records_(other.records_),
      waiting_(*site_.memory, MemoryKind::kPayload),
      veil_(other.veil_) {
  if (other.capacity() > 0) move_to(other.capacity(), other);
  copy_buffer(waiting_, other.waiting_, site_.stream);
}

std::string CodedStore::kind() const {
  return fmt::format("{} of {} heads", codec_->name(), site_.heads);
}

void CodedStore::learn(const RowTarget& rows, DType dtype, const RowPositions& positions) {
  const size_t skipped = static_cast<size_t>(rows.row) * site_.dim * 2;
  const RowTarget first{static_cast<std::byte*>(rows.k) + skipped,
                        static_cast<std::byte*>(rows.v) + skipped, rows.head_stride, 0};
  codec_->learn(first, dtype, positions, site_.stream);
  learned_ = true;
}

void CodedStore::announce(size_t rows) {
  rows_ += rows;
  if (!waits()) reserve();
}

void CodedStore::reserve() {
  const size_t needed = (rows_ + 31) / 32;
  if (needed > capacity()) move_to(growth().from(capacity(), needed), *this);
  blocks_ = needed;
}

// Rows that stay may go to new memory (keep), and new ones are coded apart (append).
StoreRoom CodedStore::room(const ComingRows& coming) const {
  const size_t rows = coming.held_with(rows_), blocks = (rows + 31) / 32;
  const size_t most = blocks <= capacity() ? capacity() : growth().most_for(blocks);
  StoreRoom room;
  size_t all = codes_bytes(*codec_, site_, std::min(coming.at_once, coming.rows));
  for (const Slab& part : parts_) {
    room += StoreRoom::growth(part, most);
    all += part.bytes_of(most);
  }
  const size_t fresh = coming.rows / codec_->block_rows();
  room += records_.room(fresh, {rows, coming.at_once});
  room.passing = std::max(room.passing, all);
  if (!learned_ && codec_->learns_from() > 0) room.more += waiting_bytes() - waiting_.size();
  return room;
}

void CodedStore::move_to(size_t capacity, const CodedStore& from, size_t first) {
  blocks_ = from.blocks_ - first;
  for (size_t i = 0; i < kParts; ++i) parts_[i].renew(capacity, from.parts_[i], {first, blocks_});
}

void CodedStore::take(std::span<const BodyMove> moves) const {
  if (codec_->learns_from() > 0) {
    for (const BodyMove& move : moves) static_cast<CodedStore&>(*move.body).take_early(move);
    return;
  }
  std::vector<CodeJob> keys, values;
  for (const BodyMove& move : moves) {
    const auto& body = static_cast<const CodedStore&>(*move.body);
    const BlockRun blocks = body.run(body.blocks_ - move.rows / 32, move.rows / 32);
    keys.push_back(body.job(move.from, kKeyCodes, blocks));
    values.push_back(body.job(move.from, kValueCodes, blocks));
  }
  const CodeBatch batch{site_.dtype, static_cast<int>(site_.heads),
                        static_cast<int>(moves.front().rows), static_cast<int>(site_.dim)};
  codec_->code(batch, keys, values, site_.stream);
}

CodeJob CodedStore::job(const RowTarget& from, Part codes, const BlockRun& blocks) const {
  const auto offset = static_cast<size_t>(from.row) * site_.dim * 2;
  const void* rows = codes == kKeyCodes ? from.k : from.v;
  return {static_cast<const std::byte*>(rows) + offset,
          from.head_stride,
          at(codes, 0, blocks.first),
          at(codes == kKeyCodes ? kKeySide : kValueSide, 0, blocks.first),
          capacity(),
          blocks.positions,
          records().data(),
          records().stride(),
          static_cast<int>(records().used())};
}

MoveCodesCall CodedStore::moves_to(const CodedStore& to, size_t count) const {
  MoveCodesCall call{all_blocks(), to.all_blocks()};
  call.heads = static_cast<int>(site_.heads);
  call.head_dim = static_cast<int>(site_.dim);
  call.count = static_cast<int>(count);
  return call;
}

// Codes of other rows in the last block are not touched: rows that begin within a block, or leave
// one unfinished, are coded apart and moved there.
void CodedStore::append(const NewRows& rows, std::vector<CodeWork>* later) {
  if (least_appended() > 0) learn(rows.from, rows.dtype, rows.positions);
  const size_t first = rows_, fresh = rows.rows / codec_->block_rows();
  records_.reserve(fresh, *codec_, all_blocks(), first);
  announce(rows.rows);
  const bool whole = first % 32 == 0 && rows.rows % 32 == 0;
  const BlockRun blocks{whole ? first / 32 : 0, (rows.rows + 31) / 32, rows.positions};
  if (later && !rows.give_back) {
    later->push_back(whole ? code_work(rows.from, blocks, rows.dtype) : work_apart(rows, first));
    return records_.add(fresh);
  }
  CodedStore apart(Beside{}, *this);
  if (!whole) apart.announce(rows.rows);
  const CodedStore& coded = whole ? *this : apart;
  coded.code(rows.from, blocks, rows.dtype);
  records_.add(fresh);
  if (rows.give_back) coded.unpack(rows.from, {blocks.first, blocks.count, DType::kF16});
  if (whole) return;
  MoveCodesCall call = apart.moves_to(*this, rows.rows);
  call.first = static_cast<int>(first);
  codec_->move_rows(call, site_.stream);
}

CodeWork CodedStore::work_apart(const NewRows& rows, size_t first) const {
  CodeWork work = code_work(rows.from, {0, (rows.rows + 31) / 32, rows.positions}, rows.dtype);
  MoveCodesCall& move = work.move.emplace(moves_to(*this, rows.rows));
  move.first = static_cast<int>(first);
  return work;
}

MoveCodesCall CodedStore::keep_later(size_t count) {
  rows_ = count;
  blocks_ = (count + 31) / 32;
  return moves_to(*this, count);
}

void CodedStore::keep(const int32_t* kept, size_t stride, size_t count, size_t most) {
  CodedStore fresh(Beside{true}, *this);
  most = room_for(most);
  // It grows to where it was, but for rows that came in a crowd.
  const size_t blocks = (std::max(most, count) + 31) / 32;
  fresh.move_to(most > 0 ? std::min(capacity(), blocks) : capacity(), fresh);
  fresh.announce(count);
  MoveCodesCall call = moves_to(fresh, count);
  call.kept = kept;
  call.kept_stride = stride;
  codec_->move_rows(call, site_.stream);
  for (size_t i = 0; i < kParts; ++i) parts_[i].swap(fresh.parts_[i]);
  blocks_ = fresh.blocks_;
  rows_ = count;
}

void CodedStore::keep_from(size_t first, const int32_t* kept, size_t stride, size_t count) {
  CodedStore apart(Beside{}, *this);
  apart.announce(count);
  MoveCodesCall call = moves_to(apart, count);
  call.kept = kept;
  call.kept_stride = stride;
  codec_->move_rows(call, site_.stream);
  call = apart.moves_to(*this, count);
  call.first = static_cast<int>(first);
  codec_->move_rows(call, site_.stream);
  rows_ = first + count;
  blocks_ = (rows_ + 31) / 32;
}

void CodedStore::drop_front(size_t rows, size_t capacity) {
  move_to(capacity, *this, rows / 32);
  rows_ -= rows;
  gone_ += rows;
  hidden_ -= std::min(hidden_, rows);
}

// Room is left for the rows that come until it is time again.
void CodedStore::hide_first(size_t count) {
  if (count <= gone_) return;
  hidden_ = std::min(count - gone_, rows_);
  const size_t group = codec_->block_rows(), whole = hidden_ / group * group;
  if (waits() || whole < std::max(kHiddenRows, group)) return;
  const size_t most = rows_ - whole + 2 * kHiddenRows + group;
  drop_front(whole, std::min(capacity(), (most + 31) / 32));
}

void CodedStore::add_keys(MassTarget& target) const {
  target.codes = at(kKeyCodes, 0, 0);
  target.code_side = at(kKeySide, 0, 0);
  target.block_stride = capacity();
  target.records = records_.data();
  target.record_stride = records_.stride();
  target.coded = static_cast<int32_t>(rows_);
}

CodeWork CodedStore::code_work(const RowTarget& from, const BlockRun& blocks, DType dtype) const {
  const CodeBatch batch{dtype, static_cast<int>(site_.heads), static_cast<int>(blocks.count * 32),
                        static_cast<int>(site_.dim)};
  return {codec_.get(), batch, job(from, kKeyCodes, blocks), job(from, kValueCodes, blocks)};
}

void CodedStore::code(const RowTarget& from, const BlockRun& blocks, DType dtype) const {
  if (blocks.count == 0) return;
  const CodeWork work = code_work(from, blocks, dtype);
  codec_->code(work.batch, {&work.keys, 1}, {&work.values, 1}, site_.stream);
}

void CodedStore::take_early(const BodyMove& move) {
  const size_t learns = codec_->learns_from(), before = rows_ - move.rows;
  const size_t wait = !learned_ && before < learns ? std::min(move.rows, learns - before) : 0;
  const RowTarget from = move.from;
  if (wait > 0) {
    if (before == 0) waiting_.allocate(waiting_bytes(), site_.stream);
    copy_rows({waiting_at(before), from, wait, site_.heads, site_.dim}, site_.stream);
    if (waits()) return;
    learn(waiting_at(0), site_.dtype, site_.position);
    code(waiting_at(0), run(0, learns / 32), site_.dtype);
    waiting_.allocate(0, site_.stream);
  }
  code(from + wait, run((before + wait) / 32, (move.rows - wait) / 32), site_.dtype);
}

DeviceSpan CodedStore::coded_span(size_t head, size_t first, size_t rows) const {
  DeviceSpan span;
  span.coded = 1;
  span.rows = static_cast<int32_t>(rows);
  span.position = static_cast<int32_t>(first_position() + static_cast<int64_t>(first));
  span.group_blocks = codec_->group_blocks();
  if (rows == 0) return span;
  span.keys = at(kKeyCodes, head, first / 32);
  span.key_side = at(kKeySide, head, first / 32);
  span.values = at(kValueCodes, head, first / 32);
  span.value_side = at(kValueSide, head, first / 32);
  if (codec_->record_bytes() > 0) span.set_records(records_.of_head(head));
  return span;
}

DeviceSpan CodedStore::span(size_t head, size_t which) const {
  const bool last = which + 1 == spans();
  if (waits()) {
    return dense_span(waiting_at(hidden_), head, last ? rows_ - hidden_ : 0, site_.dim);
  }
  const size_t group = codec_->block_rows(), first = hidden_ / group * group;
  const size_t veiled = hidden_ > first ? std::min(group, rows_ - first) : 0;
  if (last) return coded_span(head, first + veiled, rows_ - first - veiled);
  DeviceSpan span = coded_span(head, first, veiled);
  span.log_weights = veil_->data() + group - (hidden_ - first);
  return span;
}

UnpackRowsCall CodedStore::unpack_call(const Piece& piece) const {
  UnpackRowsCall call;
  call.block_stride = capacity();
  call.heads = static_cast<int>(site_.heads);
  call.blocks = static_cast<int>(piece.blocks);
  call.head_dim = static_cast<int>(site_.dim);
  call.dtype = piece.dtype;
  call.position = first_position() + static_cast<int64_t>(32 * piece.first);
  call.records = records().data();
  call.record_stride = records().stride();
  call.codes = at(kKeyCodes, 0, piece.first);
  call.side = at(kKeySide, 0, piece.first);
  return call;
}

std::pair<UnpackRowsCall, UnpackRowsCall> CodedStore::unpack_calls(const RowTarget& to,
                                                                   const Piece& piece) const {
  const size_t skipped = static_cast<size_t>(to.row) * site_.dim * 2;
  UnpackRowsCall keys = unpack_call(piece);
  keys.head_stride = to.head_stride;
  keys.out = static_cast<std::byte*>(to.k) + skipped;
  UnpackRowsCall values = keys;
  values.codes = at(kValueCodes, 0, piece.first);
  values.side = at(kValueSide, 0, piece.first);
  values.out = static_cast<std::byte*>(to.v) + skipped;
  return {keys, values};
}

void CodedStore::unpack(const RowTarget& to, const Piece& piece) const {
  const auto [keys, values] = unpack_calls(to, piece);
  codec_->unpack_keys(keys, site_.stream);
  if (to.v) codec_->unpack_values(values, site_.stream);
}

void CodedStore::attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                              const std::function<RowTarget()>& piece) const {
  const auto attend = [&](const RowTarget& rows, size_t first, size_t count) {
    CausalSpan span = causal_span(rows, count, site_.dim);
    span.log_weight = as.log_weight;
    if (as.log_weights) span.log_weights = as.log_weights + first;
    span.weights_stride = as.weights_stride;
    span.from = as.from - static_cast<int64_t>(gone_ + first);
    attention.add(span);
  };
  if (waits() && rows() > 0) return attend(waiting_at(0), 0, rows());
  const size_t group = codec_->block_rows();
  for (size_t first = hidden_ / group * group; first < rows(); first += kPieceRows) {
    const size_t count = std::min(kPieceRows, rows() - first);
    const RowTarget to = piece();
    unpack(to, {first / 32, (count + 31) / 32, site_.dtype});
    attend(to, first, count);
  }
}

void CodedStore::add_rows(HeadRows& out, size_t, int64_t first_position) const {
  for (size_t i = gone_; i < gone_ + rows(); ++i) {
    out.positions.push_back(first_position + static_cast<int64_t>(i));
    out.log_weights.push_back(0);
  }
}

void CodedStore::add_to(Ledger& ledger) const {
  const size_t rows_of_blocks = waits() ? 0 : rows();
  for (size_t part = 0; part < kParts; ++part) {
    const size_t held = site_.heads * rows_of_blocks * parts_[part].unit() / 32;
    (part % 2 == 0 ? ledger.payload : ledger.metadata) += held;
    ledger.slack += parts_[part].allocated_bytes() - held;
  }
  ledger.metadata += records_.held_bytes();
  ledger.slack += records_.allocated_bytes() - records_.held_bytes();
  const size_t waiting = waits() ? 4 * site_.heads * rows() * site_.dim : 0;
  ledger.payload += waiting;
  ledger.slack += waiting_.size() - waiting;
  ledger.shared += follows_ ? 0 : codec_->shared_bytes();
  ledger.rows_kept += rows() * site_.heads;
}

void CodedStore::archive(Archive& a, size_t tokens) {
  archive_counts(a, tokens);
  archive_blocks(a, std::vector<size_t>(site_.heads, rows_));
}

void CodedStore::archive_heads(Archive& a, size_t tokens, std::span<const size_t> of_heads) {
  archive_counts(a, tokens);
  for (const size_t rows : of_heads) a.need(rows <= rows_, "a head with more codes than there are");
  archive_blocks(a, of_heads);
}

void CodedStore::archive_counts(Archive& a, size_t tokens) {
  a.flag(learned_);
  a.need(!learned_ || codec_->learns_from() > 0, "tables that this codec does not learn");
  a.number(gone_, tokens, "more rows than tokens");
  a.number(rows_, tokens - gone_, "more rows than tokens");
  a.number(hidden_, site_.slides ? rows_ : 0, "more hidden rows than there are");
  const bool alone = codec_->with_rows_alone(static_cast<int>(site_.dim)) == nullptr;
  a.need(alone || rows_ % codec_->block_rows() == 0, "a group of codes that is not whole");
  a.need(learned_ || rows_ == 0 || gone_ == 0 || codec_->learns_from() == 0, "rows without tables");
  if (learned_ && !follows_) codec_->archive(a, site_.stream);
  if (!learned_) codec_->archive_queries(a, site_.stream);
}

void CodedStore::archive_blocks(Archive& a, std::span<const size_t> of_heads) {
  if (waits()) {
    if (a.loads() && rows_ > 0) waiting_.allocate(waiting_bytes(), site_.stream);
    if (rows_ > 0) archive_rows(a, waiting_at(0), of_heads, {site_.dim, site_.dtype, site_.stream});
    return;
  }
  records_.archive(a, *codec_);
  size_t row_bytes = 0;
  for (const Slab& part : parts_) row_bytes += part.unit() / 32;
  a.check_left(*std::ranges::max_element(of_heads), row_bytes);
  if (a.loads()) reserve();
  for (size_t part = 0; part < kParts; ++part) {
    for (size_t head = 0; head < of_heads.size(); ++head) {
      const size_t blocks = (of_heads[head] + 31) / 32;
      const size_t unit = parts_[part].unit();
      if (blocks == 0 || unit == 0) continue;
      const DeviceRuns runs{at(static_cast<Part>(part), head, 0), unit, unit, blocks};
      archive_runs(a, runs, site_.stream, [&](std::span<const std::byte> bytes) {
        codec_->check_loaded(a, {static_cast<CodePartOf>(part), bytes, static_cast<int>(site_.dim),
                                 records_.used()});
      });
    }
  }
}

}  // namespace pith::cuda
