#pragma once
// The rows of KV heads side by side under one rule, as a plan's steps say (src/plan): dense ones in
// one run, codes, a body of its own that the rule keeps, protected rows.
//
// Where rows are selected again and again, or all of them stay dense, they stay where they lie: the
// run is sink | body | window, and a row that leaves the window counts as the body's. At a
// selection the rows that stay move to the front of those that were selected from, and all later
// ones follow. Attention sees one span, or more where rows that stayed have weights. Exact
// attention is the case in which nothing is ever selected.
//
// Otherwise rows *flow*: those that leave the window all go into the body, which carries out its
// rule's steps, or are dropped. The run is then the window, and the sink lies apart. In layers with
// a sliding window of their own rows that no query will see again leave at once where they are
// dense; spans begin behind those that are still there.
//
// Codes of rows that are never selected again take those rows away from the run's body. Codecs that
// code rows alone take all of the body's rows instead, 32 at a time and all before a selection:
// codes then come before the body's dense rows, fewer than 32. A selection sees the rows as the
// codes give them back, and what stays moves as codes, so that no row is ever coded twice. Weights
// are then one array over the codes, the same for all heads, written after selections.
//
// Heavy rows (methods/heavy.h) lie between the body and the window, in codes if that is. At a
// split the lightest move to their front and count as the body's from then on, or go into a body of
// its own that carries out the steps that follow.
//
// Where heads share a budget what a selection leaves lies apart, ragged (RaggedStore), and the
// body's rows in the run are those that came since.
//
// A selection of rows that join, whose outcome does not depend on when it comes, waits for others
// of its kind: up to 31 rows that the plan has dropped are then still there, exact and with weight
// 1, until the chunk ends, or the prompt.

#include "cache/cuda/chunk_space.h"
#include "cache/cuda/head_queries.h"
#include "cache/cuda/late_work.h"
#include "cache/cuda/protected_store.h"
#include "cache/cuda/ragged_store.h"
#include "cache/cuda/token_step.h"
#include "core/copied.h"
#include "plan/row_run.h"
#include "rows/cuda/coded_store.h"
#include "rows/cuda/dense_store.h"
#include "cache/cuda/row_sides.h"

namespace pith::cuda {

/// Where rows wait for a body to take them: from to.row on.
struct StagedRows {
  RowTarget to;
  int32_t* positions = nullptr;  // [G, stride]
  size_t stride = 0;
};

/// Dense rows of one weight.
struct DensePart {
  RowTarget at;
  size_t rows = 0;
  float log_weight = 0;
  bool apart = false;  ///< each row has its own: see DeviceChooser::weighs_rows
};

/// The stream that a saved layer has seen: its plan is replayed.
struct SeenStream {
  uint64_t tokens = 0;
  std::span<const uint64_t> prompt_ends;
};

/// Its functions are those of LayerRows (layer_rows.h), of one range of heads.
class HeadStores {
 public:
  HeadStores(const LayerPlan& plan, const LayerSite& site);

  size_t heads() const { return site_.heads; }
  size_t query_heads() const { return site_.query_heads; }
  /// The sink, codes, each part and the rest, or one for all; and what lies beside the run.
  size_t spans() const {
    return dense_parts() + (coded_ ? 1 : 0) + (body_ ? body_->spans() : 0) +
           (protected_.any() ? 1 : 0) + (ragged_ ? 1 : 0);
  }
  size_t notes() const { return ragged_ ? 2 : 1; }
  /// Of neighbours in a layer those of one form attend in one call: attend_token() of one of them
  /// serves all. Empty: no other's.
  std::string form() const;
  RowTarget begin_token(const TokenSlots& slots);
  void attend_token(const TokenStep& step) const;
  bool begins_freely() const;
  /// The next token's queries are shown to the codec: launches are not those of other steps.
  bool watches_queries() const;
  void end_token(ChunkSpace& space, LateWork& late);
  void write_spans(const TokenSlots& slots);
  void attend_held(CausalCall& call, ChunkSpace& space);
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space);
  void attend_chunk(CausalCall call, ChunkSpace& space);
  void end_chunk(size_t tokens, ChunkSpace& space, LateWork& late);
  void append_chunk(size_t tokens, ChunkSpace& space, LateWork& late);
  void end_prefill(ChunkSpace& space);
  size_t layers_together() const { return body_ ? body_->layers_together() : 1; }
  void protect(const ProtectedRows& rows);
  void add_rows(HeadRows& rows, size_t head) const;
  void add_codes(std::vector<HeadCodes>& codes, size_t head) const;
  size_t tokens() const { return plan_.state().tokens; }
  void archive(Archive& a, const SeenStream& seen);
  void add_to(Ledger& ledger) const;

