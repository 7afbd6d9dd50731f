#pragma once
// sink | body | window in one run of dense rows, as a plan's steps say (src/plan): a row that
// leaves the window stays where it lies, and counts as the body's. At a judgement the rows that
// stay move to the front of those that were judged, and all later ones follow. Attention sees one
// span, or more where rows that stayed have weights. Exact attention is the case in which nothing
// is ever judged.
//
// Codes of rows that are never judged again take those rows away from the body. Codecs that code
// rows alone take all of the body's rows instead, 32 at a time and all before a judgement: codes
// then come before the body's dense rows, fewer than 32. A judgement sees the rows as the codes
// give them back, and what stays moves as codes, so that no row is ever coded twice. Weights are
// then one array over the codes, the same for all heads, written after judgements.
//
// Heavy rows (compress/heavy.h) lie between the body and the window, in codes if that is. At a
// split the lightest move to their front and count as the body's from then on, or go into a body of
// its own that carries out the steps that follow.
//
// Where heads share a budget what a judgement leaves lies apart, ragged (RaggedRows), and the
// body's rows in the run are those that came since.
//
// A judgement of rows that join, whose outcome does not depend on when it comes, waits for others
// of its kind: up to 31 rows that the plan has dropped are then still there, exact and with weight
// 1, until the chunk ends, or the prompt.

#include "attend/cuda/coded_body.h"
#include "attend/cuda/device_rows.h"
#include "cache/cuda/layer_rows.h"
#include "cache/cuda/protected_store.h"
#include "cache/cuda/ragged_rows.h"
#include "plan/row_run.h"

namespace pith::cuda {

/// Where rows wait for a body to take them: from to.row on.
struct StagedRows {
  RowTarget to;
  int32_t* positions = nullptr;  // [G, stride]
  size_t stride = 0;
};

/// Rows of one weight, in the run's order.
struct WeightedPart {
  size_t rows = 0;
  float log_weight = 0;
  bool apart = false;  ///< each row has its own: see DeviceChooser::weighs_rows
};

class InPlaceRows final : public LayerRows {
 public:
  InPlaceRows(const LayerPlan& plan, const LayerSite& site);
  InPlaceRows(const InPlaceRows& other);

