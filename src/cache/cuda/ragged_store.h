#pragma once
// Rows of a layer's KV heads that share a budget, as selections left them: heads have different
// numbers of them, and one head's lie behind the other's, dense and with nothing between, or in
// codes, of which each head begins a block. How many there are of all heads follows from counts; of
// each only the device knows until the host asks, which waits for the last selection
// (docs/decisions/0191).
//
// A selection is about these rows and fresh ones, equally many of each head, that lie elsewhere.
// Rows that stay are written to new memory, and the old is given back. To the codec that memory is
// one head's: codes of rows that share nothing are the same in all of them.

#include "cache/cuda/chunk_space.h"
#include "core/copied.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/slab.h"
#include "rows/cuda/coded_store.h"
#include "select/cuda/share.h"

namespace pith::cuda {

class RaggedStore {
 public:
  /// `mass`: rows carry attention mass.
  RaggedStore(const LayerPlan& plan, const LayerSite& site, bool mass);

  /// Of all heads together.
  size_t rows() const { return rows_; }
  /// [G]; waits.
  const std::vector<size_t>& counts() const { return told_.get(); }
  DeviceSpan span(size_t head) const;
  void attend_chunk(ChunkAttention& attention) const;
  /// Mass of a token goes to dense rows, or to codes; `anew`: what they have is set to 0 first.
  MassTarget mass_target(bool anew) const;
  /// Of a chunk's queries, which see all rows.
  void add_chunk_mass(ChunkMass of, bool anew) const;

  /// The most that it comes to take: selections leave `stay` rows of each head on average, and are
  /// about `fresh` more.
  StoreRoom room(size_t stay, size_t fresh) const;
  /// Rows that are selected from behind those held, in `codes` if rows are.
  struct Fresh {
    const CandidateRows& rows;
    const CodedStore* codes = nullptr;
  };
  /// Those stay that the chooser names for a step that heads share.
  void select(const DeviceChooser& chooser, const Step& step, const Fresh& fresh,
              ChunkSpace& space);

  void add_rows(HeadRows& rows, size_t head) const;
  void add_codes(std::vector<HeadCodes>& codes, size_t head, size_t first) const;
  void add_to(Ledger& ledger) const;
  /// In a stream of `tokens`. Loading: each head has `least` rows, or there are none.
  void archive(Archive& a, size_t tokens, size_t least);

 private:
  /// Where heads are: as they stand, as a selection sees them, as it leaves them.
  enum Places { kOne, kOther, kAll, kPlaces };
  int32_t* rows_at(int places) const {
    return places_.at<int32_t>(2 * static_cast<size_t>(places));
  }
  int32_t* begins_at(int places) const { return rows_at(places) + site_.heads; }
  RaggedHeads heads_at(int places) const { return {rows_at(places), begins_at(places)}; }
  void place(int places, const int32_t* from, int more, size_t unit) const;
  /// Rows, and what lies beside them, of all heads.
  struct Lists {
    Slab rows;                 // [2, rows, D]
    Copied<CodedStore> codes;  // of one head; null: rows are dense
    Slab positions;            // [rows] of int32_t
    Slab mass;                 // [rows] of float, or empty

    explicit Lists(const LayerSite& site)
        : rows(*site.memory, MemoryKind::kPayload, {2, 2 * site.dim}, site.stream),
          positions(*site.memory, MemoryKind::kMetadata, {1, sizeof(int32_t)}, site.stream),
          mass(*site.memory, MemoryKind::kMetadata, {1, sizeof(float)}, site.stream) {}
  };
  std::unique_ptr<Lists> lists(size_t rows) const;
  size_t bytes_of(size_t rows) const;
  /// Where a head begins: a multiple of so many rows.
  size_t unit() const { return body_.codec ? size_t{kBlockRows} : 1; }
  /// Places of `rows` rows of all heads, whatever their shares.
  size_t most_places(size_t rows) const { return rows + site_.heads * (unit() - 1); }
  /// The rows of a body, borrowed.
  RowTarget unpacked(DeviceBuffer& room, const CodedStore& codes, size_t heads, DType dtype) const;
  void keep_codes(const LineUpCall& call, const CodedStore& fresh, Lists& kept) const;
  CandidateRows view() const;
  size_t begin_of(size_t head) const;
  size_t most() const;

  LayerSite site_;
  StoreSite body_;  // of codes
  bool has_mass_;
  size_t rows_ = 0;
  int now_ = kOne;
  Slab places_;  // [kPlaces, 2, G] of int32_t
  Copied<Lists> held_;
  ToldNumbers told_;
};

}  // namespace pith::cuda
