#pragma once
// The body of one layer on the GPU: rows of all KV heads that have left the window, however they
// are kept. How many there are depends on counts alone, so that the host knows without asking; but
// for samples behind heavy rows, of which it asks once they have been taken.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attend/cuda/causal.h"
#include "attend/cuda/decode.h"
#include "core/archive.h"
#include "core/counted_by.h"
#include "kernels/cuda/layer.h"
#include "pith/error.h"
#include "pith/ledger.h"
#include "pith/rows.h"
#include "rows/cuda/store_room.h"

namespace pith::cuda {

class DeviceCodec;

/// Where a body lies, and the form of its rows.
struct StoreSite {
  CountedBy memory;
  cudaStream_t stream = nullptr;
  DType dtype = DType::kF16;  ///< of rows: kF16 or kBF16
  size_t heads = 0, dim = 0;  // G, D
  size_t context = 0;         ///< tokens expected; 0 = unknown
  int64_t position = 0;       ///< of the first row that comes, if those that follow it do
  std::shared_ptr<const DeviceCodec> codec = nullptr;  ///< of their rows; null: they are dense
  bool slides = false;  ///< rows are hidden: see BodyStore::hide_first
  bool shares = false;  ///< rows are coded in whole groups, which share something
};

class BodyStore;
class CodedStore;

/// Coded rows of one KV head. They are those that add_rows() tells from `first` on, in that order.
struct HeadCodes {
  const CodedStore* codes = nullptr;
  size_t head = 0;  ///< of the codes' heads
  size_t first = 0, rows = 0;
  size_t begin = 0;  ///< which of the head's codes is the first
};

/// Rows from.row, ... of all KV heads go into a body, which may write over them.
struct BodyMove {
  BodyStore* body = nullptr;
  RowTarget from;
  size_t rows = 0;
  int64_t position = 0;                ///< of the first row; the others follow it, or
  const int32_t* positions = nullptr;  // [G, positions_stride] of all rows
  size_t positions_stride = 0;         ///< 0: the same for all heads
  bool staged = false;                 ///< rows wait in the layer's own staging memory
  bool given_back = false;             ///< rows are what the body's codec gave back
};

class BodyStore {
 public:
  virtual ~BodyStore() = default;
  virtual std::unique_ptr<BodyStore> clone() const = 0;
  /// Bodies of one kind take rows together: equally many of each, unless numbers may differ.
  virtual std::string kind() const = 0;
  virtual bool numbers_may_differ() const { return false; }
  /// Also with those of other caches of its model, whose codecs of one name may not be one.
  virtual bool joins_caches() const { return false; }
  /// Rows held of one head, the most where heads differ; moves that were announced count.
  virtual size_t rows() const = 0;

  /// The most memory that it comes to take while rows come.
  virtual StoreRoom room(const ComingRows& coming) const = 0;
  /// Makes room for the rows of moves, which count as held from now on. They are taken later, by
  /// take(); until then the body is not attended to.
  virtual void announce(size_t rows) = 0;
  /// Rows that are announced at least, together: more than one where tables are made of them.
  virtual size_t least() const { return 0; }
  /// Heavy rows before it have learnt tables in this codec: they are its own too.
  virtual void follow(const std::shared_ptr<const DeviceCodec>& /*codec*/) {}
  /// The codec that is yet to learn from these rows; null: there is none.
  virtual const DeviceCodec* learning() const { return nullptr; }
  /// Positions that no row has that is announced after this, for bodies that look at positions.
  virtual void protect(std::span<const TokenRange> /*ranges*/) {}
  /// Takes what was announced, into bodies of this kind, in as few launches as it can.
  virtual void take(std::span<const BodyMove> moves) const = 0;
  /// Of all rows that ever came the first `count` are not attended to any more, and need not stay:
  /// for bodies whose site slides. Everything announced has been taken.
  virtual void hide_first(size_t /*count*/) {
    throw Error(ErrorCode::kInternal, "a body under a sliding window that hides no rows");
  }
  /// The type of rows that its codec gave back before they come: f16 keeps more of a code times its
  /// scale.
  virtual DType given_back() const { return DType::kF16; }
  /// Layers whose chunks are worth taking together; their rows wait in memory of their own.
  virtual size_t layers_together() const { return 1; }

  /// Spans a KV head; their number never changes.
  virtual size_t spans() const { return 1; }
  virtual DeviceSpan span(size_t head, size_t which) const = 0;
  /// Heads' spans differ in their first five addresses alone, which are equally far apart.
  virtual bool even() const { return true; }
  /// Decode attention over dense spans and this body's.
  virtual void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const = 0;
  /// A chunk's attention to the rows held, whose weights are those of `as` too, and `from`, where
  /// the site slides, is counted from the first row that ever came. `piece` is scratch
  /// for 8192 rows, always the same: what was added before it is called has been attended to.
  virtual void attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                            const std::function<RowTarget()>& piece) const = 0;

  /// Whether rows keep the positions that moves tell; else they are counted through.
  virtual bool keeps_positions() const { return false; }
  /// The rows of one head. `first_position`: of the first row that was taken, where rows do not
  /// keep theirs. Waits.
  virtual void add_rows(HeadRows& rows, size_t head, int64_t first_position) const = 0;
  /// Which of them are in codes; `first`: how many rows of the head were told before.
  virtual void add_codes(std::vector<HeadCodes>& /*codes*/, size_t /*head*/,
                         size_t /*first*/) const {}
  virtual void add_to(Ledger& ledger) const = 0;
  /// Everything that is here, once all that was announced has been taken. Loading: into a body that
  /// has seen nothing but what is protected, in a stream of `tokens`.
  virtual void archive(Archive& a, size_t tokens) = 0;
};

using BodyMaker = std::function<std::unique_ptr<BodyStore>(const StoreSite&)>;

}  // namespace pith::cuda
