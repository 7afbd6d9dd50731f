#include "rows/cuda/record_table.h"

namespace pith::cuda {

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
