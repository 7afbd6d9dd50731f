#pragma once
// Hopper's warpgroup products (wgmma, sm_90a), barriers in shared memory and register shares. Tiles
// in shared memory are blocks of 64 channels, each row 128 bytes whose 16-byte pieces are permuted
// by the row's number (the 128-byte swizzle); blocks begin at multiples of 1024 bytes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace pith::cuda {

/// The part of a descriptor that is a tile's own, the low half: its first byte, and bytes between
/// blocks of 64 channels.
__device__ inline uint32_t tile_descriptor(const void* shared, int block_bytes) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return ((at & 0x3ffff) >> 4) | static_cast<uint32_t>(block_bytes >> 4) << 16;
}
/// With what all have in common: 8 rows take 1024 bytes, 128 of a row are permuted. Products take
/// either form: a whole one takes two uniform registers, the low half an instruction more.
__device__ inline uint64_t whole_descriptor(uint32_t descriptor) {
  return uint64_t{1024 >> 4 | 1 << 30} << 32 | descriptor;
}
__device__ inline uint64_t whole_descriptor(uint64_t descriptor) { return descriptor; }
/// The same tile `bytes` further on.
template <class Descriptor>
__device__ inline Descriptor advance(Descriptor descriptor, int bytes) {
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

// A product's asm names its operands one by one: 4 sums a lane of each 8 columns.
// clang-format off
#define PITH_NAMES_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define PITH_NAMES_32 PITH_NAMES_16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define PITH_NAMES_64 PITH_NAMES_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define PITH_NAMES_128 PITH_NAMES_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define PITH_SUMS_4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define PITH_SUMS_FROM(n) PITH_SUMS_4(n), PITH_SUMS_4(n + 1), PITH_SUMS_4(n + 2), PITH_SUMS_4(n + 3)
#define PITH_SUMS_16 PITH_SUMS_FROM(0)
#define PITH_SUMS_32 PITH_SUMS_16, PITH_SUMS_FROM(4)
#define PITH_SUMS_64 PITH_SUMS_32, PITH_SUMS_FROM(8), PITH_SUMS_FROM(12)
#define PITH_SUMS_128 PITH_SUMS_64, PITH_SUMS_FROM(16), PITH_SUMS_FROM(20), PITH_SUMS_FROM(24), PITH_SUMS_FROM(28)
// Of 64 rows and `COLUMNS` columns, A and B in shared memory; A, B and KEEP are operands' names.
#define PITH_TILES(NUMBER, COLUMNS, SUMS, A, B, KEEP)                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " KEEP ", 0;\n"                            \
               "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." NUMBER "." NUMBER " {" \
               PITH_NAMES_##SUMS "}, " A ", " B ", p, 1, 1, 0, 0;\n}\n"                     \
               : PITH_SUMS_##SUMS                                                           \
               : "l"(whole_descriptor(a)), "l"(whole_descriptor(b)), "r"(keep))
// A in registers, B's rows are summed over.
#define PITH_VALUES(NUMBER, COLUMNS, SUMS, A0, A1, A2, A3, B)                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                   \
               "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." NUMBER "." NUMBER " {" \
               PITH_NAMES_##SUMS "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, 1;\n}\n" \
               : PITH_SUMS_##SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), \
                 "l"(whole_descriptor(b)))
#define PITH_TILES_OF(COLUMNS, SUMS, A, B, KEEP)                                            \
  if constexpr (std::is_same_v<T, __half>) PITH_TILES("f16", COLUMNS, SUMS, A, B, KEEP);    \
  else PITH_TILES("bf16", COLUMNS, SUMS, A, B, KEEP)
#define PITH_VALUES_OF(COLUMNS, SUMS, A0, A1, A2, A3, B)                                    \
  if constexpr (std::is_same_v<T, __half>) PITH_VALUES("f16", COLUMNS, SUMS, A0, A1, A2, A3, B); \
  else PITH_VALUES("bf16", COLUMNS, SUMS, A0, A1, A2, A3, B)

/// d (+)= a b: a 64 rows of A, b 8 kN rows whose channels are summed over (16 of them).
template <class T, int kN, class Descriptor>
__device__ inline void multiply_tiles(float (&d)[kN][4], Descriptor a, Descriptor b, int keep) {
  static_assert(kN == 4 || kN == 8 || kN == 16);
  if constexpr (kN == 4) {
    PITH_TILES_OF("32", 16, "%16", "%17", "%18");
  } else if constexpr (kN == 8) {
    PITH_TILES_OF("64", 32, "%32", "%33", "%34");
  } else {
    PITH_TILES_OF("128", 64, "%64", "%65", "%66");
  }
}
/// d += a b: a in registers, b 16 rows of 8 kN channels; rows are summed over.
template <class T, int kN, class Descriptor>
__device__ inline void multiply_values(float (&d)[kN][4], const uint32_t (&a)[4], Descriptor b) {
  static_assert(kN == 8 || kN == 16 || kN == 32);
  if constexpr (kN == 8) {
    PITH_VALUES_OF("64", 32, "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (kN == 16) {
    PITH_VALUES_OF("128", 64, "%64", "%65", "%66", "%67", "%68");
  } else {
    PITH_VALUES_OF("256", 128, "%128", "%129", "%130", "%131", "%132");
  }
}
// clang-format on
#undef PITH_VALUES_OF
#undef PITH_TILES_OF
#undef PITH_VALUES
#undef PITH_TILES
#undef PITH_SUMS_128
#undef PITH_SUMS_64
#undef PITH_SUMS_32
#undef PITH_SUMS_16
#undef PITH_SUMS_FROM
#undef PITH_SUMS_4
#undef PITH_NAMES_128
#undef PITH_NAMES_64
#undef PITH_NAMES_32
#undef PITH_NAMES_16

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
  /// Arrives; `bytes` of bulk copies must come before the phase ends.
  __device__ void arrive_expecting(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
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
/// After init(), by the thread that did it: then copies and other blocks know the barriers too.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// A place in a ring of tiles, the same for who fills and who reads it.
template <int kStages>
struct RingPlace {
  uint32_t count = 0;
  __device__ uint32_t stage() const { return count % kStages; }
  __device__ uint32_t phase() const { return count / kStages % 2; }
};

template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace pith::cuda