  std::unique_ptr<LayerRows> clone() const override { return std::make_unique<InPlaceRows>(*this); }
  /// The sink, codes, each part and the rest; or one for all.
  size_t spans() const override {
    return (one_run() ? 1 : dense_parts() + (coded_ ? 1 : 0)) + (body_ ? body_->spans() : 0) +
           (protected_.any() ? 1 : 0) + (ragged_ ? 1 : 0);
  }
  size_t notes() const override { return ragged_ ? 2 : 1; }
  RowTarget begin_token(const TokenSlots& slots) override;
  void attend_token(const TokenStep& step) const override;
  bool begins_freely() const override;
  void end_token(ChunkSpace& space, LateWork& late) override;
  void write_spans(const TokenSlots& slots) override { write_spans(slots, 0, false); }
  void attend_held(CausalCall& call, ChunkSpace& space) override;
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space) override;
  void attend_chunk(CausalCall call, ChunkSpace& space) override;
  void end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) override;
  void append_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) override;
  void end_prefill(ChunkSpace& space) override;
  size_t layers_together() const override { return body_ ? body_->layers_together() : 1; }
  void protect(const ProtectedRows& rows) override;
  void add_rows(HeadRows& rows, size_t head) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head) const override;
  size_t tokens() const override { return plan_.state().tokens; }
  void archive(Archive& a, const SeenStream& seen) override;
  void add_to(Ledger& ledger) const override;

 private:
  /// Which of the rows that the plan keeps lie where; checked.
  void archive_counts(Archive& a);
  /// What lies beside rows.
  void archive_sides(Archive& a);
  /// Tokens that are not protected; and how many of those the sink has.
  size_t open() const { return plan_.state().open; }
  size_t sink() const { return plan_.state().at(Zone::kSink); }
  /// All dense rows have weight 1, and no codes lie between them.
  bool one_run() const { return chooser_->weights() == 0 && !coded_; }
  size_t dense_parts() const { return packs() ? 2 : chooser_->weights() + 2; }
  /// Whether rows that are judged are in codes; and how many of the body's are, the first.
  bool packs() const { return coded_ && (layer_.selector.heavy || !chooser_->settles()); }
  size_t packed() const { return packs() ? coded_->rows() : 0; }
  /// How many of those stand behind the run's first `rows`.
  size_t packed_behind(size_t rows) const { return packed() - std::min(packed(), rows); }
  size_t coded_rows() const { return coded_ ? coded_->rows() : 0; }
  /// The body's first rows that are in codes for good, and are no part of the run any more.
  size_t settled() const { return packs() ? 0 : coded_rows(); }
  /// What heads have on average of the body's first rows in ragged_.
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
  size_t unsettled() const { return packed() + rows_.rows() - sink(); }
  /// Runs of dense rows of one weight, oldest first: the sink, then what lies behind the codes; the
  /// last holds the newest. `fresh` rows are about to come, `to_sink` of them to the sink.
  struct Parts {
    std::array<WeightedPart, kMostWeights + 2> part;
    size_t count = 1;
    std::span<const WeightedPart> all() const { return {part.data(), count}; }
  };
  Parts parts(size_t fresh, size_t to_sink) const;
  /// As a chunk of `tokens` sees them, with their rows: those of one weight side by side are one.
  Parts parts_of_chunk(size_t tokens) const;
  /// With `fresh` rows of the run, or one of the protected.
  void write_spans(const TokenSlots& slots, size_t fresh, bool is_protected) const;
  /// Begins a chunk's attention: all but the run and the codes in it.
  void attend_beside(CausalCall& call, ChunkSpace& space) const;
  /// Goes on with those; `own`: the chunk's rows are the last of them, and that ends it.
  void attend_run(CausalCall& call, const Parts& parts, bool own, ChunkSpace& space) const;
  /// The call's queries as attention takes them.
  void scale_chunk(CausalCall& call, ChunkSpace& space) const;
  void reserve(size_t rows);
  /// What that needs: rows in the run, and what lies beside all rows.
  size_t run_needs(size_t rows) const;
  size_t side_needs(size_t rows) const { return coded_rows() + rows_.rows() + rows; }
  void make_scaled();
  void make_side(size_t stride, const InPlaceRows& from);
  /// What a pass's steps do to rows that are there already.
  void carry_out(std::span<const Step> steps, bool chunk, ChunkSpace& space, LateWork& late);
  void carry_out(const Step& step, StagedRows& staged, ChunkSpace& space);
  /// Memory where the rows of all splits wait for the body to take them.
  StagedRows stage(std::span<const Step> steps, ChunkSpace& space, std::vector<BodyMove>& moves);
  /// The lightest of the heavy rows leave them: for the run's body, or for that of its own.
  void split(const Step& step, const StagedRows& staged, ChunkSpace& space);
  void split_in_run(const Step& step, const SelectSpace& lent, const KeepCall& call,
                    ChunkSpace& space);
  /// What was chosen of heavy rows, in memory that was lent.
  struct HeavyChoice {
    const SelectSpace& lent;
    const KeepCall& call;
    const JudgedRows& seen;  ///< the rows as numbers
  };
  void split_to_body(const Step& step, const HeavyChoice& choice, const StagedRows& staged);
  /// Some of the body's last rows stay.
  void select(const Step& step, ChunkSpace& space);
  /// Some of the body's rows stay, of each head as many as the device finds.
  void share(const Step& step, ChunkSpace& space);
  SeenQueries seen_queries() const;
  /// Settled rows go into the codes, and later ones follow up.
  void code_settled(ChunkSpace& space);
  /// Of the body's rows the first `count` are in codes from now on, if they were not; with `late`
  /// the work may be left there, if nothing else of the pass looks at them.
  void pack(size_t count, LateWork* late = nullptr);
  /// Rows that are judged, from the body's row `first` on, as the codes give them back.
  void unpack(JudgedRows& rows, size_t first, DType dtype, ChunkSpace& space) const;
  /// Shows a step's queries to the rule.
  StepQueries queries_of(const void* q, size_t tokens) const;
  QueryNote query_note(size_t tokens) const;
  /// The mass of a chunk's last queries.
  void add_mass(const CausalCall& call, ChunkSpace& space) const;
  /// `count` of the body's rows from `first` on, none of which is packed unless all are.
  KeepCall keep_call(size_t first, size_t count) const;
  bool wants_mass() const { return wants_mass_; }
  /// Stores positions of the rows that have none yet, where they do not follow each other.
  void name_rows(JudgedRows& rows) const;
  /// Where rows stand that are coded now.
  RowPositions positions_of(JudgedRows& rows) const;
  /// Where the step's mass goes: `rows` with the step's own.
  MassTarget mass_target(size_t rows, bool fresh) const;

  LayerPlan layer_;
  LayerSite site_;
  Plan plan_;
  RowRun run_;
  LateJudgements late_;
  bool wants_mass_;
  std::shared_ptr<const DeviceChooser> chooser_;
  std::unique_ptr<CodedBody> coded_;  // null: all rows are dense
  std::unique_ptr<DeviceBody> body_;  // of what leaves the heavy rows, or null
  DeviceRows rows_;
  // Of the body's first rows: those settled, then `known_`.
  DeviceArray<int32_t> positions_;  // [G, stride]
  DeviceArray<float> mass_;         // [G, stride] of all rows
  DeviceArray<float> weights_;      // [stride] of codes, or of rows that are weighed one by one
  DeviceArray<float> state_;        // what the chooser keeps of queries
  DeviceBuffer scaled_;             // [H, D] a token's queries, where they are scaled
  size_t stride_ = 0;
  ProtectedStore protected_;
  std::unique_ptr<RaggedRows> ragged_;  // null: heads have as many rows
  size_t known_ = 0;  // rows with a stored position: those judged, and those that were split
};

}  // namespace pith::cuda
