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

}  // namespace

CodedStore::CodedStore(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site)
    : site_(site),
      blocks_(std::move(codec), site, true),
      waiting_(*site.memory, MemoryKind::kPayload) {
  if (site.slides) veil_ = make_veil(site, this->codec().block_rows());
}

CodedStore::CodedStore(const CodedStore& other)
    : site_(other.site_),
      blocks_(other.blocks_, other.least_appended() > 0 ? other.codec().copy(other.site_.stream)
                                                        : other.blocks_.shared_codec()),
      hidden_(other.hidden_),
      learned_(other.learned_),
      follows_(other.follows_),
      waiting_(*site_.memory, MemoryKind::kPayload),
      veil_(other.veil_) {
  copy_buffer(waiting_, other.waiting_, site_.stream);
}

std::string CodedStore::kind() const {
  return fmt::format("{} of {} heads", codec().name(), site_.heads);
}

void CodedStore::learn(const RowTarget& rows, DType dtype, const RowPositions& positions) {
  const size_t skipped = static_cast<size_t>(rows.row) * site_.dim * 2;
  const RowTarget first{static_cast<std::byte*>(rows.k) + skipped,
                        static_cast<std::byte*>(rows.v) + skipped, rows.head_stride, 0};
  codec().learn(first, dtype, positions, site_.stream);
  learned_ = true;
}

void CodedStore::announce(size_t rows) {
  blocks_.count(rows);
  if (!waits()) blocks_.reserve();
}

StoreRoom CodedStore::room(const ComingRows& coming) const {
  StoreRoom room = blocks_.room(coming);
  if (least_appended() > 0) room.more += waiting_bytes() - waiting_.size();
  return room;
}

void CodedStore::take(std::span<const BodyMove> moves) const {
  if (codec().learns_from() > 0) {
    for (const BodyMove& move : moves) static_cast<CodedStore&>(*move.body).take_early(move);
    return;
  }
  std::vector<CodeJob> keys, values;
  for (const BodyMove& move : moves) {
    const CodedBlocks& blocks = static_cast<const CodedStore&>(*move.body).blocks_;
    keys.push_back(blocks.calls().job(move.from, true, blocks.last(move.rows)));
    values.push_back(blocks.calls().job(move.from, false, blocks.last(move.rows)));
  }
  const CodeBatch batch{site_.dtype, static_cast<int>(site_.heads),
                        static_cast<int>(moves.front().rows), static_cast<int>(site_.dim)};
  codec().code(batch, keys, values, site_.stream);
}

void CodedStore::take_early(const BodyMove& move) {
  const size_t learns = codec().learns_from(), before = rows() - move.rows;
  const size_t wait = !learned_ && before < learns ? std::min(move.rows, learns - before) : 0;
  const RowTarget from = move.from;
  if (wait > 0) {
    if (before == 0) waiting_.allocate(waiting_bytes(), site_.stream);
    copy_rows({waiting_at(before), from, wait, site_.heads, site_.dim}, site_.stream);
    if (waits()) return;
    learn(waiting_at(0), site_.dtype, site_.position);
    blocks_.code(waiting_at(0), blocks_.run(0, learns / 32), site_.dtype);
    waiting_.allocate(0, site_.stream);
  }
  blocks_.code(from + wait, blocks_.run((before + wait) / 32, (move.rows - wait) / 32),
               site_.dtype);
}

void CodedStore::append(const CodedBlocks::NewRows& rows, std::vector<CodeWork>* later) {
  if (least_appended() > 0) learn(rows.from, rows.dtype, rows.positions);
  blocks_.append(rows, later);
}

void CodedStore::drop_front(size_t rows, size_t most) {
  blocks_.drop_front(rows, std::min(blocks_.capacity(), device_blocks(most)));
  hidden_ -= std::min(hidden_, rows);
}

// Room is left for the rows that come until it is time again.
void CodedStore::hide_first(size_t count) {
  if (count <= blocks_.gone()) return;
  hidden_ = std::min(count - blocks_.gone(), rows());
  const size_t group = codec().block_rows(), whole = hidden_ / group * group;
  if (waits() || whole < std::max(kHiddenRows, group)) return;
  const size_t most = rows() - whole + 2 * kHiddenRows + group;
  drop_front(whole, most);
}

