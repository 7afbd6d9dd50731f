#pragma once
// Where a group of rows and what is found of it lie while a thread block codes it.

#include <algorithm>

#include "rows/cuda/level_lane.cuh"
#include "rows/cuda/level_product.cuh"

namespace pith::cuda {

/// Where things lie in shared memory, for n rows.
template <int D>
struct GroupSpace {
  static size_t bytes(const PlacedSide& f) {
    const size_t n = f.group_rows();
    const size_t product = f.centred ? 0 : LevelProduct<D>::bytes(static_cast<int>(n), f.rank);
    return n * D * 4 + n * (D * f.bits / 8) + 16 + f.group_blocks * D * 8 + D * 8 +
           (n * f.apart * 5 + 15) / 16 * 16 + product;
  }
  char* shared;
  int n, bits, apart, blocks;

  __device__ float* rows() const { return reinterpret_cast<float*>(shared); }  // [n, D]
  __device__ uint32_t* codes() const {  // [n, D b / 32], and a word that may be read
    return reinterpret_cast<uint32_t*>(rows() + n * D);
  }
  __device__ float2* ranges() const {  // [blocks, D] minima and scales of channels
    return reinterpret_cast<float2*>(codes() + n * (D * bits / 32) + 4);
  }
  __device__ float2* spread() const { return ranges() + blocks * D; }  // [D] see find_spread
  __device__ float* missed() const {  // [n, apart] numbers apart, less what the codes say
    return reinterpret_cast<float*>(spread() + D);
  }
  __device__ uint8_t* channels() const {  // [n, apart]
    return reinterpret_cast<uint8_t*>(missed() + n * apart);
  }
  __device__ char* product() const {
    return reinterpret_cast<char*>(missed()) + (n * apart * 5 + 15) / 16 * 16;
  }
};

/// Blocks that a group is written to.
struct GroupTarget {
  char *codes, *sides;  // of its first block
  int side_stride;
  char* record = nullptr;  ///< this side's part of the group's record, if rows name it
  int number = 0;          ///< of its first rows: see level_format.h

  __device__ char* side(int row) const { return sides + row / kBlockRows * side_stride; }
  /// Number `i` of `part` in row's block.
  __device__ __half& half(int row, int part, int i) const {
    return reinterpret_cast<__half*>(side(row) + part)[i];
  }
};

/// Places that one launch takes.
struct LevelJobs {
  static constexpr size_t kMost = 32;
  CodeJob of[kMost];
};
/// launch(jobs, how many) of as many launches as it takes.
template <class Launch>
void for_jobs(std::span<const CodeJob> all, const Launch& launch) {
  for (size_t first = 0; first < all.size(); first += LevelJobs::kMost) {
    const size_t count = std::min(LevelJobs::kMost, all.size() - first);
    LevelJobs jobs;
    std::copy_n(all.begin() + static_cast<ptrdiff_t>(first), count, jobs.of);
    launch(jobs, count);
  }
}

/// Where the group is written whose first block is `block` of its job.
template <int D>
__device__ inline GroupTarget target_of(const CodeJob& job, const PlacedSide& f, int block) {
  const size_t head = blockIdx.y, at = head * job.block_stride + static_cast<size_t>(block);
  GroupTarget to{static_cast<char*>(job.codes) + at * f.code_bytes(D),
                 static_cast<char*>(job.side) + at * f.at.side, f.at.side};
  if (f.record_bytes == 0) return to;
  to.number = (job.first_record << f.record_shift) + block;
  const size_t record = head * job.record_stride + static_cast<size_t>(to.number >> f.record_shift);
  to.record = static_cast<char*>(job.records) + record * f.record_bytes + f.record_at;
  return to;
}

}  // namespace pith::cuda
