#pragma once
// The instructions of src/kernels/cuda/ptx.cuh as meetings of a warp's lanes (layouts there).

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>

#include "emulated/kernel_language.h"

namespace pith::cuda {

inline constexpr int kWarp = 32;

namespace emulated_ptx {

/// n numbers of 16 bits, n a multiple of 8.
template <class T>
void widen(float* to, const uint16_t* from, int n) {
  for (int i = 0; i < n; i += 8) {
#ifdef __F16C__
    if constexpr (std::is_same_v<T, __half>) {
      _mm256_storeu_ps(
          to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
      continue;
    }
#endif
    for (int k = i; k < i + 8; ++k) {
      if constexpr (std::is_same_v<T, __half>) {
        to[k] = __half2float(__ushort_as_half(from[k]));
      } else {
        to[k] = std::bit_cast<float>(uint32_t{from[k]} << 16);
      }
    }
  }
}

/// A product's fragments: kA and kB words of 32 / kBits numbers.
template <class C, int kA, int kB>
struct Fragments {
  C* c;
  uint32_t a[kA], b[kB];
};

/// C [16, 8] += A B of `Number`s, which Widen makes Sums of.
template <class C, class Sum, class Number, class Widen, int kA, int kB>
void multiply(::emulated::Warp& warp, uint32_t who) {
  using Mine = Fragments<C, kA, kB>;
  if (who != ~0u) ::emulated::fail("a product of a warp needs all of its lanes");
  constexpr int kWords = 4 / sizeof(Number), kDepth = 4 * kWords * kB;  // numbers a word
  Number packed_a[16][kDepth], packed_b[kDepth][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& from = *static_cast<const Mine*>(warp.lane[lane]->slot);
    const int r = lane / 4, c = lane % 4;
    for (int half = 0; half < kB; ++half) {
      const int k = 4 * kWords * half + kWords * c;
      std::memcpy(packed_a[r] + k, from.a + 2 * half, 4);
      std::memcpy(packed_a[r + 8] + k, from.a + 2 * half + 1, 4);
      Number column[kWords];
      std::memcpy(column, from.b + half, 4);
      for (int i = 0; i < kWords; ++i) packed_b[k + i][r] = column[i];
    }
  }
  Sum a[16][kDepth], b[kDepth][8], sums[16][8] = {};
  Widen{}(a[0], packed_a[0], 16 * kDepth);
  Widen{}(b[0], packed_b[0], 8 * kDepth);
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    C* to = static_cast<Mine*>(warp.lane[lane]->slot)->c;
    for (int j = 0; j < 4; ++j) to[j] += sums[lane / 4 + j / 2 * 8][lane % 4 * 2 + j % 2];
  }
}

template <class T>
struct Halves {
  void operator()(float* to, const uint16_t* from, int n) const { widen<T>(to, from, n); }
};
struct Bytes {
  void operator()(int* to, const int8_t* from, int n) const { std::copy_n(from, n, to); }
};

template <class C, class Sum, class Number, class Widen, size_t kA, size_t kB>
void product(C* c, const std::array<uint32_t, kA>& a, const std::array<uint32_t, kB>& b) {
  Fragments<C, kA, kB> mine{c, {}, {}};
  std::copy(a.begin(), a.end(), mine.a);
  std::copy(b.begin(), b.end(), mine.b);
  ::emulated::meet(~0u, multiply<C, Sum, Number, Widen, kA, kB>, &mine);
}

/// Of words of 32 bits.
template <int kA, int kB>
void count_bits(::emulated::Warp& warp, uint32_t) {
  using Mine = Fragments<int, kA, kB>;
  const auto of = [&](int lane) { return static_cast<Mine*>(warp.lane[lane]->slot); };
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int j = 0; j < 4; ++j) {
      const int row = lane / 4, column = lane % 4 * 2 + j % 2;
      for (int c = 0; c < 4; ++c) {
        for (int half = 0; half < kB; ++half)
          of(lane)->c[j] +=
              std::popcount(of(4 * row + c)->a[2 * half + j / 2] & of(4 * column + c)->b[half]);
      }
    }
  }
}

