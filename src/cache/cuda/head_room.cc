#include "cache/cuda/head_room.h"

#include <algorithm>

#include "cache/cuda/late_work.h"
#include "cache/cuda/run_codes.h"
#include "rows/cuda/code_room.h"

namespace pith::cuda {
namespace {

size_t most_heavy(const LayerPlan& layer) {
  return layer.selector.heavy ? layer.selector.heavy->most() : 0;
}

}  // namespace

// Rows leave the window in blocks, and become codes 32 at a time, or once there are enough to learn
// from; a pass's are there before any of them go.
HeadRoom::HeadRoom(const HeadStores& stores, const ComingTokens& coming)
    : s_(stores), coming_(coming), heavy_(most_heavy(stores.layer)) {
  const LayerPlan& layer = s_.layer;
  const size_t open = s_.open(), after = open + coming_.tokens;
  const auto left = [&](size_t tokens) { return occupancy(layer.schedule, tokens).body; };
  body_ = layer.straight ? after
                         : std::max<size_t>({s_.run.body, layer.rule->most_rows(left(open)),
                                             layer.rule->most_rows(left(after))});
  body_ = std::min(body_, after);
  const size_t group = layer.codec ? layer.codec->block_rows() : kBlockRows;
  const size_t learns = s_.codes ? s_.codes->least_appended() : s_.body ? s_.body->least() : 0;
  slack_ = layer.schedule.block + coming_.at_once + 2 * kBlockRows + group + learns;
  between_ = (s_.body ? heavy_ : std::max(body_, heavy_)) + slack_;
}

StoreRoom HeadRoom::run_where_rows_flow() const {
  const size_t window = s_.layer.schedule.window;
  const size_t waits = s_.body ? s_.body->least() : 0;
  StoreRoom room = s_.rows.room(window + s_.layer.schedule.block + waits, true);
  if (!s_.body) return room;
  constexpr size_t kHidden = 1024;  // that wait for being given back
  const size_t late = s_.rows.rows() - std::min(s_.rows.rows(), window);
  const size_t held = s_.body->rows() + late + coming_.tokens;
  const size_t seen = s_.layer.seen > 0 ? s_.layer.seen + kHidden + slack_ : held;
  // The sample of a rule that goes by contents is its own business.
  const size_t most = std::min(s_.layer.rule->by_contents() ? body_ : held, seen);
  return room += s_.body->room({late + coming_.tokens, slack_, most});
}

StoreRoom HeadRoom::run() const {
  const bool packs = s_.zones().packs();
  const size_t exact = s_.layer.schedule.sink + s_.layer.schedule.window;
  const size_t held = s_.rows.rows();
  size_t dense = held + coming_.tokens;
  if (!s_.layer.straight) dense = std::min(dense, exact + (packs ? slack_ : between_));
  dense = std::max(dense, held) + (packs ? kBlockRows : 0);
  StoreRoom room = s_.rows.room(dense);
  if (s_.layer.straight) return room;
  room.passing =
      std::max(room.passing, s_.rows.allocated_bytes());  // the end of a prompt shrinks it
  size_t coded = 0;
  if (s_.codes) {
    const size_t most = std::max(between_, s_.codes->rows());
    const ComingRows coming{held + coming_.tokens, slack_, most};
    coded = coming.held_with(s_.codes->rows());
    room += s_.codes->room(coming);
  }
  // With room beside the run's come numbers for all of it.
  if (coded + dense > s_.sides.capacity()) {
    const size_t rows = std::max(dense, s_.rows.capacity());
    room += s_.sides.room(coded + device_rows().most_for(rows));
  }
  const size_t leave = held + s_.coded() + coming_.tokens;
  if (s_.body) room += s_.body->room({leave, heavy_ + slack_, body_});
  if (s_.ragged) room += s_.ragged->room(s_.layer.rule->mean_rows(body_), between_);
  return room;
}

StoreRoom HeadRoom::stores() const {
  StoreRoom room = flows() ? run_where_rows_flow() : run();
  return room += s_.protected_rows.room(s_.tokens() + coming_.tokens);
}

// A place's rows may touch one block more than they fill.
size_t HeadRoom::codes_moved(size_t rows, size_t places, size_t fit) const {
  if (!s_.codes) return 0;
  const GroupedBytes block = s_.layer.codec->block_bytes(static_cast<int>(s_.site.dim));
  const size_t whole = whole_blocks(rows);
  const size_t blocks = std::min(places * whole, std::max(fit, whole)) / kBlockRows + places;
  return CodeRoom::bytes({block, s_.heads(), blocks}, 1) + kBlockRows * kBlockRows;
}

// Selections of many layers and sessions go together while they take no more than a piece, or than
// many_bytes().
void HeadRoom::add_selections(SpaceAsked& asked, const ChunkSpace& space, size_t places) const {
  const size_t rows = whole_blocks(std::max(between_, s_.ragged ? 2 * body_ : 0));
  const size_t heads = s_.heads(), all = heads * rows;
  asked.sums = ChunkSpace::select_sums(s_.site.heads, s_.site.dim);
  asked.select = rows;
  if (s_.queries.kept() || heavy_ > 0 || s_.sides.has_mass())
    asked.logits = s_.query_heads() * rows;
  asked.unpacked = space.unpacked_bytes(rows + kBlockRows);
  if (heavy_ > 0 && s_.body) {
    asked.staging = rows;
    asked.positions = all;
  }
  if (!s_.codes) return;
  const size_t together = std::min(places, space.layers_at_once(heads, kBlockRows));
  size_t moved = together;
  size_t fit = kBlockRows * space.layers_at_once(heads, kBlockRows);
  const size_t keys = 2 * all * s_.site.dim;
  asked.pieces = std::min(together * keys, std::max(keys, space.piece_bytes()));
  if (heavy_ > 0 && s_.body) {
    const size_t row = 4 * heads * s_.site.dim;
    asked.pieces = std::max(
        asked.pieces, std::min(places * row * rows, std::max(row * rows, space.many_bytes())));
    moved = places;
    fit = space.many_bytes() / row;
  }
  const size_t one_selection = std::max(all, 2 * s_.site.heads * ChunkSpace::kPieceRows);
  asked.select = std::max(asked.select, std::min(together * all, one_selection) / heads);
  asked.sums = std::max(asked.sums, ChunkSpace::select_sums(together * heads, s_.site.dim));
  asked.unpacked = std::max(asked.unpacked, codes_moved(rows, moved, fit));
}

SpaceAsked HeadRoom::space(const ChunkSpace& space, size_t places) const {
  SpaceAsked asked;
  const LayerPlan& layer = s_.layer;
  asked.codecs = layer.codec ? layer.codec->scratch_bytes() : 0;
  const size_t passing = std::max(s_.rows.rows() + coming_.at_once, layer.schedule.window + slack_);
  if (coming_.at_once > 1) {
    asked.partials = coming_.at_once;
    asked.queries = s_.queries.scales() ? coming_.at_once : 0;
    if (s_.codes || s_.body || s_.ragged) asked.pieces = space.piece_bytes();
    if (flows()) asked.staging = passing;
  }
  if (s_.body && s_.protected_rows.any()) asked.positions = passing;
  SpaceAsked more;
  if (!flows() && !layer.straight) add_selections(more, space, places);
  asked.join(more);
  // Codes of fewer than a block of many places, as tokens complete them (LateCodes).
  constexpr size_t kBlocks = 3;
  const size_t late = std::min(places, kMostCodesApart);
  if (s_.codes) {
    const size_t rows = std::max(kBlocks * kBlockRows, layer.schedule.block + 2 * kBlockRows);
    asked.unpacked = std::max(asked.unpacked, codes_moved(rows, late, late * rows));
  }
  return asked;
}

}  // namespace pith::cuda
