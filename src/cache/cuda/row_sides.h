#pragma once
// The numbers beside rows of KV heads on the GPU: positions of the first rows, attention mass of
// all, weights of those that are weighed one by one. They are in the rows' order, codes and dense
// rows alike, and move as the rows do (KeepCall, HeavyCall). Rows that follow each other need no
// position: from row named() on none is stored.

#include <vector>

#include "attend/cuda/mass.h"
#include "core/archive.h"
#include "kernels/cuda/slab.h"
#include "pith/ledger.h"
#include "rows/cuda/store_room.h"
#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

class RowSides {
 public:
  struct Shape {
    size_t heads = 0;      // G
    bool mass = false;     ///< rows carry attention mass
    bool weights = false;  ///< some have a weight each, which is the same in all heads
  };
  /// How many rows have a number of each kind beside their positions.
  struct Held {
    size_t with_mass = 0, weighed = 0;
  };

  RowSides(MemoryCounter& memory, const Shape& shape, cudaStream_t stream);

  bool has_mass() const { return shape_.mass; }
  /// Rows that there is room for: none where all rows stay.
  size_t capacity() const { return positions_.capacity(); }
  /// The memory of room for so many.
  StoreRoom room(size_t capacity) const;
  /// Room for so many, with the numbers of those that are there.
  void make_room(size_t capacity, const Held& held);
  size_t named() const { return named_; }
  /// The positions of the first `rows` rows are stored now.
  void name(size_t rows) { named_ = rows; }

  float* mass(size_t row) const { return shape_.mass ? mass_.at<float>(0, row) : nullptr; }
  float* weights() const { return weights_.at<float>(); }
  /// `count` rows weigh so much each, from row `first` on.
  void weigh(size_t first, size_t count, float log_weight) const {
    fill_numbers(weights_.at<float>(0, first), count, log_weight, stream_);
  }
  /// Nobody has attended to `count` rows from row `first` on.
  void clear_mass(size_t first, size_t count) const;
  /// The target's rows have their mass here, the first `known` already.
  void add_mass(MassTarget& target, size_t known) const;
  /// The numbers beside rows that are selected from: `position` and `mass` are the first's rows.
  void add_sides(CandidateRows& rows, size_t position, size_t mass) const;

  /// One head's positions; the first rows' weights. They wait.
  std::vector<int32_t> positions_of(size_t head) const;
  std::vector<float> log_weights(size_t rows) const;
  /// In a stream whose last position is `last`.
  void archive(Archive& a, const Held& held, int32_t last);
  void add_to(Ledger& ledger, const Held& held) const;

 private:
  Shape shape_;
  cudaStream_t stream_;
  Slab positions_;    // [G, capacity] of int32_t
  Slab mass_;         // [G, capacity] of float
  Slab weights_;      // [capacity] of float
  size_t named_ = 0;  // rows
};

}  // namespace pith::cuda
