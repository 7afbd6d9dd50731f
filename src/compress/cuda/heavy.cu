#include "compress/cuda/heavy.h"

#include "compress/cuda/key_directions.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/order_key.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256, kSideThreads = 1024;

__device__ int32_t position_of(const JudgedRows& rows, int head, int row) {
  return row < rows.known ? rows.positions[head * rows.side_stride + row]
                          : static_cast<int32_t>(rows.first_position) + row - rows.known;
}

__global__ void __launch_bounds__(kThreads)
    keys_kernel(const __grid_constant__ JudgedRows rows, uint32_t* keys, size_t stride) {
  const int row = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y;
  if (row < rows.rows) {
    keys[head * stride + row] = key_of(rows.mass[head * rows.side_stride + row]);
  }
}

/// The first `count` rows of `kept` get the largest key: they stay whatever comes.
__global__ void __launch_bounds__(kThreads)
    stay_kernel(uint32_t* keys, const int32_t* kept, size_t stride, int count) {
  const int i = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y;
  if (i < count) keys[head * stride + kept[head * stride + i]] = ~0u;
}

/// Blocks (pieces of 16 bytes, head, keys or values).
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ GatherCall call, const int32_t* kept, size_t stride) {
  const JudgedRows& rows = call.rows;
  const int pieces = rows.dim / 8, head = blockIdx.y;
  const int at = blockIdx.x * kThreads + threadIdx.x, row = at / pieces, piece = at % pieces;
  if (row >= call.count) return;
  const int from = kept[head * stride + call.first + row];
  const bool values = blockIdx.z == 1;
  const auto* source = static_cast<const char*>(values ? rows.v : rows.k);
  auto* to = static_cast<char*>(values ? call.to.v : call.to.k);
  const auto* in = reinterpret_cast<const uint4*>(source + head * rows.head_stride * 2);
  auto* out = reinterpret_cast<uint4*>(to + head * call.to.head_stride * 2);
  out[(static_cast<size_t>(call.to.row) + row) * pieces + piece] =
      in[static_cast<size_t>(from) * pieces + piece];
  if (call.positions && !values && piece == 0) {
    call.positions[head * call.positions_stride + call.to.row + row] =
        position_of(rows, head, from);
  }
}

/// A block a head: through room of its own, since rows change places both ways. Rows that stay for
/// their keys alone carry no mass.
__global__ void __launch_bounds__(kSideThreads)
    sides_kernel(const __grid_constant__ JudgedRows rows, const __grid_constant__ SelectSpace space,
                 int stay) {
  const int head = blockIdx.x, leave = rows.rows - stay;
  const int32_t* kept = space.kept + head * space.stride;
  auto* positions = reinterpret_cast<int32_t*>(space.keys + head * space.stride);
  float* masses = space.logits + head * space.stride;
  float* mass = rows.mass ? rows.mass + head * rows.side_stride : nullptr;
  for (int i = threadIdx.x; i < rows.rows; i += kSideThreads) {
    const int from = kept[i < leave ? stay + i : i - leave];
    positions[i] = position_of(rows, head, from);
    if (mass) masses[i] = mass[from];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows.rows; i += kSideThreads) {
    rows.positions[head * rows.side_stride + i] = positions[i];
    if (mass) mass[i] = masses[i];
  }
}

}  // namespace

void choose_heavy(const SelectSpace& space, const JudgedRows& rows, const HeavySizes& sizes,
                  cudaStream_t stream) {
  const int stay = static_cast<int>(sizes.budget);
  const int by_mass = static_cast<int>(sizes.budget - sizes.by_key);
  if (sizes.by_mass()) {
    const dim3 grid((rows.rows + kThreads - 1) / kThreads, rows.heads);
    launch_kernel(keys_kernel, {grid, kThreads}, stream, "the mass of heavy rows", rows, space.keys,
                  space.stride);
    choose_rows(space, rows.heads, rows.rows, by_mass, stream);
  }
  if (sizes.by_key == 0) return;
  score_directions(space, rows, stream);
  if (by_mass > 0) {
    const dim3 grid((by_mass + kThreads - 1) / kThreads, rows.heads);
    launch_kernel(stay_kernel, {grid, kThreads}, stream, "the choice of heavy rows", space.keys,
                  space.kept, space.stride, by_mass);
  }
  choose_rows(space, rows.heads, rows.rows, stay, stream);
}

void gather_rows(const SelectSpace& space, const GatherCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  const int pieces = call.count * (call.rows.dim / 8);
  const dim3 grid((pieces + kThreads - 1) / kThreads, call.rows.heads, 2);
  launch_kernel(gather_kernel, {grid, kThreads}, stream, "moving heavy rows", call, space.kept,
                space.stride);
}

void leave_first(const SelectSpace& space, const JudgedRows& rows, int stay, const RowTarget& room,
                 cudaStream_t stream) {
  const int leave = rows.rows - stay;
  GatherCall call{rows, stay, leave, room};
  call.to.row = 0;
  gather_rows(space, call, stream);
  call.first = 0;
  call.count = stay;
  call.to.row = leave;
  gather_rows(space, call, stream);
  const size_t bytes = static_cast<size_t>(rows.rows) * rows.dim * 2;
  const auto back = [&](void* to, const void* from) {
    check(cudaMemcpy2DAsync(to, rows.head_stride * 2, from, room.head_stride * 2, bytes, rows.heads,
                            cudaMemcpyDeviceToDevice, stream),
          "moving heavy rows");
  };
  back(rows.k, room.k);
  back(rows.v, room.v);
}

void leave_first_sides(const SelectSpace& space, const JudgedRows& rows, int stay,
                       cudaStream_t stream) {
  launch_kernel(sides_kernel, {rows.heads, kSideThreads}, stream, "moving heavy rows", rows, space,
                stay);
}

}  // namespace pith::cuda
