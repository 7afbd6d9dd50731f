// CSR on the GPU: codes against the CPU's pursuit over the same atoms, rows back from codes, and
// decode attention over codes against double precision over the rows that they stand for; keys as
// they are attended to, and before RoPE.

#include <cmath>

#include "csr_cases.h"
#include "methods/codecs/csr/pursuit.h"

namespace pith::cuda {
namespace {

using namespace csr_test;  // NOLINT(google-build-using-namespace)

/// Rows whose codes differ from the CPU's, of all; a choice between equals may fall otherwise.
double differing(const Case& c) {
  constexpr int kHeads = 2, kRowsOfHead = 160;
  MemoryCounter counter;
  const Dictionary dictionary(counter, c, kHeads, 5);
  auto x = normals(static_cast<size_t>(kHeads) * kRowsOfHead * c.dim, c.dtype, 6);
  for (int i = 0; i < c.dim; ++i) x[3 * c.dim + i] = 0;  // a row of nothing
  const auto codes = code(counter, c, dictionary.device, x, kHeads, kRowsOfHead);
  auto wide = widen(x, c.dtype);
  const Turns turns(counter, c.dim);
  for (int t = 0; c.turned() && t < kHeads * kRowsOfHead; ++t) {
    turns.turn(wide.data() + t * c.dim, -(c.position + t % kRowsOfHead));
  }
  test::Machine machine;
  const int d = c.atom_dim(), pairs = c.coding.pairs / c.chunks();
  const auto solver = c.coding.solver == CsrSolver::kMp ? Solver::kMp : Solver::kOmp;
  int other = 0;
  for (int t = 0; t < kHeads * kRowsOfHead; ++t) {
    const AtomRows atoms{
        dictionary.atoms.data() + static_cast<size_t>(t / kRowsOfHead) * c.atoms * d,
        static_cast<size_t>(c.atoms), nullptr, static_cast<size_t>(d)};
    Pursuit pursuit(machine.context.kernels, machine.memory, atoms, atoms.split);
    bool same = true;
    for (int k = 0; k < c.chunks(); ++k) {
      std::vector<uint16_t> indices(pairs), coefficients(pairs);
      pursuit.code(indices.data(), coefficients.data(), wide.data() + t * c.dim + k * d, 1,
                   {static_cast<size_t>(pairs), solver});
      for (int j = 0; j < pairs; ++j) {
        const Pair got = pair_of(c, codes, t, k * pairs + j);
        const float want = f16_to_float(coefficients[j]);
        same &= got.atom == indices[j] &&
                std::abs(got.coefficient - want) < 4e-3 + 2e-3 * std::abs(want);
      }
    }
    other += !same;
  }
  return other / static_cast<double>(kHeads * kRowsOfHead);
}

TEST(CudaCsr, CodesAreThePursuitsOfTheCpu) {
  PITH_NEEDS_GPU();
  for (const auto solver : {CsrSolver::kMp, CsrSolver::kOmp}) {
    for (const int pairs : {4, 8, 16}) {
      for (const int atoms : {50, 256, 301, 512}) {
        for (const bool keys : {true, false}) {
          for (const int dim : {64, 128}) {
            const DType dtype = pairs == 8 ? DType::kBF16 : DType::kF16;
            const Case c{{pairs, 2, solver}, keys, atoms, dim, dtype};
            EXPECT_LT(differing(c), 0.02)
                << pairs << " pairs, " << atoms << " atoms, keys " << keys << ", dim " << dim;
          }
        }
      }
    }
  }
}

TEST(CudaCsr, CodesOfKeysBeforeRopeAreThePursuitsOfTheCpu) {
  PITH_NEEDS_GPU();
  for (const auto solver : {CsrSolver::kMp, CsrSolver::kOmp}) {
    for (const int dim : {64, 128}) {
      MemoryCounter counter;
      const Turns turns(counter, dim);
      for (const int chunks : {1, 2, 4}) {
        const DType dtype = chunks == 2 ? DType::kBF16 : DType::kF16;
        const Case c{{8, 2, solver, chunks, turns.data()}, true, 100 + 100 * chunks, dim, dtype};
        EXPECT_LT(differing(c), 0.02) << chunks << " chunks, dim " << dim;
      }
    }
  }
}

TEST(CudaCsr, CodesOfAnyNumberOfPairs) {
  PITH_NEEDS_GPU();
  for (const bool keys : {true, false}) {
    for (const auto& [pairs, chunks] :
         {std::pair{1, 1}, {2, 2}, {3, 1}, {6, 2}, {24, 8}, {32, 1}}) {
      CsrCoding coding{pairs, chunks};
      coding.key_chunks = chunks;
      EXPECT_LT(differing({coding, keys, 150, 128, DType::kF16}), 0.03)
          << pairs << " pairs, " << chunks << " chunks, keys " << keys;
    }
  }
}

TEST(CudaCsr, RowsComeBackFromCodes) {
  PITH_NEEDS_GPU();
  constexpr int kHeads = 2, kRowsOfHead = 96;
  MemoryCounter counter;
  const Turns turns(counter, 64);
  for (const auto& [keys, turned, packed] : {std::tuple{true, false, false},
                                             {false, false, false},
                                             {true, true, false},
                                             {true, true, true},
                                             {false, false, true}}) {
    Case c{{8, 2, CsrSolver::kOmp}, keys, 70, 64, DType::kF16};
    c.coding.key_chunks = turned ? 2 : 1;
    if (turned) c.coding.turns = turns.data();
    if (packed) c = c.packed();
    const Dictionary dictionary(counter, c, kHeads, 7);
    const auto x = normals(static_cast<size_t>(kHeads) * kRowsOfHead * c.dim, c.dtype, 8);
    const auto blocks = code_blocks(counter, c, dictionary.device, x, kHeads, kRowsOfHead);
    const auto codes = words_of(c, blocks);
    auto want = decode(c, codes, dictionary.atoms, kHeads, kRowsOfHead);
    for (int t = 0; turned && t < kHeads * kRowsOfHead; ++t) {
      turns.turn(want.data() + t * c.dim, c.position + t % kRowsOfHead);
    }
    const auto device = to_device(counter, blocks);
    const auto out = to_device(counter, std::vector<uint16_t>(x.size(), 0x7FFF));
    UnpackRowsCall call;
    call.codes = device.data();
    call.block_stride = kRowsOfHead / 32;
    call.heads = kHeads;
    call.blocks = kRowsOfHead / 32;
    call.head_dim = c.dim;
    call.out = out.data();
    call.head_stride = static_cast<size_t>(kRowsOfHead) * c.dim;
    call.position = c.position;
    unpack_csr(c.coding, dictionary.device, c.keys, call, nullptr);
    const auto got = to_host(out);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(f16_to_float(got[i]), want[i], 2e-3 * std::max(1.0f, std::abs(want[i])));
    }
  }
}

struct Attention {
  int pairs = 8, chunks = 2, key_atoms = 256, value_atoms = 256, dim = 128, group = 4;
  DType dtype = DType::kF16;
  int key_chunks = 1;
  bool turned = false, by_rows = false, packed = false;
};

/// The worst error over heads: coded rows of ragged heads with weights, between dense ones.
double attention_error(const Attention& a) {
  const std::vector<int> rows = {300, 0, 32, 1001};
  const int heads = static_cast<int>(rows.size()), padded = 1024, per_head = 3;
  MemoryCounter counter;
  const Turns turns(counter, a.dim);
  CsrCoding coding{a.pairs, a.chunks};
  coding.key_chunks = a.key_chunks;
  if (a.turned) coding.turns = turns.data();
  if (a.packed) {
    const auto bits = [](int atoms) {
      return PackedPairs(static_cast<size_t>(atoms)).index_bits();
    };
    coding.packed = true;
    coding.key_bits = bits(a.key_atoms);
    coding.value_bits = bits(a.value_atoms);
  }
  const Case keys{coding, true, a.key_atoms, a.dim, a.dtype};
  const Case values{coding, false, a.value_atoms, a.dim, a.dtype};
  const Dictionary key_dict(counter, keys, heads, 9), value_dict(counter, values, heads, 10);
  const auto k = normals(static_cast<size_t>(heads) * padded * a.dim, a.dtype, 21);
  const auto v = normals(k.size(), a.dtype, 22);
  const auto k_codes = code_blocks(counter, keys, key_dict.device, k, heads, padded);
  const auto v_codes = code_blocks(counter, values, value_dict.device, v, heads, padded);
  auto k_rows = decode(keys, words_of(keys, k_codes), key_dict.atoms, heads, padded);
  const auto position = [&](int h) { return static_cast<int32_t>(keys.position) - 91 * h; };
  for (int t = 0; a.turned && t < heads * padded; ++t) {  // codes do not know where they stand
    turns.turn(k_rows.data() + static_cast<size_t>(t) * a.dim, position(t / padded) + t % padded);
  }
  const auto v_rows = decode(values, words_of(values, v_codes), value_dict.atoms, heads, padded);
  const auto k_wide = widen(k, a.dtype), v_wide = widen(v, a.dtype);
  const auto k_device = to_device(counter, k), v_device = to_device(counter, v);
  const auto k_coded = to_device(counter, k_codes), v_coded = to_device(counter, v_codes);
  std::vector<float> weights(padded);
  for (int t = 0; t < padded; ++t) weights[t] = 0.001f * static_cast<float>(t % 700);
  const auto weights_device = to_device(counter, weights);

  std::vector<DeviceSpan> spans;
  std::vector<OracleSpan> oracles;
  for (int h = 0; h < heads; ++h) {
    const size_t first = static_cast<size_t>(h) * padded * a.dim;
    const size_t code_first = h * keys.halves(padded);
    for (int s = 0; s < per_head; ++s) {
      const bool coded = s == 1;
      DeviceSpan d;
      d.coded = coded;
      d.rows = coded ? rows[h] : s == 0 ? 4 : 50;
      d.row_stride = a.dim;
      d.position = position(h);
      d.keys =
          coded ? static_cast<const void*>(k_coded.data() + code_first) : k_device.data() + first;
      d.values =
          coded ? static_cast<const void*>(v_coded.data() + code_first) : v_device.data() + first;
      d.log_weight = 0.5f * static_cast<float>(s);
      d.log_weights = coded ? weights_device.data() : nullptr;
      spans.push_back(d);
      const auto &from_k = coded ? k_rows : k_wide, &from_v = coded ? v_rows : v_wide;
      const size_t n = static_cast<size_t>(d.rows) * a.dim;
      OracleSpan o{{from_k.begin() + first, from_k.begin() + first + n},
                   {from_v.begin() + first, from_v.begin() + first + n},
                   std::vector<float>(d.rows, d.log_weight)};
      for (int t = 0; coded && t < d.rows; ++t) o.log_weights[t] += weights[t];
      oracles.push_back(std::move(o));
    }
  }
  const DecodeShape shape{1, heads * a.group, heads, a.dim, per_head, 0};
  const auto q = normals(static_cast<size_t>(heads) * a.group * a.dim, a.dtype, 23);
  const auto q_device = to_device(counter, q);
  const auto span_device = to_device(counter, spans);
  const auto out = to_device(counter, std::vector<float>(q.size(), NAN));
  DecodeScratch scratch(counter, shape, nullptr);
  (a.by_rows ? decode_csr_by_rows : decode_csr)(
      {coding, key_dict.device, value_dict.device},
      {{q_device.data(), span_device.data(), out.data(), nullptr}, shape, a.dtype}, scratch,
      nullptr);
  const auto got = to_host(out), queries = widen(q, a.dtype);
  double worst = 0;
  for (int head = 0; head < heads * a.group; ++head) {
    std::vector<const OracleSpan*> mine;
    for (int s = 0; s < per_head; ++s) mine.push_back(&oracles[head / a.group * per_head + s]);
    std::vector<double> want;
    oracle(want, queries.data() + head * a.dim, a.dim, 1 / std::sqrt(a.dim), mine);
    worst = std::max(
        worst,
        relative_error({got.begin() + head * a.dim, got.begin() + (head + 1) * a.dim}, want));
  }
  return worst;
}

TEST(CudaCsr, AttentionReadsCodesBetweenDenseRows) {
  PITH_NEEDS_GPU();
  // Queries are rounded to f16 before they meet the atoms; dense rows are multiplied as stored.
  for (const int pairs : {4, 8, 16}) {
    for (const int dim : {64, 128}) {
      for (const int group : {1, 4, 8, 12}) {
        EXPECT_LT(attention_error({.pairs = pairs, .dim = dim, .group = group}), 4e-3)
            << pairs << " pairs, dim " << dim << ", group " << group;
      }
    }
  }
  EXPECT_LT(attention_error({.dtype = DType::kBF16}), 1.5e-2);
  EXPECT_LT(attention_error({.chunks = 1}), 4e-3);
  EXPECT_LT(attention_error({.pairs = 16, .chunks = 1, .group = 8}), 4e-3);
  EXPECT_LT(attention_error({.key_atoms = 512, .value_atoms = 512}), 4e-3);
  EXPECT_LT(attention_error({.key_atoms = 37, .value_atoms = 301, .group = 7}), 4e-3);
  EXPECT_LT(attention_error({.pairs = 16, .key_atoms = 512, .value_atoms = 512, .group = 8}), 4e-3);
}

// Rows are built in f16.
TEST(CudaCsr, AttentionBuildsRowsFromCodes) {
  PITH_NEEDS_GPU();
  for (const bool turned : {false, true}) {
    for (const int dim : {64, 128}) {
      for (const int group : {1, 4, 12}) {
        EXPECT_LT(attention_error({.dim = dim, .group = group, .turned = turned, .by_rows = true}),
                  6e-3)
            << "dim " << dim << ", group " << group << ", turned " << turned;
      }
      for (const int pairs : {1, 2, 3, 4, 16, 32}) {
        const int chunks = pairs % 2 == 0 ? 2 : 1;
        EXPECT_LT(attention_error({.pairs = pairs,
                                   .chunks = chunks,
                                   .key_atoms = 37,
                                   .value_atoms = 60,
                                   .dim = dim,
                                   .turned = turned,
                                   .by_rows = true}),
                  6e-3)
            << pairs << " pairs, dim " << dim << ", turned " << turned;
      }
    }
  }
  const Attention before{.turned = true};
  Attention a = before;
  a.dtype = DType::kBF16;
  EXPECT_LT(attention_error(a), 1.5e-2);
  for (const auto& [key_chunks, chunks] : {std::pair{2, 1}, {1, 4}, {4, 2}, {8, 8}}) {
    a = before;
    a.key_chunks = key_chunks;
    a.chunks = chunks;
    EXPECT_LT(attention_error(a), 6e-3) << key_chunks << " and " << chunks << " chunks";
  }
  a = before;
  a.key_atoms = a.value_atoms = 512;
  EXPECT_LT(attention_error(a), 6e-3);
}

TEST(CudaCsr, AttentionReadsPackedPairs) {
  PITH_NEEDS_GPU();
  for (const bool turned : {false, true}) {
    for (const int dim : {64, 128}) {
      for (const int pairs : {1, 3, 6, 8, 16, 32}) {
        EXPECT_LT(attention_error({.pairs = pairs,
                                   .chunks = pairs % 2 == 0 ? 2 : 1,
                                   .key_atoms = pairs == 8 ? 512 : 37,
                                   .value_atoms = 256,
                                   .dim = dim,
                                   .group = pairs == 8 ? 12 : 3,
                                   .turned = turned,
                                   .packed = true}),
                  6e-3)
            << pairs << " pairs, dim " << dim << ", turned " << turned;
      }
    }
  }
  EXPECT_LT(attention_error({.dtype = DType::kBF16, .turned = true, .packed = true}), 1.5e-2);
}

TEST(CudaCsr, TakesTheBytesThatPairsTake) {
  const GroupedBytes bytes = csr_bytes({8});
  EXPECT_EQ(bytes.per_row(), 64);  // an eighth of 2 * 128 numbers of 16 bits
  EXPECT_EQ(bytes.key_side + bytes.value_side, 0u);
  CsrCoding packed{8};
  packed.packed = true;
  EXPECT_EQ(csr_bytes(packed).per_row(), 36);  // and a scale per row and side
}

TEST(CudaCsr, RefusesSizesThatItDoesNotKnow) {
  const CsrAtoms atoms{nullptr, nullptr, 256}, many{nullptr, nullptr, 512};
  const CsrAtoms too_many{nullptr, nullptr, 513}, none;
  EXPECT_ANY_THROW((CsrCoding{33, 1}.check(128, atoms, atoms)));
  EXPECT_ANY_THROW((CsrCoding{7, 2}.check(128, atoms, atoms)));
  EXPECT_ANY_THROW((CsrCoding{8, 8}.check(64, atoms, atoms)));
  EXPECT_ANY_THROW((CsrCoding{8}.check(96, atoms, atoms)));
  EXPECT_ANY_THROW((CsrCoding{8}.check(128, atoms, too_many)));
  EXPECT_ANY_THROW((CsrCoding{8}.check(128, none, atoms)));
  EXPECT_NO_THROW((CsrCoding{16, 1}.check(64, many, many)));
  EXPECT_NO_THROW((CsrCoding{6}.check(64, atoms, many)));
}

}  // namespace
}  // namespace pith::cuda
