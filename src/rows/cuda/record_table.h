#pragma once
// Records: parts of codes that groups of rows share and each row names by a number
// (DeviceCodec::record_bytes), of all KV heads of a body. Groups lose their rows one by one; a
// record that no row names any more is found when room is needed, and those that are named move
// together. Only the device knows their number: it is waited for then, once in many groups, since
// room for a quarter more is asked for.

#include "kernels/cuda/slab.h"
#include "rows/cuda/body_store.h"
#include "rows/cuda/device_codec.h"
#include "rows/cuda/store_room.h"

namespace pith::cuda {

class RecordTable {
 public:
  RecordTable(const DeviceCodec& codec, const StoreSite& site)
      : site_(site),
        table_(*site.memory, MemoryKind::kMetadata, {site.heads, codec.record_bytes(), true},
               site.stream) {}

  /// Makes room for `fresh` records. `rows` [G, `count`] name those that are there.
  void reserve(size_t fresh, const DeviceCodec& codec, const CodeBlocks& rows, size_t count);
  /// The most that it comes to take with `fresh` more, while `most` rows at most name any, and
  /// `at_once` come together at most.
  struct Named {
    size_t most = 0, at_once = 0;
  };
  StoreRoom room(size_t fresh, const Named& rows) const;
  /// So many are there from now on.
  void add(size_t fresh) { used_ += fresh; }

  void* data() const { return table_.at(); }  // [G, stride()]
  const void* of_head(size_t head) const { return table_.at(head); }
  size_t stride() const { return table_.capacity(); }
  size_t used() const { return used_; }
  size_t held_bytes() const { return site_.heads * used_ * table_.unit(); }
  size_t allocated_bytes() const { return table_.allocated_bytes(); }
  /// How much room there is decides when records are numbered anew, and is state.
  void archive(Archive& a, const DeviceCodec& codec);

 private:
  /// Room for `needed` records in groups of `block` rows.
  size_t grown(size_t needed, size_t block) const;
  /// Numbers those that are named anew, from 0; how many that are in the head with the most. Waits.
  size_t find(const DeviceArray<int32_t>& numbers, const DeviceCodec& codec, const CodeBlocks& rows,
              size_t count) const;

  StoreSite site_;
  Slab table_;       // [G, capacity] records
  size_t used_ = 0;  // of a head
};

}  // namespace pith::cuda
