#pragma once
// Rows of csr built from their atoms in registers, as the tensor cores' operands. All atoms of a
// head lie in shared memory as they are: [N, d] f16. A warp takes 16 rows at a time.
//
// Keys: lanes (r, c) build rows r and r + 8, in the pieces of 8 channels 4 p + c. Eight lanes that
// are served together are two rows; the odd one takes its pieces in the order p ^ 1, so that the
// two meet different halves of the banks whatever their atoms are (for d >= 64; below it depends on
// the atoms). Keys are then rotated to their place within the 16 rows: an angle a lane and channel
// that never changes. The position of the first of the 16 rows is taken off the queries.
// Values: lanes (r, c) build four rows in quarters of 4 channels: sixteen lanes that are served
// together take different quarters in each step, c of them by their atoms.
//
// Cost a row, s pairs: 2 s D bytes of shared memory for the key, s D / chunks * 2 for the value, as
// many f16 multiply-adds; 2 D for the turn.

#include "attend/cuda/decode_kernel.cuh"
#include "kernels/cuda/turn.cuh"
#include "methods/codecs/csr/csr_pairs.cuh"

namespace pith::cuda {

/// The inputs for building rows of one side.
struct BuildSide {
  const char* atoms = nullptr;  // [N, d] f16 in shared memory
  int pairs = 0, chunks = 0;    // of a row

  __device__ int of_chunk() const { return pairs / chunks; }
  /// Where the atom of a word begins; `bytes` of an atom.
  __device__ const char* atom(uint32_t word, int bytes) const {
    return atoms + (word & 0xffff) * (bytes / 16);
  }
};

/// Both halves of a register <- the word's coefficient.
__device__ inline __half2 twice(uint32_t word) {
  const uint32_t two = __byte_perm(word, word, 0x3232);
  return *reinterpret_cast<const __half2*>(&two);
}
__device__ inline uint32_t& bits_of(__half2& x) { return reinterpret_cast<uint32_t&>(x); }

/// Cosines and sines of all pairs of channels, [D/2] each.
template <int D>
struct Angles {
  static constexpr int kBytes = D * 4;
  float* numbers;  // in shared memory

  /// `lanes` threads, of which this is `lane`, fill it with the angles at `position`.
  __device__ void fill(const double* turns, int64_t position, int lane, int lanes) const {
    for (int i = lane; i < D / 2; i += lanes) {
      const float2 angle = turn_at(turns[i], position);
      numbers[i] = angle.x;
      numbers[D / 2 + i] = angle.y;
    }
  }
};

/// How keys come to their positions: they are there; rows that follow each other are rotated within
/// 16, and queries back to the first of those; or each row is rotated by itself.
enum class KeyTurn { kNone, kInOrder, kEach };

/// The queries as B, and what rotates them: lane (r, c) has query r's channels 8 (4 p + c) ..
template <int D>
struct BuildQueries {
  static constexpr int kPieces = D / 32, kHalf = kPieces / 2;
  float x[kPieces][8];

  __device__ void load(const float* q) {  // q [8, D]
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int e = 0; e < 8; ++e) x[p][e] = q[r * D + 8 * (4 * p + c) + e];
    }
  }
  /// As they stand to rows that are so much further on.
  __device__ void turn_back(const float* angles) {
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int p = 0; p < kHalf; ++p) {
      float cosine[8], sine[8];
#pragma unroll
      for (int e = 0; e < 8; e += 4) {
        const float* from = angles + 8 * (4 * p + c) + e;
        *reinterpret_cast<float4*>(cosine + e) = *reinterpret_cast<const float4*>(from);
        *reinterpret_cast<float4*>(sine + e) = *reinterpret_cast<const float4*>(from + D / 2);
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float a = x[p][e], b = x[p + kHalf][e];
        x[p][e] = a * cosine[e] + b * sine[e];
        x[p + kHalf][e] = b * cosine[e] - a * sine[e];
      }
    }
  }
};

/// The turn of a lane's rows r and r + 8 within 16.
template <int D>
struct RowTurns {
  static constexpr int kHalf = D / 64;
  __half2 cosine[2][kHalf][4], sine[2][kHalf][4];

  __device__ void load(const __half* from) {  // [16, D]: cosines, then sines
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int p = 0; p < kHalf; ++p) {
        const __half* row = from + (r + 8 * i) * D + 8 * (4 * p + c);
        *reinterpret_cast<uint4*>(cosine[i][p]) = *reinterpret_cast<const uint4*>(row);
        *reinterpret_cast<uint4*>(sine[i][p]) = *reinterpret_cast<const uint4*>(row + D / 2);
      }
    }
  }
};

/// Keys of 16 rows: lane (r, c) has rows r and r + 8, channels 8 (4 p + c) + 2 w.
template <int D>
struct BuildKeys {
  static constexpr int kPieces = D / 32;
  __half2 x[2][kPieces][4];

