#pragma once
// Hopper's warpgroup products (wgmma, sm_90a), barriers in shared memory and register shares. Tiles
// in shared memory are blocks of 64 channels, each row 128 bytes whose 16-byte pieces are permuted
// by the row's number (the 128-byte swizzle); blocks begin at multiples of 1024 bytes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace pith::cuda {

/// Where 16-byte piece `piece` of row `row` lies in a tile of `rows` rows.
__device__ inline int swizzled_at(int rows, int row, int piece) {
  return (piece / 8 * rows + row) * 128 + (((piece ^ row) & 7) << 4);
}

/// A tile's descriptor: its first byte, bytes between blocks of 64 channels; 8 rows take 1024
/// bytes.
__device__ inline uint64_t tile_descriptor(const void* shared, int block_bytes) {
  const auto at = static_cast<uint64_t>(__cvta_generic_to_shared(shared));
  return ((at & 0x3ffff) >> 4) | static_cast<uint64_t>(block_bytes >> 4) << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
/// The same tile `bytes` further on.
__device__ inline uint64_t advance(uint64_t descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}

__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Ties registers to this place in the program: products write them behind the compiler's back.
template <int N>
__device__ inline void pin(float (&d)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+f"(d[i][j])::"memory");
  }
}

// clang-format off
#define PITH_SCORES_128(NUMBER)                                                \
  asm volatile(                                                                \
      "{\n"                                                                    \
      ".reg .pred p;\n"                                                        \
      "setp.ne.b32 p, %66, 0;\n"                                               \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." NUMBER "." NUMBER " {"    \
      "%0, %1, %2, %3, %4, %5, %6, %7, "                                       \
      "%8, %9, %10, %11, %12, %13, %14, %15, "                                 \
      "%16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31, "                               \
      "%32, %33, %34, %35, %36, %37, %38, %39, "                               \
      "%40, %41, %42, %43, %44, %45, %46, %47, "                               \
      "%48, %49, %50, %51, %52, %53, %54, %55, "                               \
      "%56, %57, %58, %59, %60, %61, %62, %63}, "                              \
      "%64, %65, p, 1, 1, 0, 0;\n}\n"                                          \
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),            \
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),            \
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),            \
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),            \
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),            \
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),            \
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),            \
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),            \
        "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),            \
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),            \
        "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]),        \
        "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),        \
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),        \
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),        \
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),        \
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])         \
      : "l"(a), "l"(b), "r"(keep));
// clang-format on
/// d (+)= a b: a 64 rows of A, b 128 rows whose channels are summed over (16 of them).
template <class T>
__device__ inline void multiply_tiles(float (&d)[16][4], uint64_t a, uint64_t b, int keep) {
  if constexpr (std::is_same_v<T, __half>) {
    PITH_SCORES_128("f16");
  } else {
    PITH_SCORES_128("bf16");
  }
}
#undef PITH_SCORES_128

// clang-format off
#define PITH_VALUES_128(NUMBER)                                                \
  asm volatile(                                                                \
      "{\n"                                                                    \
      ".reg .pred p;\n"                                                        \
      "setp.ne.b32 p, 1, 0;\n"                                                 \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." NUMBER "." NUMBER " {"    \
      "%0, %1, %2, %3, %4, %5, %6, %7, "                                       \
      "%8, %9, %10, %11, %12, %13, %14, %15, "                                 \
      "%16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31, "                               \
      "%32, %33, %34, %35, %36, %37, %38, %39, "                               \
      "%40, %41, %42, %43, %44, %45, %46, %47, "                               \
      "%48, %49, %50, %51, %52, %53, %54, %55, "                               \
      "%56, %57, %58, %59, %60, %61, %62, %63}, "                              \
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"                            \
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),            \
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),            \
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),            \
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),            \
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),            \
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),            \
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),            \
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),            \
        "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),            \
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),            \
        "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]),        \
        "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),        \
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),        \
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),        \
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),        \
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
// clang-format on
/// d += a b: a in registers, b 16 rows of 128 channels; rows are summed over.
template <class T>
__device__ inline void multiply_values(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (std::is_same_v<T, __half>) {
    PITH_VALUES_128("f16");
  } else {
    PITH_VALUES_128("bf16");
  }
}
#undef PITH_VALUES_128

// clang-format off
#define PITH_VALUES_64(NUMBER)                                                 \
  asm volatile(                                                                \
      "{\n"                                                                    \
      ".reg .pred p;\n"                                                        \
      "setp.ne.b32 p, 1, 0;\n"                                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." NUMBER "." NUMBER " {"     \
      "%0, %1, %2, %3, %4, %5, %6, %7, "                                       \
      "%8, %9, %10, %11, %12, %13, %14, %15, "                                 \
      "%16, %17, %18, %19, %20, %21, %22, %23, "                               \
      "%24, %25, %26, %27, %28, %29, %30, %31}, "                              \
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"                            \
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),            \
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),            \
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),            \
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),            \
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),            \
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),            \
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),            \
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
// clang-format on
/// The same, 64 channels.
template <class T>
__device__ inline void multiply_values(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (std::is_same_v<T, __half>) {
    PITH_VALUES_64("f16");
  } else {
    PITH_VALUES_64("bf16");
  }
}
#undef PITH_VALUES_64

/// A barrier in shared memory. Phases alternate: wait(0) first.
struct SharedBarrier {
  uint64_t state;

  __device__ uint32_t address() { return static_cast<uint32_t>(__cvta_generic_to_shared(&state)); }
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(address())
                 : "memory");
  }
  /// Arrives when this thread's copies so far have.
  __device__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address())
                 : "memory");
  }
  __device__ void wait(int phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again%=:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
        "@done bra end%=;\n"
        "bra again%=;\n"
        "end%=:\n"
        "}\n" ::"r"(address()),
        "r"(phase)
        : "memory");
  }
};
/// What was written to shared memory before is seen by products after.
__device__ inline void publish_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace pith::cuda
