#pragma once
// CSR rows on the GPU: coding with the Gram matrix, decode attention straight from sparse codes,
// and rows back from codes. Keys are coded as they are attended to, after RoPE: a score is then s
// numbers out of <q, atom>, a table that is made once a query. Values are summed by atom and
// multiplied with the dictionary once.
//
// A pair is one 32-bit word: f16 coefficient above 16 bits that are 16 times the atom's number, the
// byte at which a table of four f32 numbers an atom has it. A block of 32 rows:
//   keys   [pairs / 4][32 rows][4 pairs]    a lane reads its row
//   values [8][pairs][4 rows]               four lanes read a pair of four rows
// Pairs that are not needed are 0. Bytes a row: 4 s for keys and as many for values.

#include <span>

#include "attend/cuda/code_rows.h"
#include "attend/cuda/decode.h"

namespace pith::cuda {

enum class CsrSolver { kMp, kOmp };

/// One side's dictionaries, on the device: each KV head has its own.
struct CsrAtoms {
  const void* rows = nullptr;   // [B G, count, d] f16 of norm 1
  const float* gram = nullptr;  // [B G, count, count], for coding
  int count = 0;                // N, at most 512
};

/// How rows are coded, on both sides.
struct CsrCoding {
  int pairs = 8;         ///< of a whole row: 4, 8 or 16
  int value_chunks = 2;  ///< parts of a value that share its pairs; keys have one
  CsrSolver solver = CsrSolver::kMp;

  int chunks(bool keys) const { return keys ? 1 : value_chunks; }
  /// Throws kInvalidArgument for what the kernels do not know.
  void check(int head_dim, const CsrAtoms& atoms) const;
};

/// Bytes of one block of 32 rows.
GroupedBytes csr_bytes(const CsrCoding& coding);

/// gram [heads, N, N] <- products of all atoms [heads, N, d] with each other.
void make_csr_gram(float* gram, const void* atoms, int heads, int count, int dim,
                   cudaStream_t stream);

/// Codes rows of `atoms`' heads; `side` of the call is not used.
void code_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, const CodeRowsCall& call,
              cudaStream_t stream);
/// The same into heads with room between them.
void code_csr_job(const CsrCoding& coding, const CsrAtoms& atoms, bool keys, const CodeBatch& batch,
                  const CodeJob& job, cudaStream_t stream);
/// atoms [heads, count, d] <- parts of rows, of norm 1. `parts` [heads, count] name them: row times
/// chunks plus chunk.
struct CsrDraw {
  const void* rows = nullptr;  // [heads, .., D]
  size_t head_stride = 0;      ///< numbers between heads
  DType dtype = DType::kF16;   ///< kF16 or kBF16
  const uint32_t* parts = nullptr;
  int heads = 0, count = 0, dim = 0, chunks = 1;
};
void draw_csr_atoms(void* atoms, const CsrDraw& draw, cudaStream_t stream);
/// Coded rows as dense ones.
void unpack_csr(const CsrCoding& coding, const CsrAtoms& atoms, bool keys,
                const UnpackRowsCall& call, cudaStream_t stream);

/// Decode attention over dense spans and coded ones.
struct CsrDictionaries {
  CsrCoding coding;
  CsrAtoms keys, values;
};
void decode_csr(const CsrDictionaries& dictionaries, const DecodeCall& call,
                const DecodeScratch& scratch, cudaStream_t stream);

}  // namespace pith::cuda
