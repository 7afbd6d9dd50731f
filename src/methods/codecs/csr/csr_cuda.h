#pragma once
// CSR rows on the GPU: coding with the Gram matrix, decode attention straight from sparse codes,
// and rows back from codes. Two ways to attend: where keys are coded as they are attended to, a
// score is s numbers out of <q, atom>, a table that is made once a query, and values are summed by
// atom (csr_decode.cu); otherwise rows are built from their atoms, keys rotated to their positions,
// and multiplied (csr_build.cu).
//
// A pair is one 32-bit word: f16 coefficient above 16 bits that are 16 times the atom's number, the
// byte at which a table of four f32 numbers an atom has it. A block of 32 rows:
//   keys   [pairs / 4][32 rows][4 pairs]    a lane reads its row; [pairs][32 rows] where pairs are
//                                           no multiple of four
//   values [8][pairs][4 rows]               four lanes read a pair of four rows
// Pairs that are not needed are 0. Bytes per row: 4 s for keys and as many for values.
//
// Packed pairs have 16 bits: a coefficient in steps of the row's scale above the atom's number
// (packed_pairs.h), in the places that words would have, and behind them the 32 rows' scales, f16.
// Readers make words of them. Bytes per row: 2 s + 2.

#include "attend/cuda/code_rows.h"
#include "attend/cuda/decode.h"
#include "attend/cuda/mass.h"
#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

enum class CsrSolver { kMp, kOmp };

/// One side's dictionaries, on the device.
struct CsrAtoms {
  const void* rows = nullptr;   // [B G, count, d] f16 of norm 1
  const float* gram = nullptr;  // [B G, count, count], for coding
  int count = 0;                // N, at most 512
  bool common = false;          ///< one dictionary for all heads: [count, d]

  size_t bytes(int dim) const { return static_cast<size_t>(count) * dim * 2; }  ///< of a head's
};

/// The number of pair j of row `row` in a block.
PITH_BOTH_SIDES constexpr int csr_word(bool keys, int pairs, int row, int j) {
  const int together = pairs % 4 == 0 ? 4 : 1;
  return keys ? (j / together * 32 + row) * together + j % together
              : (row / 4 * pairs + j) * 4 + row % 4;
}

/// How a block's pairs lie.
struct CsrLayout {
  bool keys = false, packed = false;
  int pairs = 0;  ///< of a row
  int bits = 0;   ///< of an atom's number in a packed pair

  PITH_BOTH_SIDES constexpr int at(int row, int j) const { return csr_word(keys, pairs, row, j); }
  /// Of a block of 32 rows, a multiple of 16.
  PITH_BOTH_SIDES constexpr int block_bytes() const {
    return packed ? 64 * (pairs + 1) : 128 * pairs;
  }
};

/// How rows are coded, on both sides.
struct CsrCoding {
  int pairs = 8;         ///< of a whole row, at most 32
  int value_chunks = 2;  ///< parts of a value that share its pairs
  CsrSolver solver = CsrSolver::kMp;
  int key_chunks = 1;
  const double* turns = nullptr;  // [D/2] of RoPE, on the device: keys are coded before it; or null
  bool positions = false;         ///< those keys have theirs beside them, [32] i32 a block
  bool packed = false;            ///< pairs of 16 bits
  int key_bits = 0, value_bits = 0;  ///< of an atom's number in those

  PITH_BOTH_SIDES int chunks(bool keys) const { return keys ? key_chunks : value_chunks; }
  PITH_BOTH_SIDES CsrLayout layout(bool keys) const {
    return {keys, packed, pairs, keys ? key_bits : value_bits};
  }
  /// Throws kInvalidArgument for what the kernels do not know.
  void check(int head_dim, const CsrAtoms& keys, const CsrAtoms& values) const;
  /// The tables of products and of sums by atom serve: see csr_decode.cu.
  bool has_tables() const {
    return !turns && !packed && key_chunks == 1 && value_chunks <= 2 &&
           (pairs == 4 || pairs == 8 || pairs == 16);
  }
};

/// Bytes of one block of 32 rows.
GroupedBytes csr_bytes(const CsrCoding& coding);

/// gram [heads, N, N] <- products of all atoms [heads, N, d] with each other.
void make_csr_gram(float* gram, const void* atoms, int heads, int count, int dim,
                   cudaStream_t stream);

/// Codes rows of `atoms`' heads; `side` is for keys with positions alone.
void code_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, const CodeBatch& batch,
              const CodeJob& job, cudaStream_t stream);
/// Atoms `first`, ... of `all` [heads, all, d] <- parts of rows, of norm 1. `parts` [heads, count]
/// name them: row times chunks plus chunk.
struct CsrDraw {
  const void* rows = nullptr;  // [heads, .., D]
  size_t head_stride = 0;      ///< numbers between heads
  DType dtype = DType::kF16;   ///< kF16 or kBF16
  const uint32_t* parts = nullptr;
  int heads = 0, count = 0, dim = 0, chunks = 1;
  int first = 0, all = 0;
  const double* turns = nullptr;  // [D/2]: rows are rotated back from their positions; or null
  RowPositions positions;
};
void draw_csr_atoms(void* atoms, const CsrDraw& draw, cudaStream_t stream);
/// Coded rows as dense ones.
void unpack_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys,
                const UnpackRowsCall& call, cudaStream_t stream);

/// Rows move as they are (see MoveCodesCall), and the mass of a token is summed over dense and
/// coded keys (see MassTarget), which are coded as they are attended to.
void move_csr_rows(const CsrCoding& coding, const MoveCodesCall& call, cudaStream_t stream);
void add_csr_mass(const CsrCoding& coding, const CsrAtoms& keys, const TokenMass& call,
                  const MassTarget* target, cudaStream_t stream);

/// Decode attention over dense spans and coded ones.
struct CsrDictionaries {
  CsrCoding coding;
  CsrAtoms keys, values;
};
void decode_csr(const CsrDictionaries& dictionaries, const DecodeCall& call,
                const DecodeScratch& scratch, cudaStream_t stream);
/// The two ways of it, for what each of them takes: decode_csr chooses.
void decode_csr_by_tables(const CsrDictionaries& dictionaries, const DecodeCall& call,
                          const DecodeScratch& scratch, cudaStream_t stream);
void decode_csr_by_rows(const CsrDictionaries& dictionaries, const DecodeCall& call,
                        const DecodeScratch& scratch, cudaStream_t stream);
/// Throws kUnsupported if decode_csr_by_rows has no room in shared memory for so many atoms.
void check_csr_room(const CsrDictionaries& dictionaries, int head_dim);
[[noreturn]] void refuse_csr_atoms(const CsrDictionaries& dictionaries, size_t shared_bytes);

}  // namespace pith::cuda
