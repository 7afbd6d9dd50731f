#include "cache/cuda/aged_body.h"

#include <algorithm>

#include "plan/ageing.h"

namespace pith::cuda {
namespace {

constexpr size_t kMostRows = 4096;  // that come at once: what is young outgrows its share by these

}  // namespace

AgedBody::AgedBody(std::shared_ptr<const DeviceCodec> codec, const BodySite& site)
    : codec_(std::move(codec)),
      site_(site),
      old_(codec_->aged()->old, site),
      young_(codec_->aged()->young, site) {}

void AgedBody::take(std::span<const BodyMove> moves) const {
  for (const BodyMove& move : moves)
    static_cast<AgedBody&>(*move.body).append(move.from, move.rows);
}

void AgedBody::append(RowTarget from, size_t rows) {
  const AgedCodec& aged = *codec_->aged();
  for (size_t taken = 0; taken < rows;) {
    const size_t n = std::min(rows - taken, kMostRows);
    young_.announce(n);
    const BodyMove move{&young_, from, n};
    young_.take({&move, 1});
    if (const size_t due = Ageing{aged.rows, aged.step}.due(young_.rows())) age(due);
    from = from + n;
    taken += n;
  }
}

void AgedBody::age(size_t rows) {
  DeviceBuffer room(*site_.memory, MemoryKind::kScratch);
  room.allocate(4 * site_.heads * rows * site_.dim, site_.stream);
  const RowTarget plain = rows_in(room, rows, site_.dim);
  young_.unpack(plain, {0, rows / 32, site_.dtype});
  old_.announce(rows);
  const BodyMove move{&old_, plain, rows};
  old_.take({&move, 1});
  young_.drop_front(rows);
}

DeviceSpan AgedBody::span(size_t head, size_t which) const {
  DeviceSpan span = which == 0 ? old_.span(head, 0) : young_.span(head, 0);
  span.coded = which == 0 ? 2 : 1;
  return span;
}

void AgedBody::attend_chunk(CausalCall& call, const std::function<RowTarget()>& piece) const {
  old_.attend_chunk(call, piece);
  young_.attend_chunk(call, piece);
}

void AgedBody::add_rows(pith::HeadRows& rows, size_t head, int64_t first_position) const {
  old_.add_rows(rows, head, first_position);
  young_.add_rows(rows, head, first_position);  // it knows how many have left it
}

void AgedBody::add_to(Ledger& ledger) const {
  old_.add_to(ledger);
  young_.add_to(ledger);
}

void AgedBody::archive(Archive& a, size_t tokens) {
  old_.archive(a, tokens);
  young_.archive(a, tokens);
  if (a.loads()) rows_ = old_.rows() + young_.rows();
  a.need(rows_ == old_.rows() + young_.rows() && rows_ <= tokens, "more rows than tokens");
}

}  // namespace pith::cuda
