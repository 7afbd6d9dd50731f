#pragma once
// Work that a pass's end leaves for later, to be given to the device with that of other layers and
// sessions: by itself a layer's would be launches of a few blocks each, one after the other.

#include <vector>

#include "cache/cuda/late_choice.h"
#include "cache/cuda/late_split.h"
#include "rows/cuda/coded_store.h"
#include "select/cuda/heavy.h"

namespace pith::cuda {

inline constexpr size_t kMostCodesApart = 64;  // places whose codes are in scratch memory at once

/// Rows that become codes.
struct LateCodes {
  std::vector<CodeWork> works;   ///< where they lie, or apart
  std::vector<KeepCall> behind;  ///< what lies behind them moves up then

  /// Gives the device both, of many places in one launch.
  void run(ChunkSpace& space, cudaStream_t stream);
  void clear();
};

struct LateWork {
  LateCodes before;                 ///< rows that are split or selected from then
  std::vector<HeavyWork> heavy;     ///< heavy rows that leave for bodies
  std::vector<SplitWork> splits;    ///< the same in codes
  std::vector<BodyMove> moves;      ///< rows that bodies take, once those have left
  LateCodes after;                  ///< other rows
  std::vector<ChoiceWork> choices;  ///< selections of rows in codes, once those are there

  /// The work of one cache, which stays where it is, comes here: codecs that are one code together.
  /// Rows that bodies do not take together with those of other caches are taken now.
  void join(LateWork& of_cache, ChunkSpace& space, cudaStream_t stream);
  /// Moves whose rows are in staging memory, each at a place of its own.
  size_t staged() const;
  // Any cache's scratch will do: they are of one model.
  /// Gives the device the selections of heavy rows, of many layers in one launch each.
  void select_heavy(ChunkSpace& space, cudaStream_t stream);
  /// Gives it these, then the moves: those of one kind go together.
  void take_moves(ChunkSpace& space, cudaStream_t stream);
  /// Gives it these, then codes and what follows them.
  void run(ChunkSpace& space, cudaStream_t stream);

 private:
  /// Codes and what follows them.
  void add(LateWork& of_cache);

  std::vector<LateWork*> joined_;  ///< their codes come here once the moves have been made
};

}  // namespace pith::cuda