  __device__ void add(int i, int p, const char* from, __half2 coefficient) {
    const uint4 piece = *reinterpret_cast<const uint4*>(from);
    const auto* atom = reinterpret_cast<const __half2*>(&piece);
#pragma unroll
    for (int w = 0; w < 4; ++w) x[i][p][w] = __hfma2(coefficient, atom[w], x[i][p][w]);
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
#pragma unroll
        for (int w = 0; w < 4; ++w) x[i][p][w] = __half2{0, 0};
      }
    }
  }
  /// Rows 16 m + r and 16 m + r + 8 of a block, but for put_in_order.
  __device__ void build(const BuildSide& side, const uint32_t* codes, int m) {
    clear();
    if (side.chunks == 1 && side.pairs % 4 == 0) {
      for (int j = 0; j < side.pairs; j += 4) add_four(side, codes, m, j);
    } else if (side.chunks == 1) {
      const uint32_t* words = codes + 16 * m + threadIdx.x % kWarp / 4;
      for (int j = 0; j < side.pairs; ++j) {
        add_pair(side, 0, words[32 * j]);
        add_pair(side, 1, words[32 * j + 8]);
      }
    } else {
      build_parts(side, codes, 16 * m + threadIdx.x % kWarp / 4);
    }
  }
  /// Pairs j .. j + 3 of rows in one chunk.
  __device__ void add_four(const BuildSide& side, const uint32_t* codes, int m, int j) {
    const int row = 16 * m + threadIdx.x % kWarp / 4;
    const auto* words = reinterpret_cast<const uint4*>(codes) + j / 4 * 32 + row;
    const uint4 four[2] = {words[0], words[8]};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        add_pair(side, i, reinterpret_cast<const uint32_t*>(&four[i])[e]);
      }
    }
  }
  /// One pair of a row in one chunk.
  __device__ void add_pair(const BuildSide& side, int i, uint32_t word) {
    const int lane = threadIdx.x % kWarp, odd = lane / 4 & 1;
    const char* from = side.atom(word, 2 * D) + 16 * (lane % 4);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) add(i, p, from + 64 * (p ^ odd), twice(word));
  }
  /// Odd rows' pieces were built in the places p ^ 1.
  __device__ void put_in_order() {
    const int odd = threadIdx.x % kWarp / 4 & 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int p = 0; p < kPieces; p += 2) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const __half2 a = x[i][p][w], b = x[i][p + 1][w];
          x[i][p][w] = odd ? b : a;
          x[i][p + 1][w] = odd ? a : b;
        }
      }
    }
  }
  /// The same for any number of pairs and chunks.
  __device__ void build_parts(const BuildSide& side, const uint32_t* codes, int row) {
    const int lane = threadIdx.x % kWarp, c = lane % 4, odd = lane / 4 & 1;
    const int bytes = 2 * D / side.chunks, of_chunk = side.of_chunk();
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int first = 64 * (p ^ odd) + 16 * c, chunk = first / bytes;
      for (int j = chunk * of_chunk; j < (chunk + 1) * of_chunk; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t word = codes[csr_word(true, side.pairs, row + 8 * i, j)];
          add(i, p, side.atom(word, bytes) + first % bytes, twice(word));
        }
      }
    }
  }

  /// Rows r and r + 8 to positions[0] and positions[8].
  __device__ void turn_each(const double* turns, const int* positions) {
    constexpr int kHalf = RowTurns<D>::kHalf;
    const int c = threadIdx.x % 4;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      RowTurns<D> angles;
#pragma unroll
      for (int p = 0; p < kHalf; ++p) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const double* of = turns + 8 * (4 * p + c) + 2 * w;
          const float2 a = turn_at(of[0], positions[8 * i]), b = turn_at(of[1], positions[8 * i]);
          angles.cosine[0][p][w] = __floats2half2_rn(a.x, b.x);
          angles.sine[0][p][w] = __floats2half2_rn(a.y, b.y);
        }
      }
      i == 0 ? turn_row(0, angles, 0) : turn_row(1, angles, 0);
    }
  }
  __device__ void turn(const RowTurns<D>& turns) {
#pragma unroll
    for (int i = 0; i < 2; ++i) turn_row(i, turns, i);
  }
  /// Row `i` of the lane's two by the angles of row `of`.
  __device__ void turn_row(int i, const RowTurns<D>& turns, int of) {
    constexpr int kHalf = RowTurns<D>::kHalf;
#pragma unroll
    for (int p = 0; p < kHalf; ++p) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const __half2 a = x[i][p][w], b = x[i][p + kHalf][w];
        const __half2 cosine = turns.cosine[of][p][w], sine = turns.sine[of][p][w];
        x[i][p][w] = __hfma2(a, cosine, __hneg2(__hmul2(b, sine)));
        x[i][p + kHalf][w] = __hfma2(a, sine, __hmul2(b, cosine));
      }
    }
  }

  __device__ void multiply(float (&s)[4], const BuildQueries<D>& q) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[j] = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int w = 0; w < 4; w += 2) {
        mma<__half>(s, bits_of(x[0][p][w]), bits_of(x[1][p][w]), bits_of(x[0][p][w + 1]),
                    bits_of(x[1][p][w + 1]), pack<__half>(q.x[p][2 * w], q.x[p][2 * w + 1]),
                    pack<__half>(q.x[p][2 * w + 2], q.x[p][2 * w + 3]));
      }
    }
  }
};

