#pragma once
// sink | body | window in one run of dense rows: a row that leaves the window stays where it lies,
// and counts as the body's. When the body has outgrown its budget, the best rows move to its front
// and all later ones follow. Attention sees one span, or three where rows that stayed have a
// weight.

#include "cache/cuda/device_rows.h"
#include "cache/cuda/layer_rows.h"

namespace pith::cuda {

class SelectedRows final : public LayerRows {
 public:
  SelectedRows(const LayerPlan& plan, const LayerSite& site);
  SelectedRows(const SelectedRows& other);

  std::unique_ptr<LayerRows> clone() const override {
    return std::make_unique<SelectedRows>(*this);
  }
  size_t spans() const override { return rule_->weighted() ? 3 : 1; }
  RowTarget begin_token(const TokenSlots& slots) override;
  void attend_token(const TokenStep& step) const override;
  void end_token(ChunkSpace& space, std::vector<BodyMove>& moves) override;
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space) override;
  void attend_chunk(CausalCall call, ChunkSpace& space) override;
  void end_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) override;
  void end_prefill(ChunkSpace& space) override;
  void add_rows(pith::HeadRows& rows, size_t head) const override;
  size_t tokens() const override { return tokens_; }
  void add_to(Ledger& ledger) const override;

 private:
  /// Rows of a head that attention has a span of its own for: the sink, what stayed, the rest.
  struct Parts {
    size_t sink, kept, all;
  };
  Parts parts(size_t tokens) const;
  void reserve(size_t rows);
  void make_side(size_t stride, const SelectedRows& from);
  /// Rows enter the body as they leave the window; it is judged as often as it outgrows its budget.
  void take(size_t tokens, ChunkSpace& space);
  void select(ChunkSpace& space);
  size_t until_selection() const;
  bool wants_mass() const { return rule_->mass(1, 1).queries > 0; }
  /// Where the step's mass goes: `rows` with the step's own.
  MassTarget mass_target(size_t rows, bool fresh) const;
  float log_weight() const { return judged_ > 0 ? rule_->log_weight(judged_at_) : 0; }

  LayerPlan plan_;
  LayerSite site_;
  std::shared_ptr<const ScoreRule> rule_;
  DeviceRows rows_;
  DeviceArray<int32_t> positions_;  // [G, stride] of the body's judged rows
  DeviceArray<float> mass_;         // [G, stride] of all rows
  size_t stride_ = 0;
  size_t tokens_ = 0;
  size_t seen_ = 0;                    ///< rows that have left the window
  size_t held_ = 0;                    ///< rows in the body of a head
  size_t judged_ = 0, judged_at_ = 0;  ///< those that stayed at the last selection, when seen_ was
};

}  // namespace pith::cuda