 private:
  bool flows() const { return layer_.flows(); }
  /// Checked: what lies where of the rows that the plan keeps. How many are dense, behind a sink
  /// that lies apart.
  size_t archive_counts(Archive& a);
  size_t archive_window(Archive& a);
  /// Between the sink and what lies behind it: the run's codes, or what rows flow into.
  const BodyStore* between() const { return flows() ? body_.get() : coded_.get(); }
  /// Of what leaves the heavy rows.
  const BodyStore* beside() const { return flows() ? nullptr : body_.get(); }
  /// Tokens that are not protected; and how many of those the sink has.
  size_t open() const { return plan_.state().open; }
  size_t sink() const { return plan_.state().at(Zone::kSink); }
  /// All dense rows have weight 1, and nothing lies between them.
  bool one_run() const { return !flows() && chooser_->weights() == 0 && !coded_; }
  size_t dense_parts() const {
    if (flows()) return layer_.schedule.sink > 0 ? 2 : 1;
    return one_run() ? 1 : packs() ? 2 : chooser_->weights() + 2;
  }
  /// Whether rows that are selected from are in codes; and how many of the body's are, the first.
  bool packs() const { return coded_ && (layer_.selector.heavy || !chooser_->settles()); }
  size_t packed() const { return packs() ? coded_->rows() : 0; }
  /// How many of those stand behind the run's first `rows`.
  size_t packed_behind(size_t rows) const { return packed() - std::min(packed(), rows); }
  size_t coded_rows() const { return coded_ ? coded_->rows() : 0; }
  /// The body's first rows that are in codes for good, and are no part of the run any more.
  size_t settled() const { return packs() ? 0 : coded_rows(); }
  /// Of the body's rows in the run those whose positions are stored, its first: those selected
  /// from, and those that were split.
  size_t known() const { return sides_.named() - settled(); }
  RowSides::Held beside_rows() const {
    return {rows_.rows() + packed(), chooser_->weighs_rows() ? run_.judged : 0};
  }
  /// How many of the body's first rows heads have on average in ragged_.
  size_t shared() const { return ragged_ ? ragged_->rows() / site_.heads : 0; }
  size_t body() const { return run_.body - settled() - shared(); }
  /// Rows between sink and window, but for those of ragged_; packed ones are the first of them.
  size_t rows_between() const { return run_.rows() - shared(); }
  /// Whether codes have weights one by one; and what they have otherwise.
  bool weighs_codes() const { return packs() && chooser_->weights() > 0; }
  float coded_log_weight() const { return settled() > 0 ? log_weight(run_.weighted.front()) : 0; }
  float log_weight(const RowRun::Weighted& rows) const;
  /// The weights of codes follow from counts, but for those of rows that are weighed one by one.
  void write_weights() const;
  /// Rows between the sink and the end, but for settled ones.
  size_t unsettled() const { return packed() + sink_.rows() + rows_.rows() - sink(); }
  /// Runs of dense rows of one weight, oldest first: the sink, then what lies behind the codes, or
  /// a body that rows flow into; the last holds the newest.
  struct Parts {
    std::array<DensePart, kMostWeights + 2> part;
    size_t count = 0;
    size_t behind = 1;  ///< the first that lies behind those
    void add(const DensePart& one) { part[count++] = one; }
    std::span<const DensePart> all() const { return {part.data(), count}; }
  };
  /// The last rows are about to come, to where they lie in the end.
  struct NewRows {
    size_t sink = 0, run = 0, of_protected = 0;
  };
  Parts parts(const NewRows& fresh, const RowTarget& run) const;
  Parts parts_in_place(const NewRows& fresh, const RowTarget& run) const;
  /// As a chunk of `tokens` sees them, with their rows: those of one weight side by side are one.
  Parts parts_of_chunk(size_t tokens, const RowTarget& run) const;
  void write_spans(const TokenSlots& slots, const NewRows& fresh) const;
  /// To a body's rows, if there are any; `as`: see BodyStore.
  static void attend_body(ChunkAttention& attention, const BodyStore* body, const CausalSpan& as,
                          ChunkSpace& space);
  /// Begins a chunk's attention: all but the run and the codes in it.
  void attend_beside(ChunkAttention& attention, ChunkSpace& space) const;
  /// Goes on with those; `own` of the chunk's rows are the last of them, and end it, or none.
  void attend_run(ChunkAttention& attention, const Parts& parts, size_t own,
                  ChunkSpace& space) const;
  void reserve(size_t rows);
  /// Where rows flow, what the window may need room for. Rows that a body's tables are made of wait
  /// in it.
  DenseStoreShape run_shape() const;
  /// Tells a body that rows flow into which of them the next query does not see.
  void hide();
  /// The sink that lies apart, as it is attended to: its keys are rotated by `steps`, or by those
  /// at `steps_at` on the device, where positions are the cache's.
  RowTarget seen_sink() const;
  void turn_sink(int64_t steps, const int64_t* steps_at) const;
  /// Of the window's `rows` rows from `from` on so many flow into the body now, or are dropped.
  size_t flow(const RowTarget& from, size_t rows, ChunkSpace& space, std::vector<BodyMove>& moves);
  /// Writes the positions of rows that leave, where the body keeps them and some are protected.
  void name_positions(BodyMove& move, ChunkSpace& space) const;
  /// The end of a chunk of rows that were staged behind the window's.
  void end_staged(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves);
  /// That needs rows in the run, and arrays beside all rows.
  size_t run_needs(size_t rows) const;
  size_t side_needs(size_t rows) const { return coded_rows() + rows_.rows() + rows; }
  void make_sides(size_t capacity);
  void add_weights(HeadRows& rows) const;
  /// The effect of a pass's steps on rows that are there already.
  void carry_out(std::span<const Step> steps, bool chunk, ChunkSpace& space, LateWork& late);
  void carry_out(const Step& step, ChunkSpace& space, LateWork* late);
  /// All selections of heavy rows that are among the steps, before any of these are carried out:
  /// the lightest leave, for the run's body, or, as `late` says, for that of its own. Returns
  /// whether `late` has the rest of the pass's work too, on rows in codes.
  bool split(std::span<const Step> steps, bool chunk, ChunkSpace& space, LateWork& late);
  /// In rows of each head, of all selections of a pass.
  struct Splits {
    size_t stay = 0, leave = 0;
    size_t all() const { return stay + leave; }
  };
  void split_in_run(const Splits& splits, HeavyCall choice, const KeepCall& call,
                    ChunkSpace& space);
  /// Memory where rows wait for the body to take them.
  StagedRows stage(const Splits& splits, ChunkSpace& space, std::vector<BodyMove>& moves);
  /// Rows in codes that were selected from leave for the body.
  void close_up_codes(const HeavyWork& work, const Splits& splits, ChunkSpace& space);
  /// Codes first, ...: those that stay, in their new order.
  struct KeptCodes {
    const int32_t* rows;  // [G, stride]
    size_t stride, first, count;
  };
  /// `most`: see CodedStore::keep.
  void keep_codes(const KeptCodes& kept, size_t most, ChunkSpace& space);
  /// Some of the body's last rows stay; with `late` the work may be left there, as pack()'s.
  void select(const Step& step, ChunkSpace& space, LateWork* late = nullptr);
  /// Whether those of other layers and sessions can be selected with them.
  bool joins_others() const;
  void select_now(KeepCall& call, size_t first, const Step& step, ChunkSpace& space);
  /// Some of the body's rows stay, of each head as many as the device finds.
  void share(const Step& step, ChunkSpace& space);
  /// Settled rows go into the codes, and later ones follow up.
  void code_settled();
  /// Of the body's rows the first `count` are in codes from now on, if they were not; with `late`
  /// the work may be left there, if nothing else of the pass looks at them.
  void pack(size_t count, LateWork* late = nullptr);
  /// The body's tables are those that coded rows have learnt.
  void share_tables();
  /// Whole blocks of them at a pass's end.
  void pack_blocks(bool chunk, LateWork& late);
  /// Rows that are selected from, from the body's row `first` on, as the codes give them back.
  void unpack(JudgedRows& rows, size_t first, DType dtype, const RowTarget& to) const;
  void unpack(JudgedRows& rows, size_t first, DType dtype, ChunkSpace& space) const;
  /// The first queries behind the sink go to a codec that is yet to learn.
  void show_queries(const void* q, size_t tokens) const;
  QueryNote query_note(size_t tokens) const { return queries_.note(this->tokens(), tokens); }
  /// The mass of a chunk's last queries.
  void add_mass(const CausalCall& call, ChunkSpace& space) const;
  /// `count` of the body's rows from `first` on, none of which is packed unless all are.
  KeepCall keep_call(size_t first, size_t count) const;
  /// Where rows stand that are coded now.
  RowPositions positions_of(JudgedRows& rows) const;
  /// Where the step's mass goes: `rows` with the step's own.
  MassTarget mass_target(size_t rows, bool fresh) const;

  LayerPlan layer_;
  LayerSite site_;
  Plan plan_;
  RowRun run_;
  LateJudgements late_;
  std::shared_ptr<const DeviceChooser> chooser_;
  Copied<CodedStore> coded_;  // of rows of the run; null: there all are dense
  Copied<BodyStore> body_;    // of what leaves the heavy rows or flows, or null
  DenseStore sink_;           // where rows flow
  DenseStore rows_;
  Slab turned_;  // [G, sink, D] the sink's keys, where positions are the cache's
  HeadQueries queries_;
  RowSides sides_;  // positions: of the body's first rows; mass: of the run's and packed ones
  ProtectedStore protected_;
  Copied<RaggedStore> ragged_;  // null: heads have as many rows
};

}  // namespace pith::cuda