/// Values of 16 rows: lane (r, c) has rows 2c, 2c + 1, 2c + 8, 2c + 9, and of each the channels
/// D / 2 (r / 4) + 16 k + 4 (r % 4) + 2 w.
template <int D>
struct BuildValues {
  static constexpr int kQuarters = D / 32;
  __half2 x[4][kQuarters][2];

  __device__ void add(int i, int k, const char* from, __half2 coefficient) {
    const uint2 quarter = *reinterpret_cast<const uint2*>(from);
    const auto* atom = reinterpret_cast<const __half2*>(&quarter);
#pragma unroll
    for (int w = 0; w < 2; ++w) x[i][k][w] = __hfma2(coefficient, atom[w], x[i][k][w]);
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int k = 0; k < kQuarters; ++k) {
#pragma unroll
        for (int w = 0; w < 2; ++w) x[i][k][w] = __half2{0, 0};
      }
    }
  }
  /// Rows 16 m .. of a block, but for put_in_order.
  __device__ void build(const BuildSide& side, const uint32_t* codes, int m) {
    clear();
    const int c = threadIdx.x % 4;
    if (side.chunks <= 2) {
      for (int j = 0; j < side.of_chunk(); ++j) add_one(side, codes, m, j);
    } else {
      const int bytes = 2 * D / side.chunks, of_chunk = side.of_chunk();
#pragma unroll
      for (int k = 0; k < kQuarters; ++k) {
        const int at = first_byte() + 32 * (k ^ c % kQuarters), chunk = at / bytes;
        for (int j = chunk * of_chunk; j < (chunk + 1) * of_chunk; ++j) {
          uint32_t words[4];
          load_words(words, side, codes, m, j);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            add(i, k, side.atom(words[i], bytes) + at % bytes, twice(words[i]));
          }
        }
      }
    }
  }
  /// The j-th pair of the chunk that all of the lane's quarters are of: rows in one or two.
  __device__ void add_one(const BuildSide& side, const uint32_t* codes, int m, int j) {
    const int bytes = 2 * D / side.chunks, first = first_byte(), c = threadIdx.x % 4;
    uint32_t words[4];
    load_words(words, side, codes, m, first / bytes * side.of_chunk() + j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const char* from = side.atom(words[i], bytes) + first % bytes;
#pragma unroll
      for (int k = 0; k < kQuarters; ++k) {
        add(i, k, from + 32 * (k ^ c % kQuarters), twice(words[i]));
      }
    }
  }
  /// Of a row, where the lane's first quarter begins.
  static __device__ int first_byte() {
    const int r = threadIdx.x % kWarp / 4;
    return D * (r / 4) + 8 * (r % 4);
  }
  /// Pair j of the lane's four rows.
  static __device__ void load_words(uint32_t (&words)[4], const BuildSide& side,
                                    const uint32_t* codes, int m, int j) {
    const int row = 16 * m + 2 * (threadIdx.x % 4);
    const auto* from = reinterpret_cast<const uint2*>(codes + csr_word(false, side.pairs, row, j));
    const uint2 near = from[0], far = from[side.pairs * 4];
    words[0] = near.x, words[1] = near.y, words[2] = far.x, words[3] = far.y;
  }
  /// Quarter k was built in the place k ^ order.
  __device__ void put_in_order(int order) {
#pragma unroll
    for (int bit = 1; bit < kQuarters; bit *= 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int k = 0; k < kQuarters; ++k) {
          if (k & bit) continue;
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            const __half2 a = x[i][k][w], b = x[i][k | bit][w];
            x[i][k][w] = order & bit ? b : a;
            x[i][k | bit][w] = order & bit ? a : b;
          }
        }
      }
    }
  }

  __device__ void accumulate(Running<D>& run, const uint32_t (&p)[2]) {
#pragma unroll
    for (int k = 0; k < kQuarters; ++k) {
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        const uint32_t v[4] = {bits_of(x[0][k][w]), bits_of(x[1][k][w]), bits_of(x[2][k][w]),
                               bits_of(x[3][k][w])};
        mma<__half>(run.acc[2 * k + w], __byte_perm(v[0], v[1], 0x5410),
                    __byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x5410),
                    __byte_perm(v[2], v[3], 0x7632), p[0], p[1]);
      }
    }
  }
};

}  // namespace pith::cuda
