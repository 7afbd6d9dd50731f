#include "rows/cuda/coded_blocks.h"

namespace pith::cuda {

CodedBlocks::CodedBlocks(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site,
                         bool saved)
    : codec_(std::move(codec)),
      site_(site),
      memory_(*codec_, site, saved),
      records_(*codec_, site) {}

CodedBlocks::CodedBlocks(const CodedBlocks& owner, bool saved)
    : CodedBlocks(owner.codec_, owner.site_, saved) {
  owners_ = &owner.records_;
}

CodedBlocks::CodedBlocks(const CodedBlocks& other, std::shared_ptr<const DeviceCodec> codec)
    : codec_(std::move(codec)),
      site_(other.site_),
      memory_(*codec_, site_, true),
      blocks_(other.blocks_),
      rows_(other.rows_),
      gone_(other.gone_),
      records_(other.records_) {
  if (other.capacity() > 0) memory_.renew(other.capacity(), other.memory_, {0, blocks_});
}

void CodedBlocks::reserve() {
  const size_t needed = (rows_ + 31) / 32;
  if (needed > capacity()) memory_.renew(growth().from(capacity(), needed), memory_, {0, blocks_});
  blocks_ = needed;
}

// Rows that stay may go to new memory (keep), and new ones are coded apart (append).
StoreRoom CodedBlocks::room(const ComingRows& coming) const {
  const size_t rows = coming.held_with(rows_), blocks = (rows + 31) / 32;
  const size_t most = blocks <= capacity() ? capacity() : growth().most_for(blocks);
  StoreRoom room = memory_.growth(most);
  const size_t fresh = coming.rows / codec_->block_rows();
  room += records_.room(fresh, {rows, coming.at_once});
  const size_t apart = codes_bytes(*codec_, site_, std::min(coming.at_once, coming.rows));
  room.passing = std::max(room.passing, apart + memory_.bytes_of(most));
  return room;
}

void CodedBlocks::drop_front(size_t rows, size_t capacity) {
  const size_t first = rows / 32;
  blocks_ -= first;
  memory_.renew(capacity, memory_, {first, blocks_});
  rows_ -= rows;
  gone_ += rows;
}

CodeWork CodedBlocks::code_work(const RowTarget& from, const BlockRun& blocks, DType dtype) const {
  const CodeBatch batch{dtype, static_cast<int>(site_.heads), static_cast<int>(blocks.count * 32),
                        static_cast<int>(site_.dim)};
  return {codec_.get(), batch, calls().job(from, true, blocks), calls().job(from, false, blocks)};
}

void CodedBlocks::code(const RowTarget& from, const BlockRun& blocks, DType dtype) const {
  if (blocks.count == 0) return;
  const CodeWork work = code_work(from, blocks, dtype);
  codec_->code(work.batch, {&work.keys, 1}, {&work.values, 1}, site_.stream);
}

// Codes of other rows in the last block are not touched: rows that begin within a block, or leave
// one unfinished, are coded apart and moved there.
void CodedBlocks::append(const NewRows& rows, std::vector<CodeWork>* later) {
  const size_t first = rows_, fresh = rows.rows / codec_->block_rows();
  records_.reserve(fresh, *codec_, all(), first);
  announce(rows.rows);
  const bool whole = first % 32 == 0 && rows.rows % 32 == 0;
  const BlockRun blocks{whole ? first / 32 : 0, (rows.rows + 31) / 32, rows.positions};
  if (later && !rows.give_back) {
    later->push_back(whole ? code_work(rows.from, blocks, rows.dtype) : work_apart(rows, first));
    return records_.add(fresh);
  }
  CodedBlocks apart = beside();
  if (!whole) apart.announce(rows.rows);
  const CodedBlocks& coded = whole ? *this : apart;
  coded.code(rows.from, blocks, rows.dtype);
  records_.add(fresh);
  if (rows.give_back) coded.calls().unpack(rows.from, {blocks.first, blocks.count, DType::kF16});
  if (whole) return;
  MoveCodesCall call = apart.calls().moves_to(all(), rows.rows);
  call.first = static_cast<int>(first);
  codec_->move_rows(call, site_.stream);
}

CodeWork CodedBlocks::work_apart(const NewRows& rows, size_t first) const {
  CodeWork work = code_work(rows.from, {0, (rows.rows + 31) / 32, rows.positions}, rows.dtype);
  MoveCodesCall& move = work.move.emplace(calls().moves_to(all(), rows.rows));
  move.first = static_cast<int>(first);
  return work;
}

MoveCodesCall CodedBlocks::keep_later(size_t count) {
  rows_ = count;
  blocks_ = (count + 31) / 32;
  return calls().moves_to(all(), count);
}

void CodedBlocks::keep(const int32_t* kept, size_t stride, size_t count, size_t most) {
  CodedBlocks fresh = beside(true);
  most = room_for(most);
  // It grows to where it was, but for rows that came in a crowd.
  const size_t blocks = (std::max(most, count) + 31) / 32;
  fresh.memory_.renew(most > 0 ? std::min(capacity(), blocks) : capacity(), fresh.memory_, {});
  fresh.announce(count);
  MoveCodesCall call = calls().moves_to(fresh.all(), count);
  call.kept = kept;
  call.kept_stride = stride;
  codec_->move_rows(call, site_.stream);
  memory_.swap(fresh.memory_);
  blocks_ = fresh.blocks_;
  rows_ = count;
}

void CodedBlocks::keep_from(size_t first, const int32_t* kept, size_t stride, size_t count) {
  CodedBlocks apart = beside();
  apart.announce(count);
  MoveCodesCall call = calls().moves_to(apart.all(), count);
  call.kept = kept;
  call.kept_stride = stride;
  codec_->move_rows(call, site_.stream);
  call = apart.calls().moves_to(all(), count);
  call.first = static_cast<int>(first);
  codec_->move_rows(call, site_.stream);
  rows_ = first + count;
  blocks_ = (rows_ + 31) / 32;
}

void CodedBlocks::add_to(Ledger& ledger, size_t rows) const {
  memory_.add_to(ledger, site_.heads, rows);
  ledger.metadata += records_.held_bytes();
  ledger.slack += records_.allocated_bytes() - records_.held_bytes();
}

void CodedBlocks::archive_counts(Archive& a, size_t tokens) {
  a.number(gone_, tokens, "more rows than tokens");
  a.number(rows_, tokens - gone_, "more rows than tokens");
}

void CodedBlocks::archive(Archive& a, std::span<const size_t> of_heads) {
  records_.archive(a, *codec_);
  a.check_left(*std::ranges::max_element(of_heads), memory_.row_bytes());
  if (a.loads()) reserve();
  memory_.archive(
      a, of_heads, site_.stream, [&](CodePartOf part, std::span<const std::byte> bytes) {
        codec_->check_loaded(a, {part, bytes, static_cast<int>(site_.dim), records_.used()});
      });
}

}  // namespace pith::cuda
