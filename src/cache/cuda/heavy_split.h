#pragma once
// Selections of heavy rows (select/cuda/heavy.h): the lightest leave, for the run's body or for one
// of its own. All of a pass are one, before any of its steps is carried out.

#include <span>
#include <vector>

#include "cache/cuda/run_codes.h"

namespace pith::cuda {

class HeavySplit {
 public:
  HeavySplit(HeadStores& stores, ChunkSpace& space) : s_(stores), space_(space) {}

  /// All splits among the steps. Returns whether `late` has the rest of the pass's work too, on
  /// rows in codes.
  bool carry_out(std::span<const Step> steps, bool chunk, LateWork& late);

 private:
  /// In rows of each head, of all selections of a pass.
  struct Splits {
    size_t stay = 0, leave = 0;
    size_t all() const { return stay + leave; }
  };
  /// Where rows wait for a body to take them: from to.row on.
  struct Staged {
    RowTarget to;
    int32_t* positions = nullptr;  // [G, stride]
    size_t stride = 0;
  };

  void split_in_run(const Splits& splits, HeavyCall choice, const KeepCall& call);
  /// Rows in codes that were selected from leave for the body; `chunk`: those behind become codes
  /// with the split.
  void split_to_body(const Splits& splits, const HeavyCall& choice, KeepCall call, bool chunk,
                     LateWork& late);
  Staged stage(const Splits& splits, std::vector<BodyMove>& moves);

  HeadStores& s_;
  ChunkSpace& space_;
};

}  // namespace pith::cuda
