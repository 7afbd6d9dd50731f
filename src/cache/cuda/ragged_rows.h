#pragma once
// Rows of a layer's KV heads that share a budget, as judgements left them: heads have different
// numbers of them, one head's lie behind the other's, and nothing between. How many there are of
// all heads follows from counts; of each only the device knows until the host asks, which waits for
// the last judgement (docs/decisions/0191).
//
// A judgement is about these rows and fresh ones, equally many of each head, that lie elsewhere.
// What stays is written to new memory, and the old is given back.

#include "cache/cuda/layer_rows.h"
#include "compress/cuda/share.h"
#include "kernels/cuda/pinned.h"

namespace pith::cuda {

class RaggedRows {
 public:
  /// `mass`: rows carry attention mass.
  RaggedRows(const LayerSite& site, DType dtype, bool mass);
  RaggedRows(const RaggedRows& other);

  /// Of all heads together.
  size_t rows() const { return rows_; }
  /// [G]; waits.
  const std::vector<size_t>& counts() const { return told_->get(); }
  DeviceSpan span(size_t head) const;
  void attend_chunk(CausalCall& call) const;
  /// `fresh`: what they have is set to 0 first.
  MassTarget mass_target(bool fresh) const;
  /// Of these rows and the fresh ones behind them those stay that the chooser names for a step that
  /// heads share.
  void judge(const DeviceChooser& chooser, const Step& step, const JudgedRows& fresh,
             ChunkSpace& space);

  void add_rows(pith::HeadRows& rows, size_t head) const;
  void add_to(Ledger& ledger) const;

 private:
  /// Where heads are: as they stand, as a judgement sees them, as it leaves them.
  enum Places { kOne, kOther, kAll, kPlaces };
  int32_t* rows_at(int places) const {
    return static_cast<int32_t*>(places_.data()) + 2 * static_cast<size_t>(places) * site_.heads;
  }
  int32_t* begins_at(int places) const { return rows_at(places) + site_.heads; }
  RaggedHeads heads_at(int places) const { return {rows_at(places), begins_at(places)}; }
  void place(int places, const int32_t* from, int more) const;
  /// The rows and what lies beside them, of all heads.
  struct Lists {
    DeviceBuffer rows;       // [2, rows, D]
    DeviceBuffer positions;  // [rows] of int32_t
    DeviceBuffer mass;       // [rows] of float, or empty

    explicit Lists(MemoryCounter& memory)
        : rows(memory, MemoryKind::kPayload),
          positions(memory, MemoryKind::kMetadata),
          mass(memory, MemoryKind::kMetadata) {}
    std::byte* k() const { return static_cast<std::byte*>(rows.data()); }
    std::byte* v() const { return k() + rows.size() / 2; }
  };
  Lists lists(size_t rows) const;
  JudgedRows view() const;
  size_t begin_of(size_t head) const;

  LayerSite site_;
  DType dtype_;
  bool has_mass_;
  size_t rows_ = 0;
  int now_ = kOne;
  DeviceBuffer places_;  // [kPlaces, 2, G] of int32_t
  Lists held_;
  std::unique_ptr<ToldNumbers> told_;
};

}  // namespace pith::cuda
