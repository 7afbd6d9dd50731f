#pragma once
// Rows of csr on the card and what their codes say, for the tests of csr's kernels.

#include <cmath>

#include "core/dtype.h"
#include "harness.h"
#include "methods/codecs/csr/csr_cuda.h"
#include "methods/codecs/csr/packed_pairs.h"
#include "methods/codecs/csr/test_rows.h"

namespace pith::cuda::csr_test {

struct Case {
  CsrCoding coding;
  bool keys = true;
  int atoms = 256, dim = 128;
  DType dtype = DType::kF16;
  int64_t position = 100003;  ///< of the first row, for keys that are coded before RoPE

  bool turned() const { return keys && coding.turns; }
  int chunks() const { return coding.chunks(keys); }
  int atom_dim() const { return dim / chunks(); }
  /// Numbers of 16 bits that a head's rows take.
  size_t halves(int rows) const {
    return static_cast<size_t>(rows) / 32 * coding.layout(keys).block_bytes() / 2;
  }
  /// The same with pairs of 16 bits.
  Case packed() const {
    Case other = *this;
    other.coding.packed = true;
    (keys ? other.coding.key_bits : other.coding.value_bits) =
        PackedPairs(static_cast<size_t>(atoms)).index_bits();
    return other;
  }
};

/// RoPE of a model with theta = 10000.
class Turns {
 public:
  Turns(MemoryCounter& counter, int dim) : dim_(dim) {
    std::vector<double> turns;
    for (int i = 0; i < dim / 2; ++i) turns.push_back(frequency(i) / (2 * M_PI));
    device_ = to_device(counter, turns);
  }
  const double* data() const { return device_.data(); }
  /// Rotates a row [D] on from position 0.
  void turn(float* x, int64_t position) const {
    for (int i = 0; i < dim_ / 2; ++i) {
      const double angle = static_cast<double>(position) * frequency(i);
      const double a = x[i], b = x[i + dim_ / 2];
      x[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
      x[i + dim_ / 2] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
    }
  }

 private:
  double frequency(int i) const { return std::pow(1e4, -2.0 * i / dim_); }

  int dim_;
  DeviceArray<double> device_;
};

/// Dictionaries of `heads` heads on both sides.
struct Dictionary {
  std::vector<uint16_t> atoms;  // [heads, N, d]
  DeviceArray<uint16_t> rows;
  DeviceArray<float> gram;
  CsrAtoms device;

  Dictionary(MemoryCounter& counter, const Case& c, int heads, uint32_t seed)
      : atoms(pith::csr_test::random_atoms(static_cast<size_t>(heads) * c.atoms,
                                           static_cast<size_t>(c.atom_dim()), seed)),
        rows(to_device(counter, atoms)),
        gram(counter, MemoryKind::kShared, static_cast<size_t>(heads) * c.atoms * c.atoms, nullptr),
        device{rows.data(), gram.data(), c.atoms} {
    make_csr_gram(gram.data(), rows.data(), heads, c.atoms, c.atom_dim(), nullptr);
  }
};

/// The bytes of all blocks.
inline std::vector<uint16_t> code_blocks(MemoryCounter& counter, const Case& c,
                                         const CsrAtoms& atoms, const std::vector<uint16_t>& x,
                                         int heads, int rows) {
  const auto device = to_device(counter, x);
  const auto codes = to_device(counter, std::vector<uint16_t>(heads * c.halves(rows), 0xFFFF));
  const CodeBatch batch{c.dtype, heads, rows, c.dim};
  CodeJob job = batch.whole(device.data(), codes.data(), nullptr);
  job.positions = c.position;
  code_csr(c.coding, atoms, c.keys, batch, job, nullptr);
  return to_host(codes);
}

/// The words of pairs in the order of blocks of words, whatever the blocks are of.
inline std::vector<uint32_t> words_of(const Case& c, const std::vector<uint16_t>& blocks) {
  const auto pairs = static_cast<size_t>(c.coding.pairs);
  std::vector<uint32_t> words;
  if (!c.coding.packed) {
    for (size_t i = 0; i < blocks.size(); i += 2) {
      words.push_back(blocks[i] | static_cast<uint32_t>(blocks[i + 1]) << 16);
    }
    return words;
  }
  const PackedPairs packed(static_cast<size_t>(c.atoms));
  for (size_t first = 0; first < blocks.size(); first += 32 * (pairs + 1)) {
    for (size_t i = 0; i < 32 * pairs; ++i) {
      const size_t row = !c.keys ? i / 4 / pairs * 4 + i % 4 : pairs % 4 == 0 ? i / 4 % 32 : i % 32;
      uint16_t index = 0, coefficient = 0;
      packed.unpack(&index, &coefficient, &blocks[first + i], &blocks[first + 32 * pairs + row], 1,
                    1);
      words.push_back(static_cast<uint32_t>(coefficient) << 16 | index * 16u);
    }
  }
  return words;
}

inline std::vector<uint32_t> code(MemoryCounter& counter, const Case& c, const CsrAtoms& atoms,
                                  const std::vector<uint16_t>& x, int heads, int rows) {
  return words_of(c, code_blocks(counter, c, atoms, x, heads, rows));
}

struct Pair {
  int atom = 0;
  float coefficient = 0;
};
inline Pair pair_of(const Case& c, const std::vector<uint32_t>& codes, size_t row, int j) {
  const int pairs = c.coding.pairs, in = static_cast<int>(row % 32);
  const int word_in_block = !c.keys          ? (in / 4 * pairs + j) * 4 + in % 4
                            : pairs % 4 == 0 ? (j / 4 * 32 + in) * 4 + j % 4
                                             : j * 32 + in;
  const size_t at = row / 32 * 32 * pairs + static_cast<size_t>(word_in_block);
  const uint32_t word = codes[at];
  EXPECT_EQ(word % 16, 0u);
  return {static_cast<int>(word & 0xffff) / 16, f16_to_float(static_cast<uint16_t>(word >> 16))};
}

/// Rows [heads * rows, D] that codes stand for, where they were coded.
inline std::vector<float> decode(const Case& c, const std::vector<uint32_t>& codes,
                                 const std::vector<uint16_t>& atoms, int heads, int rows) {
  const int d = c.atom_dim(), of_chunk = c.coding.pairs / c.chunks();
  std::vector<float> out(static_cast<size_t>(heads) * rows * c.dim);
  for (size_t t = 0; t < static_cast<size_t>(heads) * rows; ++t) {
    for (int j = 0; j < c.coding.pairs; ++j) {
      const Pair p = pair_of(c, codes, t, j);
      const uint16_t* atom = atoms.data() + (t / rows * c.atoms + p.atom) * d;
      for (int i = 0; i < d; ++i) {
        out[t * c.dim + j / of_chunk * d + i] += p.coefficient * f16_to_float(atom[i]);
      }
    }
  }
  return out;
}

}  // namespace pith::cuda::csr_test
