#include "attend/cuda/record_table.h"

#include "kernels/cuda/device_archive.h"

namespace pith::cuda {

void RecordTable::archive(Archive& a, const DeviceCodec& codec) {
  if (bytes_ == 0) return;
  a.number(used_, SIZE_MAX / 4, "more groups than there are bytes");
  a.check_left(used_, site_.heads * bytes_);
  a.number(capacity_, used_ + used_ / 4 + 4, "room for more groups than a table asks for");
  a.need(capacity_ >= used_, "more groups than there is room for");
  if (a.loads()) table_.allocate(site_.heads * capacity_ * bytes_, site_.stream);
  const DeviceRuns runs{table_.data(), used_ * bytes_, capacity_ * bytes_, site_.heads};
  archive_runs(a, runs, site_.stream, [&](std::span<const std::byte> bytes) {
    codec.check_loaded(a, {CodePartOf::kRecords, bytes, static_cast<int>(site_.dim), used_});
  });
}

}  // namespace pith::cuda