DeviceSpan CodedStore::span(size_t head, size_t which) const {
  const bool last = which + 1 == spans();
  if (waits()) {
    return dense_span(waiting_at(hidden_), head, last ? rows() - hidden_ : 0, site_.dim);
  }
  const size_t group = codec().block_rows(), first = hidden_ / group * group;
  const size_t veiled = hidden_ > first ? std::min(group, rows() - first) : 0;
  if (last) return blocks_.calls().span(head, first + veiled, rows() - first - veiled);
  DeviceSpan span = blocks_.calls().span(head, first, veiled);
  span.log_weights = veil_->data() + group - (hidden_ - first);
  return span;
}

void CodedStore::attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                              const std::function<RowTarget()>& piece) const {
  const auto attend = [&](const RowTarget& rows, size_t first, size_t count) {
    CausalSpan span = causal_span(rows, count, site_.dim);
    span.log_weight = as.log_weight;
    if (as.log_weights) span.log_weights = as.log_weights + first;
    span.weights_stride = as.weights_stride;
    span.from = as.from - static_cast<int64_t>(blocks_.gone() + first);
    attention.add(span);
  };
  if (waits() && rows() > 0) return attend(waiting_at(0), 0, rows());
  const size_t group = codec().block_rows();
  for (size_t first = hidden_ / group * group; first < rows(); first += kPieceRows) {
    const size_t count = std::min(kPieceRows, rows() - first);
    const RowTarget to = piece();
    blocks_.calls().unpack(to, {first / 32, (count + 31) / 32, site_.dtype});
    attend(to, first, count);
  }
}

void CodedStore::add_rows(HeadRows& out, size_t, int64_t first_position) const {
  const size_t gone = blocks_.gone();
  for (size_t i = gone; i < gone + rows(); ++i) {
    out.positions.push_back(first_position + static_cast<int64_t>(i));
    out.log_weights.push_back(0);
  }
}

void CodedStore::add_to(Ledger& ledger) const {
  blocks_.add_to(ledger, waits() ? 0 : rows());
  const size_t waiting = waits() ? 4 * site_.heads * rows() * site_.dim : 0;
  ledger.payload += waiting;
  ledger.slack += waiting_.size() - waiting;
  ledger.shared += follows_ ? 0 : codec().shared_bytes();
  ledger.rows_kept += rows() * site_.heads;
}

void CodedStore::archive(Archive& a, size_t tokens) {
  archive_counts(a, tokens);
  archive_rows_of(a, std::vector<size_t>(site_.heads, rows()));
}

void CodedStore::archive_heads(Archive& a, size_t tokens, std::span<const size_t> of_heads) {
  archive_counts(a, tokens);
  for (const size_t held : of_heads)
    a.need(held <= rows(), "a head with more codes than there are");
  archive_rows_of(a, of_heads);
}

void CodedStore::archive_counts(Archive& a, size_t tokens) {
  const size_t learns = codec().learns_from();
  a.flag(learned_);
  a.need(!learned_ || learns > 0, "tables that this codec does not learn");
  blocks_.archive_counts(a, tokens);
  a.number(hidden_, site_.slides ? rows() : 0, "more hidden rows than there are");
  const bool alone = codec().with_rows_alone(static_cast<int>(site_.dim)) == nullptr;
  a.need(alone || rows() % codec().block_rows() == 0, "a group of codes that is not whole");
  a.need(learned_ || rows() == 0 || blocks_.gone() == 0 || learns == 0, "rows without tables");
  if (learned_ && !follows_) codec().archive(a, site_.stream);
  if (!learned_) codec().archive_queries(a, site_.stream);
}

void CodedStore::archive_rows_of(Archive& a, std::span<const size_t> of_heads) {
  if (!waits()) return blocks_.archive(a, of_heads);
  if (a.loads() && rows() > 0) waiting_.allocate(waiting_bytes(), site_.stream);
  if (rows() > 0) archive_rows(a, waiting_at(0), of_heads, {site_.dim, site_.dtype, site_.stream});
}

}  // namespace pith::cuda
