#pragma once
// The CPU twin of src/kernels/cuda/wgmma.cuh: a warp of a warpgroup finds the 16 rows of a
// product that are its own, from the same descriptors and in the same layouts. Products are there
// when they start, which no kernel may rely on; that one does is not seen here.

#include <vector>

#include "kernels/cuda/ptx.cuh"

#define __CUDA_ARCH_FEAT_SM90_ALL

namespace pith::cuda {

inline uint32_t tile_descriptor(const void* shared, int block_bytes) {
  const auto* first = static_cast<const unsigned char*>(shared);
  const auto at = static_cast<uint64_t>(first - emulated::launched_shared);
  if (at % 1024) ::emulated::fail("a tile begins between multiples of 1024 bytes");
  return static_cast<uint32_t>(at >> 4) | static_cast<uint32_t>(block_bytes >> 4) << 16;
}
inline uint64_t whole_descriptor(uint32_t descriptor) { return descriptor; }
template <class Descriptor>
Descriptor advance(Descriptor descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}

inline void wgmma_begin() {}
inline void wgmma_commit() {}
template <int kPending>
void wgmma_wait() {}
template <int N>
void pin(float (&)[N][4]) {}

namespace emulated_wgmma {

/// Numbers first .. first + 7 of row `row` of the tile that a descriptor names.
template <class T>
void load_piece(float* to, uint32_t tile, int row, int first) {
  const uint64_t begin = (tile & 0x3fff) << 4, blocks = (tile >> 16 & 0x3fff) << 4;
  uint64_t place = begin + blocks * (first / 64) + uint64_t{128} * row + 2 * (first % 64);
  place ^= (place >> 7 & 7) << 4;  // the swizzle is of addresses
  if (place + 16 > sizeof emulated::launched_shared) ::emulated::fail("a product reads no tile");
  uint16_t numbers[8];
  std::memcpy(numbers, emulated::launched_shared + place, 16);
  emulated_ptx::widen<T>(to, numbers, 8);
}

/// A lane's part in a product: its sums, and A in registers, or the tile that holds it.
struct Part {
  float (*d)[4];
  const uint32_t* a;
  uint32_t a_tile, b_tile;
  int keep;
};

/// A [16, 16] of a warp of its warpgroup.
template <class T>
void load_a(float (&a)[16][16], const ::emulated::Warp& warp) {
  const auto of = [&](int lane) { return static_cast<const Part*>(warp.lane[lane]->slot); };
  const int first = static_cast<int>(warp.lane[0]->thread.x) / kWarp % 4 * 16;
  for (int row = 0; row < 16; ++row) {
    if (!of(0)->a) {
      for (const int k : {0, 8}) load_piece<T>(a[row] + k, of(0)->a_tile, first + row, k);
      continue;
    }
    uint16_t numbers[16];
    for (int k = 0; k < 16; k += 2)
      std::memcpy(numbers + k, of(row % 8 * 4 + k % 8 / 2)->a + k / 8 * 2 + row / 8, 4);
    emulated_ptx::widen<T>(a[row], numbers, 16);
  }
}

/// kTurned: B's rows are summed over, not their channels.
template <class T, int kN, bool kTurned>
void multiply(::emulated::Warp& warp, uint32_t who) {
  if (who != ~0u) ::emulated::fail("a product of a warpgroup needs all lanes of its warps");
  const auto of = [&](int lane) { return static_cast<const Part*>(warp.lane[lane]->slot); };
  float a[16][16], b[16][8 * kN], sums[16][8 * kN] = {};
  load_a<T>(a, warp);
  for (int row = 0; row < (kTurned ? 16 : 8 * kN); ++row) {
    for (int first = 0; first < (kTurned ? 8 * kN : 16); first += 8) {
      float piece[8];
      load_piece<T>(kTurned ? b[row] + first : piece, of(0)->b_tile, row, first);
      for (int k = 0; !kTurned && k < 8; ++k) b[first + k][row] = piece[k];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8 * kN; ++n) sums[row][n] += a[row][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const Part& to = *of(lane);
    for (int g = 0; g < kN; ++g) {
      for (int j = 0; j < 4; ++j) {
        const float sum = sums[lane / 4 + j / 2 * 8][8 * g + lane % 4 * 2 + j % 2];
        to.d[g][j] = to.keep ? to.d[g][j] + sum : sum;
      }
    }
  }
}

}  // namespace emulated_wgmma

template <class T, int kN, class Descriptor>
void multiply_tiles(float (&d)[kN][4], Descriptor a, Descriptor b, int keep) {
  emulated_wgmma::Part mine{d, nullptr, static_cast<uint32_t>(a), static_cast<uint32_t>(b), keep};
  ::emulated::meet(~0u, emulated_wgmma::multiply<T, kN, false>, &mine);
}
template <class T, int kN, class Descriptor>
void multiply_values(float (&d)[kN][4], const uint32_t (&a)[4], Descriptor b) {
  emulated_wgmma::Part mine{d, a, 0, static_cast<uint32_t>(b), 1};
  ::emulated::meet(~0u, emulated_wgmma::multiply<T, kN, true>, &mine);
}

/// A phase ends when all arrivals and all bytes have come.
struct SharedBarrier {
  int16_t expected, arrived;
  int32_t bytes : 31;  // still to come; may be below zero for a while
  uint32_t phase : 1;

  void init(int arrivals) {
    expected = static_cast<int16_t>(arrivals);
    arrived = 0;
    bytes = 0;
    phase = 0;
  }
  void arrive() {
    ++arrived;
    settle();
  }
  void arrive_expecting(uint32_t count) {
    bytes = bytes + static_cast<int32_t>(count);
    arrive();
  }
  void take(int count) {
    bytes = bytes - count;
    settle();
  }
  void wait(int parity) {
    while (phase == static_cast<uint32_t>(parity)) ::emulated::poll();
  }

 private:
  void settle() {
    ++::emulated::events;
    if (arrived > expected) ::emulated::fail("a barrier has more arrivals than it was made for");
    if (arrived < expected || bytes != 0) return;
    arrived = 0;
    phase = phase ^ 1;
  }
};
static_assert(sizeof(SharedBarrier) == 8);

template <int kStages>
struct RingPlace {
  uint32_t count = 0;
  uint32_t stage() const { return count % kStages; }
  uint32_t phase() const { return count / kStages % 2; }
};

inline void publish_barriers() {}
template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

}  // namespace pith::cuda
