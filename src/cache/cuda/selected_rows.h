#pragma once
// sink | body | window in one run of dense rows: a row that leaves the window stays where it lies,
// and counts as the body's. When the body has outgrown its budget, the best rows move to its front
// and all later ones follow. Attention sees one span, or three where rows that stayed have a
// weight.
//
// Codes of rows that are never judged again take those rows away from the body. Codecs that code
// rows alone take all of the body's rows instead, 32 at a time and all before a judgement: codes
// then come before the body's dense rows, fewer than 32. A judgement sees the rows as the codes
// give them back, and what stays moves as codes, so that no row is ever coded twice. Weights are
// then one array over the codes, the same for all heads, written after judgements.
//
// Heavy rows (compress/heavy.h) lie between the selector's rows and the window, in codes if those
// are. When their store is full, the lightest move to its front and count as the selector's from
// then on, or go into a body of its own.

#include "attend/cuda/coded_body.h"
#include "cache/cuda/device_rows.h"
#include "cache/cuda/layer_rows.h"
#include "cache/cuda/pinned_rows.h"

namespace pith::cuda {

/// Where rows wait for a body to take them: from to.row on.
struct StagedRows {
  RowTarget to;
  int32_t* positions = nullptr;  // [G, stride]
  size_t stride = 0;
};

class SelectedRows final : public LayerRows {
 public:
  SelectedRows(const LayerPlan& plan, const LayerSite& site);
  SelectedRows(const SelectedRows& other);

  std::unique_ptr<LayerRows> clone() const override {
    return std::make_unique<SelectedRows>(*this);
  }
  /// The sink, codes, each part and the rest; or one for all.
  size_t spans() const override {
    return (one_run() ? 1 : dense_parts() + (coded_ ? 1 : 0)) + (body_ ? 1 : 0) +
           (pinned_.any() ? 1 : 0);
  }
  RowTarget begin_token(const TokenSlots& slots) override;
  void attend_token(const TokenStep& step) const override;
  void end_token(ChunkSpace& space, std::vector<BodyMove>& moves) override;
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space) override;
  void attend_chunk(CausalCall call, ChunkSpace& space) override;
  void end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) override;
  void end_prefill(ChunkSpace& space) override;
  size_t layers_together() const override { return body_ ? body_->layers_together() : 1; }
  void check_protect() const override { check_protected_codes(plan_); }
  void protect(const ProtectedRows& rows) override { pinned_.protect(rows, plan_.schedule.sink); }
  void add_rows(pith::HeadRows& rows, size_t head) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head) const override;
  size_t tokens() const override { return tokens_ + pinned_.rows(); }
  void add_to(Ledger& ledger) const override;

 private:
  /// All dense rows have weight 1, and no codes lie between them.
  bool one_run() const { return rule_->parts() == 0 && !coded_; }
  size_t dense_parts() const { return packs() ? 2 : rule_->parts() + 2; }
  /// Whether rows that are judged are in codes; and how many of the body's are, the first.
  bool packs() const { return coded_ && (plan_.selector.heavy || !rule_->settles()); }
  size_t packed() const { return packs() ? coded_->rows() : 0; }
  /// How many of those stand behind the body's first `rows`.
  size_t packed_behind(size_t rows) const { return packed() - std::min(packed(), rows); }
  size_t coded_rows() const { return coded_ ? coded_->rows() : 0; }
  /// Whether codes have weights one by one; and what they have otherwise.
  bool weighs_codes() const { return packs() && rule_->parts() > 0; }
  float coded_log_weight() const { return packs() ? 0 : rule_->settled_log_weight(); }
  /// The weights of codes follow from counts, but for those of rules that weigh rows one by one.
  void write_weights() const;
  /// Rows of body and window that are not settled.
  size_t unsettled() const {
    return packed() + rows_.rows() - std::min(tokens_, plan_.schedule.sink);
  }
  /// Runs of dense rows of one weight, oldest first: the sink, then what lies behind the codes; the
  /// last holds the newest.
  std::vector<WeightedPart> parts(size_t tokens) const;
  void reserve(size_t rows);
  void make_scaled();
  void make_side(size_t stride, const SelectedRows& from);
  /// Rows enter the body as they leave the window.
  void take(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves);
  /// One of them comes to the rule.
  void enter(ChunkSpace& space);
  /// `fresh` of them come to the heavy store.
  void enter_heavy(size_t fresh, ChunkSpace& space, std::vector<BodyMove>& moves);
  /// The lightest of a full heavy store leave it: for the rule, or for the body.
  void evict(ChunkSpace& space, const StagedRows& staged);
  void evict_to_rule(const SelectSpace& lent, const KeepCall& call, ChunkSpace& space);
  /// `seen`: the store's rows as numbers.
  void evict_to_body(const SelectSpace& lent, KeepCall& call, const JudgedRows& seen,
                     const StagedRows& staged);
  void judge(Moment moment, ChunkSpace& space);
  void select(const Judgement& judgement, ChunkSpace& space);
  /// Settled rows go into the codes, and later ones follow up.
  void code_settled(ChunkSpace& space);
  /// Of the body's rows the first `count` are in codes from now on, if they were not.
  void pack(size_t count);
  /// Rows that are judged, from the body's row `first` on, as the codes give them back.
  void unpack(JudgedRows& rows, size_t first, ChunkSpace& space) const;
  /// Shows a step's queries to the rule.
  StepQueries queries_of(const void* q, size_t tokens) const;
  QueryNote query_note(size_t tokens) const;
  /// The mass of a chunk's last queries.
  void add_mass(const CausalCall& call, ChunkSpace& space) const;
  /// `count` of the body's rows from `first` on, none of which is packed unless all are.
  KeepCall keep_call(size_t first, size_t count) const;
  bool wants_mass() const {
    const auto& heavy = plan_.selector.heavy;
    return heavy ? heavy->by_mass() : rule_->wants_mass();
  }
  MassRequest mass_request(size_t tokens) const {
    const auto& heavy = plan_.selector.heavy;
    return heavy ? heavy->mass(tokens, heavy_) : rule_->mass(tokens, counts_);
  }
  /// Stores positions of the rows that have none yet, where they do not follow each other.
  void name_rows(JudgedRows& rows) const;
  /// Where rows stand that are coded now.
  RowPositions positions_of(JudgedRows& rows) const;
  /// Where the step's mass goes: `rows` with the step's own.
  MassTarget mass_target(size_t rows, bool fresh) const;

  LayerPlan plan_;
  LayerSite site_;
  std::shared_ptr<const ScoreRule> rule_;
  std::unique_ptr<CodedBody> coded_;  // null: all rows are dense
  std::unique_ptr<DeviceBody> body_;  // of what leaves the heavy store, or null
  DeviceRows rows_;
  // Of the body's first rows: `coded`, then `known_`.
  DeviceArray<int32_t> positions_;  // [G, stride]
  DeviceArray<float> mass_;         // [G, stride] of all rows
  DeviceArray<float> weights_;      // [stride] of codes, or of rows that their rule weighs
  DeviceArray<float> state_;        // what the rule keeps of queries
  DeviceBuffer scaled_;             // [H, D] a token's queries, for rules that scale them
  size_t stride_ = 0;
  PinnedRows pinned_;
  size_t tokens_ = 0;  // that are not protected
  BodyCounts counts_;
  size_t heavy_ = 0;  // rows in the heavy store
  size_t known_ = 0;  // rows with a stored position: those judged, and those that were full stores'
};

}  // namespace pith::cuda
