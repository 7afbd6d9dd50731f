#pragma once
// The rows of one layer on the GPU: stores of KV heads side by side, one list of heads a rule.
// Their spans for attention, and when they move.
//
// Where heads have different rules, ranges of neighbours attend to a token by forms (HeadForms).
// New rows of all heads come to one place, from where each range gets its own. Cost beside the
// stores': a token's rows are copied once, by one launch; a chunk's rows, queries and results too,
// by each range, which attends in launches of its own. One range alone costs nothing.

#include <functional>
#include <span>
#include <vector>

#include "cache/cuda/head_forms.h"
#include "cache/cuda/late_work.h"
#include "plan/protected_rows.h"

namespace pith::cuda {

class LayerRows {
 public:
  /// `runs` have all heads of `site`, ascending.
  LayerRows(std::vector<HeadRun> runs, const LayerSite& site);
  LayerRows(const LayerRows& other);
  ~LayerRows();

  /// A range's own stores are asked for all that needs no other range.
  std::span<const HeadRun> runs() const { return runs_; }
  const HeadRun& run_of(size_t head) const;
  size_t tokens() const;

  /// Where a token's spans and notes lie.
  const HeadForms& forms() const { return forms_; }
  /// A token's calls, and where the numbers of one are; `whole`: of all heads, and `targets` on the
  /// device.
  size_t calls() const { return forms_.size() + (alone() ? 0 : 1); }
  DecodePlace place_of(size_t call, const DecodePlace& whole, const RowTarget* targets) const;
  /// Whether there are such targets.
  bool has_targets() const { return !alone(); }
  /// The most memory that tokens take here, and of scratch memory: with `places` of all layers and
  /// caches of a step that go together.
  StoreRoom room(const ComingTokens& coming) const;
  SpaceAsked space_asked(const ComingTokens& coming, const ChunkSpace& space, size_t places) const;
  /// Makes room for one token; spans are told as they will be with its row in place.
  RowTarget begin_token(const TokenSlots& slots);
  /// Depends on nothing that changes from token to token.
  void attend_token(const TokenStep& step) const;
  /// Rows that go into the body now are named in `late`, as other work that may wait until all
  /// layers have ended; the caller lets it be done together, before the next pass. `named` is
  /// called behind each range's: what it staged stays in the space until it has been taken.
  using Named = std::function<void()>;
  void end_token(ChunkSpace& space, LateWork& late, const Named& named);

  /// The spans of what is held, for a query that stands behind it and brings no row.
  void write_spans(const TokenSlots& slots);
  /// A chunk's queries over the same: `call` is as attend_chunk's. Its `out`, which is scratch, has
  /// the result; `first` is still set if nothing is held.
  void attend_held(CausalCall& call, ChunkSpace& space);

  /// Where the chunk's rows go.
  RowTarget begin_chunk(size_t tokens, ChunkSpace& space);
  /// `call` lacks the spans and the partial results. Several runs append the rows too, one by one,
  /// and end the chunk: they use the space in turn. `late`, `named`: as end_token's.
  void attend_chunk(CausalCall call, ChunkSpace& space, LateWork& late, const Named& named);
  /// As end_token, of moves and heavy rows alone.
  void end_chunk(size_t tokens, ChunkSpace& space, LateWork& late);
  /// As end_chunk, of a chunk that nobody attended from; several runs end it here.
  void append_chunk(size_t tokens, ChunkSpace& space, LateWork& late, const Named& named);
  /// Layers, or ranges, whose moves at a chunk's end are worth taking together.
  size_t layers_together() const;
  /// Replaces the rows to protect; those of tokens already here must not change. its spans may grow
  /// in number.
  void protect(const ProtectedRows& rows);

 private:
  bool alone() const { return runs_.size() == 1; }
  HeadStores& only() const { return *runs_.front().stores; }
  void copy_token(const TokenStep& step) const;
  /// `end` names a range's late work.
  template <class End>
  void end_run(HeadRun& run, ChunkSpace& space, LateWork& late, const End& end);

  LayerSite site_;
  std::vector<HeadRun> runs_;
  HeadForms forms_;
  Slab token_;  // [2, G, D] a token's rows, of several runs
};

/// A token's new rows of all heads to their places. The place's q: rows [2, G, D] of 16 bits; its
/// note: RowTarget [G] on the device, of each head alone.
struct TokenRowsCall {
  DecodePlace place;
  int heads = 0, dim = 0;
  DecodeCompany batch = {};
};
void copy_token_rows(const TokenRowsCall& call, cudaStream_t stream);

}  // namespace pith::cuda
