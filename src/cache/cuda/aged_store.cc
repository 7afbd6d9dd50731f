#include "cache/cuda/aged_store.h"

#include <algorithm>

#include "plan/ageing.h"

namespace pith::cuda {
namespace {

constexpr size_t kMostRows = 4096;  // that come at once: what is young outgrows its share by these

}  // namespace

AgedStore::AgedStore(std::shared_ptr<const DeviceCodec> codec, const StoreSite& site)
    : codec_(std::move(codec)),
      site_(site),
      old_(codec_->aged()->old, site),
      young_(codec_->aged()->young, site) {}

void AgedStore::take(std::span<const BodyMove> moves) const {
  for (const BodyMove& move : moves)
    static_cast<AgedStore&>(*move.body).append(move.from, move.rows);
}

void AgedStore::append(RowTarget from, size_t rows) {
  const AgedCodec& aged = *codec_->aged();
  announced_ -= rows;
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

StoreRoom AgedStore::room(const ComingRows& coming) const {
  const AgedCodec& aged = *codec_->aged();
  const size_t at_once = std::min(coming.at_once, kMostRows);
  const size_t most = std::max(young_.rows(), aged.rows + aged.step) + at_once;
  const size_t ages = std::min(most, young_.rows() + coming.rows);
  StoreRoom room = young_.room({coming.rows, at_once, std::min(coming.most, most)});
  const size_t of_young = room.passing;
  room += old_.room({coming.rows, ages, coming.most});
  room.passing = std::max(of_young, room.passing + 4 * site_.heads * ages * site_.dim);
  return room;
}

void AgedStore::age(size_t rows) {
  DeviceBuffer room(*site_.memory, MemoryKind::kScratch);
  room.allocate(4 * site_.heads * rows * site_.dim, site_.stream);
  const RowTarget plain = rows_in(room, rows, site_.dim);
  young_.blocks().calls().unpack(plain, {0, rows / 32, site_.dtype});
  old_.announce(rows);
  const BodyMove move{&old_, plain, rows};
  old_.take({&move, 1});
  // A chunk's room goes: from now on rows come and age a block at a time.
  const AgedCodec& aged = *codec_->aged();
  const size_t most = std::max(young_.rows() - rows, aged.rows + aged.step) + kBlockRows;
  young_.drop_front(rows, kBlockRows * device_codes().most_for(device_blocks(most)));
}

// Hidden young rows are given back without growing old; all old ones have been hidden before them.
void AgedStore::hide_first(size_t count) {
  old_.hide_first(count);
  young_.hide_first(count);
  if (old_.blocks().gone() + old_.rows() < young_.blocks().gone())
    old_.skip_to(young_.blocks().gone());
}

DeviceSpan AgedStore::span(size_t head, size_t which) const {
  const bool old = which < old_.spans();
  DeviceSpan span = old ? old_.span(head, which) : young_.span(head, which - old_.spans());
  span.coded = old ? 2 : 1;
  return span;
}

void AgedStore::attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                             const std::function<RowTarget()>& piece) const {
  old_.attend_chunk(attention, as, piece);
  young_.attend_chunk(attention, as, piece);
}

void AgedStore::add_rows(HeadRows& rows, size_t head, int64_t first_position) const {
  old_.add_rows(rows, head, first_position);
  young_.add_rows(rows, head, first_position);  // it knows how many have left it
}

void AgedStore::add_to(Ledger& ledger) const {
  old_.add_to(ledger);
  young_.add_to(ledger);
}

void AgedStore::archive(Archive& a, size_t tokens) {
  old_.archive(a, tokens);
  young_.archive(a, tokens);
  a.need(rows() <= tokens, "more rows than tokens");
  a.need(old_.blocks().gone() + old_.rows() == young_.blocks().gone(),
         "old rows that do not end where young ones begin");
}

}  // namespace pith::cuda
