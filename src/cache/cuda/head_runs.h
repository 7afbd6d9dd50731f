#pragma once
// A layer whose KV heads have different rules: heads side by side that share one are a run, with
// rows of its own (LayerRows), and each run attends with its own queries. New rows of all heads
// come to one place, from where each run copies its own.
//
// Cost beside the runs': a token's rows are copied once, by a launch a run; a chunk's rows, queries
// and results too; each run attends, and moves its rows, in launches of its own.

#include <memory>
#include <vector>

#include "cache/cuda/layer_rows.h"

namespace pith::cuda {

/// Neighbouring KV heads with one rule.
struct HeadRun {
  size_t first = 0;  ///< KV head
  LayerSite site;    ///< of its heads alone
  std::unique_ptr<LayerRows> rows;
};

class HeadRuns final : public LayerRows {
 public:
  /// `runs` have all heads of `site`, ascending.
  HeadRuns(std::vector<HeadRun> runs, const LayerSite& site);
  HeadRuns(const HeadRuns& other);

  std::unique_ptr<LayerRows> clone() const override { return std::make_unique<HeadRuns>(*this); }
  /// The most of any run; their spans lie one behind the other.
  size_t spans() const override;
  size_t notes() const override { return runs_.size(); }
  RowTarget begin_token(const TokenSlots& slots) override;
  void attend_token(const TokenStep& step) const override;
  bool begins_freely() const override;
  void end_token(ChunkSpace& space, LateWork& late) override;
  void write_spans(const TokenSlots& slots) override;
  void attend_held(CausalCall& call, ChunkSpace& space) override;
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space) override;
  /// The rows are appended too, run by run: runs use the space in turn.
  void attend_chunk(CausalCall call, ChunkSpace& space) override;
  void end_chunk(size_t, ChunkSpace&, std::vector<BodyMove>&) override {}
  void append_chunk(size_t tokens, ChunkSpace& space, std::vector<BodyMove>& moves) override;
  void end_prefill(ChunkSpace& space) override;
  void protect(const ProtectedRows& rows) override;
  void add_rows(HeadRows& rows, size_t head) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head) const override;
  std::span<const DeviceSpan> spans_of(const DeviceSpan* spans, size_t head) const override;
  size_t tokens() const override { return runs_.front().rows->tokens(); }
  void archive(Archive& a, const SeenStream& seen) override {
    for (HeadRun& run : runs_) run.rows->archive(a, seen);
  }
  void add_to(Ledger& ledger) const override;

 private:
  /// A chunk's rows of all heads, and one run's queries and results.
  struct Apart {
    RowTarget rows;
    std::byte *queries = nullptr, *result = nullptr;  // [T, H, D]
  };
  Apart apart(size_t tokens, ChunkSpace& space) const;
  /// One run's part of a call, its queries copied side by side.
  CausalCall call_of(const HeadRun& run, const CausalCall& all, const Apart& place) const;
  void copy_rows(const RowTarget& to, const RowTarget& from, const HeadRun& run,
                 size_t tokens) const;

  LayerSite site_;
  std::vector<HeadRun> runs_;
  DeviceBuffer token_;  // [2, G, D] a token's rows
};

/// A token's new rows of some heads to their place, which is read on the device.
struct TokenRowsCall {
  const void *k = nullptr, *v = nullptr;  // [heads, D] of 16 bits
  const RowTarget* to = nullptr;          // [1], on the device
  int heads = 0, dim = 0;
};
void copy_token_rows(const TokenRowsCall& call, cudaStream_t stream);

}  // namespace pith::cuda
