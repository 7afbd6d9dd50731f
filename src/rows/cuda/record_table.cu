#include "kernels/cuda/launch.cuh"
#include "rows/cuda/record_table.h"

#include <algorithm>
#include <vector>

namespace pith::cuda {
namespace {

constexpr int kThreads = 128;

struct MoveRecords {
  const void* from;    // [heads, from_stride] records
  void* to;            // [heads, to_stride]
  const int* numbers;  // [heads, count] in `to`, or -1
  size_t from_stride, to_stride;
  int count, bytes;
};

/// A thread block a record, by pieces of 16 bytes.
__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ MoveRecords p) {
  const size_t head = blockIdx.y, i = blockIdx.x;
  const int number = p.numbers[head * p.count + i];
  if (number < 0) return;
  const auto* from = static_cast<const char*>(p.from) + (head * p.from_stride + i) * p.bytes;
  auto* to = static_cast<char*>(p.to) + (head * p.to_stride + number) * p.bytes;
  for (int at = threadIdx.x * 16; at < p.bytes; at += kThreads * 16) {
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
  }
}

}  // namespace

size_t RecordTable::find(const DeviceArray<int32_t>& numbers, const DeviceCodec& codec,
                         const CodeBlocks& rows, size_t count) const {
  const DeviceArray<int32_t> named(*site_.memory, MemoryKind::kScratch, site_.heads, site_.stream);
  FindRecordsCall call;
  call.rows = rows;
  call.heads = static_cast<int>(site_.heads);
  call.head_dim = static_cast<int>(site_.dim);
  call.count = static_cast<int>(count);
  call.records = static_cast<int>(used_);
  call.numbers = numbers.data();
  call.named = named.data();
  codec.find_records(call, site_.stream);
  std::vector<int32_t> counts(site_.heads);
  named.download(counts.data(), counts.size(), site_.stream);
  check(cudaStreamSynchronize(site_.stream), "records of coded rows");
  return static_cast<size_t>(*std::max_element(counts.begin(), counts.end()));
}

void RecordTable::reserve(size_t fresh, const DeviceCodec& codec, const CodeBlocks& rows,
                          size_t count) {
  if (table_.unit() == 0 || used_ + fresh <= stride()) return;
  const DeviceArray<int32_t> numbers(*site_.memory, MemoryKind::kScratch, site_.heads * used_,
                                     site_.stream);
  const size_t named = used_ > 0 ? find(numbers, codec, rows, count) : 0;
  const size_t needed = named + fresh, capacity = grown(needed, codec.block_rows());
  Slab table = table_.like();
  table.renew(capacity);  // a head that names fewer than another has room at its end: it is saved
  if (named > 0) {
    const MoveRecords move{table_.at(),
                           table.at(),
                           numbers.data(),
                           stride(),
                           capacity,
                           static_cast<int>(used_),
                           static_cast<int>(table_.unit())};
    const dim3 grid(static_cast<unsigned>(used_), static_cast<unsigned>(site_.heads));
    launch_kernel(move_kernel, {grid, kThreads}, site_.stream, "records of coded rows", move);
  }
  table_.swap(table);
  used_ = named;
}

}  // namespace pith::cuda