/// Four matrices of 8 rows of 16 bytes.
struct Matrices {
  const void* row;
  uint32_t* to;
};
template <bool kTurned>
void load(::emulated::Warp& warp, uint32_t who) {
  if (who != ~0u) ::emulated::fail("loading matrices needs all lanes of a warp");
  const auto of = [&](int lane) { return static_cast<Matrices*>(warp.lane[lane]->slot); };
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int m = 0; m < 4; ++m) {
      const int r = lane / 4, c = lane % 4;
      uint16_t two[2];
      for (int i = 0; i < 2; ++i) {
        const int row = kTurned ? 2 * c + i : r, column = kTurned ? r : 2 * c + i;
        const auto* from = static_cast<const std::byte*>(of(8 * m + row)->row);
        std::memcpy(two + i, from + 2 * column, 2);
      }
      of(lane)->to[m] = uint32_t{two[1]} << 16 | two[0];
    }
  }
}
template <bool kTurned>
void load_four(uint32_t (&to)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16) ::emulated::fail("a row of a matrix is not aligned");
  Matrices mine{row, to};
  ::emulated::meet(~0u, load<kTurned>, &mine);
}

inline float without_subnormals(float x) {
  return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

}  // namespace emulated_ptx

template <class T>
void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
         uint32_t b1) {
  using namespace emulated_ptx;
  product<float, float, uint16_t, Halves<T>>(c, std::array{a0, a1, a2, a3}, std::array{b0, b1});
}
inline void mma_k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  using namespace emulated_ptx;
  product<float, float, uint16_t, Halves<__half>>(c, std::array{a0, a1}, std::array{b});
}
inline void mma_bytes(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                      uint32_t b1) {
  using namespace emulated_ptx;
  product<int, int, int8_t, Bytes>(c, std::array{a0, a1, a2, a3}, std::array{b0, b1});
}
inline void mma_bytes(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  using namespace emulated_ptx;
  product<int, int, int8_t, Bytes>(c, std::array{a0, a1}, std::array{b0});
}
inline void mma_bits(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_ptx::Fragments<int, 4, 2> mine{c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  ::emulated::meet(~0u, emulated_ptx::count_bits<4, 2>, &mine);
}
inline void mma_bits_k128(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  emulated_ptx::Fragments<int, 2, 1> mine{c, {a0, a1}, {b}};
  ::emulated::meet(~0u, emulated_ptx::count_bits<2, 1>, &mine);
}

inline uint32_t transpose_tile(uint32_t x) {
  struct Words {
    uint32_t given, taken;
  } mine{x, 0};
  ::emulated::meet(
      ~0u,
      [](::emulated::Warp& warp, uint32_t) {
        const auto of = [&](int lane) { return static_cast<Words*>(warp.lane[lane]->slot); };
        for (int lane = 0; lane < kWarp; ++lane) {
          const int row = lane / 4, column = lane % 4 * 2;
          const auto at = [&](int i, int j) {
            return of(4 * i + j / 2)->given >> 16 * (j % 2) & 0xffff;
          };
          of(lane)->taken = at(column + 1, row) << 16 | at(column, row);
        }
      },
      &mine);
  return mine.taken;
}

inline uint32_t select_bits(uint32_t which, uint32_t a, uint32_t b) {
  return (which & a) | (~which & b);
}

inline float exp2_fast(float x) {
  return emulated_ptx::without_subnormals(std::exp2(emulated_ptx::without_subnormals(x)));
}
inline float reciprocal(float x) {
  return emulated_ptx::without_subnormals(1 / emulated_ptx::without_subnormals(x));
}

inline uint4 load_once(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16)
    ::emulated::fail("16 bytes are read that are not aligned");
  return *static_cast<const uint4*>(p);
}
inline void copy_async(void* shared, const void* global) {
  const auto both = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global);
  if (both % 16) ::emulated::fail("16 bytes are copied that are not aligned");
  ::emulated::start_copy(shared, global);
}
inline void commit_copies() { ::emulated::end_copy_group(); }
template <int kPending>
void wait_for_copies() {
  ::emulated::await_copies(kPending);
}

inline int arrive(int* counter) { return (*counter)++; }

inline void load_matrices(uint32_t (&x)[4], const char* shared) {
  emulated_ptx::load_four<false>(x, shared);
}
inline void load_matrices_turned(uint32_t (&x)[4], const char* shared) {
  emulated_ptx::load_four<true>(x, shared);
}
inline void load_tiles(uint32_t (&to)[4], uint32_t address) {
  emulated_ptx::load_four<false>(to, ::emulated::shared_at(address));
}
inline void load_tiles_transposed(uint32_t (&to)[4], uint32_t address) {
  emulated_ptx::load_four<true>(to, ::emulated::shared_at(address));
}

inline void prefetch_to_l2(const std::byte*, uint32_t) {}

}  // namespace pith::cuda
