#include "rows/cuda/record_table.h"

#include <algorithm>

namespace pith::cuda {

size_t RecordTable::grown(size_t needed, size_t block) const {
  const size_t capacity = needed + needed / 4 + 4;
  if (site_.context == 0) return capacity;
  return std::clamp(site_.context / block + 1, needed, capacity);
}

// A record stays while a row names it; those that are not named any more are found when it grows.
StoreRoom RecordTable::room(size_t fresh, const Named& rows) const {
  if (table_.unit() == 0 || used_ + fresh <= stride()) return {};
  const size_t needed = std::min(used_ + fresh, rows.most + std::min(fresh, rows.at_once));
  StoreRoom room = StoreRoom::growth(table_, std::max(stride(), needed + needed / 4 + 4));
  room.passing += site_.heads * (std::max(stride(), needed) + 1) * sizeof(int32_t);  // numbers
  return room;
}

void RecordTable::archive(Archive& a, const DeviceCodec& codec) {
  if (table_.unit() == 0) return;
  size_t room = stride();
  a.number(used_, SIZE_MAX / 4, "more groups than there are bytes");
  a.check_left(used_, site_.heads * table_.unit());
  a.number(room, used_ + used_ / 4 + 4, "room for more groups than a table asks for");
  a.need(room >= used_, "more groups than there is room for");
  if (a.loads()) table_.renew(room);
  archive_runs(a, table_.runs(used_), site_.stream, [&](std::span<const std::byte> bytes) {
    codec.check_loaded(a, {CodePartOf::kRecords, bytes, static_cast<int>(site_.dim), used_});
  });
}

}  // namespace pith::cuda
