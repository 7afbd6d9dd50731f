// CSR's stored rows: bytes, dictionaries of the first rows, scores and sums from the codes, and
// that codes are what they say, bit for bit.

#include "methods/codecs/csr/csr.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/dtype.h"
#include "methods/codecs/csr/csr_codec.h"
#include "methods/codecs/csr/packed_pairs.h"
#include "methods/codecs/csr/test_rows.h"
#include "pith/error.h"

namespace pith {
namespace {

using csr_test::kDim;
using csr_test::Machine;
using csr_test::normals;
using csr_test::random_atoms;

CsrFormat format_of(size_t pairs, size_t chunks, size_t online) {
  CsrFormat format;
  format.pairs = pairs;
  format.chunks = chunks;
  format.online = format.collect = online;
  return format;
}

std::unique_ptr<CsrRows> make(const Machine& machine, const CsrFormat& format, size_t dim = kDim,
                              const OfflineAtoms& offline = {}) {
  RowsRequest request;
  request.dim = dim;
  return std::make_unique<CsrRows>(machine.context, format, request, offline);
}

std::vector<float> decoded(const CodedRows& rows) {
  std::vector<float> x(rows.rows() * rows.dim());
  rows.decode(x.data(), 0, rows.rows());
  return x;
}

TEST(Csr, BytesAreThirtyTwoBitsAPair) {
  const Machine machine;
  for (const auto& [pairs, chunks] : {std::pair<size_t, size_t>{8, 1}, {8, 2}, {6, 2}, {16, 4}}) {
    CsrFormat format = format_of(pairs, chunks, 48);
    const auto rows = make(machine, format);
    const auto x = normals(100 * kDim, 8);
    rows->append(x.data(), kDim, 47);
    EXPECT_EQ(rows->payload_bytes(), 47 * kDim * 2) << "rows wait in f16";
    EXPECT_FALSE(rows->has_dictionary());
    rows->append(x.data() + 47 * kDim, kDim, 53);
    // s of the paper is pairs / chunks: 32 s s_n / d bits per channel.
    EXPECT_EQ(8 * rows->payload_bytes(), 100 * kDim * (32 * pairs) / kDim);
    EXPECT_EQ(rows->metadata_bytes(), 0u);
    EXPECT_EQ(rows->table_bytes(), 48 * (kDim / chunks) * 2);
    EXPECT_EQ(rows->allocated_bytes(), machine.memory.bytes(MemoryKind::kPayload) +
                                           machine.memory.bytes(MemoryKind::kMetadata) +
                                           machine.memory.bytes(MemoryKind::kShared));
  }
}

TEST(Csr, PackedPairsAreHalfAndAScale) {
  const Machine machine;
  for (const auto& [pairs, chunks] : {std::pair<size_t, size_t>{6, 1}, {8, 2}}) {
    CsrFormat format = format_of(pairs, chunks, 48);
    format.packed = true;
    const auto rows = make(machine, format);
    const auto x = normals(100 * kDim, 8);
    rows->append(x.data(), kDim, 100);
    EXPECT_EQ(rows->payload_bytes(), 100 * (2 * pairs + 2));
    EXPECT_EQ(rows->allocated_bytes(), machine.memory.bytes(MemoryKind::kPayload) +
                                           machine.memory.bytes(MemoryKind::kMetadata) +
                                           machine.memory.bytes(MemoryKind::kShared));
  }
}

TEST(PackedPairs, IndicesComeBackAndCoefficientsWithinHalfAStep) {
  std::mt19937 random(31);
  for (size_t atoms : {1, 2, 3, 256, 257, 512, 4095, 4096}) {
    const PackedPairs packed(atoms);
    // The index takes the bits of the largest, at least one; the rest, but for the sign, says
    // steps.
    size_t bits = 1;
    while ((size_t{1} << bits) < atoms) ++bits;
    ASSERT_EQ(packed.most(), (1 << (16 - bits - 1)) - 1) << atoms;
    for (float size : {0.0f, 1e-4f, 1.0f, 60000.0f}) {
      constexpr size_t kRows = 20, kPairs = 7;
      uint16_t indices[kRows][kPairs], coefficients[kRows][kPairs], codes[kRows][kPairs],
          scales[kRows], got[kRows][kPairs], factors[kRows][kPairs];
      std::uniform_real_distribution<float> uniform(-size, size);
      for (size_t t = 0; t < kRows; ++t) {
        for (size_t i = 0; i < kPairs; ++i) {
          indices[t][i] = static_cast<uint16_t>(i == 0 ? atoms - 1 : random() % atoms);
          coefficients[t][i] = f32_to_f16(size == 0 ? 0 : uniform(random));
        }
        scales[t] = packed.pack(codes[t], indices[t], coefficients[t], kPairs);
      }
      packed.unpack(got[0], factors[0], codes[0], scales, kPairs, kRows);
      for (size_t t = 0; t < kRows; ++t) {
        double largest = 0;
        for (uint16_t c : coefficients[t])
          largest = std::max(largest, std::abs(double{f16_to_f32(c)}));
        // Half a step, and what f16 makes of the scale and of the number.
        const double half = largest / packed.most() / 2 + largest / 1024 + 1e-6;
        for (size_t i = 0; i < kPairs; ++i) {
          ASSERT_EQ(got[t][i], indices[t][i]) << atoms;
          ASSERT_NEAR(f16_to_f32(factors[t][i]), f16_to_f32(coefficients[t][i]), half) << atoms;
        }
      }
    }
  }
}

TEST(PackedPairs, TheLargestCoefficientStaysFinite) {
  for (size_t atoms : {2, 256, 4096}) {
    const PackedPairs packed(atoms);
    const uint16_t index = 1, largest = f32_to_f16(-65504);
    uint16_t code = 0, got = 0, factor = 0;
    const uint16_t scale = packed.pack(&code, &index, &largest, 1);
    packed.unpack(&got, &factor, &code, &scale, 1, 1);
    EXPECT_EQ(got, 1);
    const double step = 65504.0 / packed.most();
    EXPECT_NEAR(f16_to_f32(factor), -65504, 1.01 * step + 64) << atoms;
  }
}

TEST(Csr, PackedRowsAreTheWideOnesButForTheirSteps) {
  const Machine machine;
  for (Solver solver : {Solver::kMp, Solver::kOmp}) {
    CsrFormat format = format_of(8, 2, 64);
    format.solver = solver;
    const auto wide = make(machine, format);
    format.packed = true;
    const auto packed = make(machine, format);
    const auto x = normals(300 * kDim, 32);
    wide->append(x.data(), kDim, 300);
    packed->append(x.data(), kDim, 300);
    const auto a = decoded(*wide), b = decoded(*packed);
    double moved = 0, left = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      moved += std::pow(double{a[i]} - b[i], 2.0);
      left += std::pow(double{a[i]} - x[i], 2.0);
    }
    EXPECT_GT(moved, 0);
    EXPECT_LT(moved, 2e-3 * left) << "6 + 10 bits lose next to nothing beside the residual";
  }
}

TEST(Csr, OnlineAtomsAreTheFirstRows) {
  const Machine machine;
  const auto rows = make(machine, format_of(1, 1, 20));
  const auto x = normals(20 * kDim, 9);
  rows->append(x.data(), kDim, 20);
  ASSERT_TRUE(rows->has_dictionary());
  const auto got = decoded(*rows);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], x[i], 5e-3) << "one pair, one atom";
}

TEST(Csr, CentroidsOfTheFirstRowsMayBeTheAtoms) {
  // Rows around 4 directions, each with a sign of its own: 4 clusters of rows in all.
  const Machine machine;
  CsrFormat format = format_of(1, 1, 4);
  format.clusters = true;
  format.collect = 64;
  const auto rows = make(machine, format);
  auto x = normals(100 * kDim, 30);
  for (size_t t = 0; t < 100; ++t)
    for (size_t c = 0; c < kDim; ++c)
      x[t * kDim + c] = 0.02f * x[t * kDim + c] + (c % 4 == t % 4 ? (t % 8 ? 1.0f : 2.0f) : 0);
  rows->append(x.data(), kDim, 63);
  EXPECT_EQ(rows->table_bytes(), 63 * kDim * 2) << "all of them are held until then";
  rows->append(x.data() + 63 * kDim, kDim, 37);
  EXPECT_EQ(rows->table_bytes(), 4 * kDim * 2);
  const auto got = decoded(*rows);
  double left = 0, power = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    left += std::pow(x[i] - got[i], 2.0);
    power += std::pow(x[i], 2.0);
  }
  EXPECT_LT(left, 0.3 * power) << "at most one of the four has no centroid of its own";
}

TEST(Csr, CodesDependNeitherOnChunksNorOnClones) {
  CsrFormat format = format_of(8, 2, 64);
  format.collect = 100;
  format.outliers = 0.75f;
  for (const auto& [solver, packed] :
       {std::pair{Solver::kMp, false}, {Solver::kOmp, false}, {Solver::kOmp, true}}) {
    format.solver = solver;
    format.packed = packed;
    const Machine machine;
    const auto x = normals(300 * kDim, 10);
    const auto whole = make(machine, format);
    whole->append(x.data(), kDim, 300);
    EXPECT_GT(whole->outlier_rows(), 0u);
    for (size_t step : {1, 7, 129}) {
      auto parts = make(machine, format);
      std::unique_ptr<CodedRows> copy;
      for (size_t t = 0; t < 300; t += step) {
        if (t >= 56 && !copy) {
          copy = parts->clone();  // in the middle of collecting
          const auto other = normals(200 * kDim, 11);
          copy->append(other.data(), kDim, 200);
        }
        parts->append(x.data() + t * kDim, kDim, std::min(step, 300 - t));
      }
      EXPECT_EQ(decoded(*parts), decoded(*whole)) << step;
      EXPECT_EQ(parts->payload_bytes(), whole->payload_bytes());
    }
  }
}

TEST(Csr, DroppedRowsLeaveTheOthersBitForBit) {
  const Machine machine;
  std::mt19937 random(12);
  // While collecting, just fixed, after.
  for (const auto& [before, packed] :
       {std::pair<size_t, bool>{40, false}, {64, false}, {200, false}, {64, true}, {200, true}}) {
    CsrFormat format = format_of(6, 1, 64);
    format.outliers = 0.8f;
    format.packed = packed;
    const auto rows = make(machine, format);
    const auto x = normals(300 * kDim, 13);
    rows->append(x.data(), kDim, before);
    auto expected = decoded(*rows);
    std::vector<uint32_t> kept;
    for (uint32_t t = 0; t < before; ++t)
      if (random() % 3) kept.push_back(t);
    rows->keep(kept);
    ASSERT_EQ(rows->rows(), kept.size());
    const auto got = decoded(*rows);
    for (size_t i = 0; i < kept.size(); ++i)
      for (size_t c = 0; c < kDim; ++c) ASSERT_EQ(got[i * kDim + c], expected[kept[i] * kDim + c]);
    EXPECT_EQ(rows->allocated_bytes() >= rows->payload_bytes() + rows->table_bytes(), true);
    rows->append(x.data() + before * kDim, kDim, 300 - before);
    EXPECT_EQ(rows->rows(), kept.size() + 300 - before);
    const auto after = decoded(*rows);
    const bool same = std::equal(got.begin(), got.end(), after.begin());
    EXPECT_TRUE(same || before < 64);
    rows->keep({});
    EXPECT_EQ(rows->payload_bytes() + rows->metadata_bytes(), 0u);
  }
}

/// Rows in all three states: coded, exact for their residual, and (few) waiting.
struct Mixed {
  Mixed(const Machine& machine, CsrFormat format, size_t dim, size_t count)
      : rows(make(machine, format, dim, offline(dim / format.chunks))) {
    const auto x = normals(count * dim, 15);
    rows->append(x.data(), dim, count);
  }
  OfflineAtoms offline(size_t dim) {
    const auto atoms = std::make_shared<std::vector<uint16_t>>(random_atoms(96, dim, 14));
    return {atoms->data(), 96, dim, atoms};
  }
  std::unique_ptr<CsrRows> rows;
};

TEST(Csr, ScoresAndSumsAreThoseOfTheDecodedRows) {
  for (std::string_view isa : available_isas())
    for (size_t dim : {64, 96, 128})
      for (const auto& [count, packed] :
           {std::pair<size_t, bool>{30, false}, {90, false}, {90, true}})
        for (size_t queries : {1, 4, 7}) {
          const Machine machine{std::string(isa)};
          CsrFormat format = format_of(8, 2, 40);
          format.packed = packed;
          format.rotated_keys = true;
          format.outliers = 0.57f + 0.0017f * static_cast<float>(dim);  // some rows, not all
          const Mixed mixed(machine, format, dim, count);
          const CsrRows& rows = *mixed.rows;
          const auto x = decoded(rows);
          if (count == 90) {
            EXPECT_GT(rows.outlier_rows(), 0u);
            EXPECT_LT(rows.outlier_rows(), 50u);
          }
          const auto q = normals(queries * dim, 16), p = normals(queries * count, 17);
          std::vector<float> prepared(rows.prepared_size(queries)), scores(queries * count);
          rows.prepare(prepared.data(), q.data(), queries);
          const size_t width = rows.accumulator_width();
          std::vector<float> acc(queries * width), out(queries * dim, 1);
          for (const auto& [first, n] : {std::pair<size_t, size_t>{0, 17}, {17, count - 17}}) {
            rows.scores(scores.data() + first, count, q.data(), prepared.data(), queries, first, n,
                        0.5f);
            rows.accumulate(acc.data(), p.data() + first, count, queries, first, n);
          }
          rows.finish(out.data(), acc.data(), queries);
          for (size_t m = 0; m < queries; ++m) {
            std::vector<double> expected(dim, 1);
            for (size_t t = 0; t < count; ++t) {
              double score = 0;
              for (size_t c = 0; c < dim; ++c) {
                score += 0.5 * q[m * dim + c] * x[t * dim + c];
                expected[c] += double{p[m * count + t]} * x[t * dim + c];
              }
              ASSERT_NEAR(scores[m * count + t], score, 1e-3) << isa << " " << t;
            }
            for (size_t c = 0; c < dim; ++c) ASSERT_NEAR(out[m * dim + c], expected[c], 1e-3);
          }
        }
}

TEST(Csr, OutlierRowsAreExactAndCounted) {
  const Machine machine;
  CsrFormat format = format_of(4, 1, 64);
  format.outliers = 0.5f;
  const auto rows = make(machine, format);
  const auto first = normals(64 * kDim, 18);
  rows->append(first.data(), kDim, 64);
  EXPECT_EQ(rows->outlier_rows(), 0u) << "rows that are atoms leave no residual";
  auto odd = normals(10 * kDim, 19);
  for (float& v : odd) v = f16_to_f32(f32_to_f16(v));
  rows->append(odd.data(), kDim, 10);
  ASSERT_EQ(rows->outlier_rows(), 10u) << "64 random atoms cannot halve a random row";
  const auto got = decoded(*rows);
  EXPECT_TRUE(std::equal(odd.begin(), odd.end(), got.begin() + 64 * kDim));
  EXPECT_EQ(rows->payload_bytes(), 74 * 4 * 4 + 10 * kDim * 2);
  EXPECT_EQ(rows->metadata_bytes(), 10 * sizeof(uint32_t));
}

std::string refusal(const std::string& policy, size_t dim = kDim) {
  const Machine machine;
  try {
    const Policy parsed = Policy::parse("exact+" + policy);
    const PolicyPart& part = *parsed.rules.front().key_codec;
    const CodecRow& row = codec_row("csr");
    RowsRequest request;
    request.dim = dim;
    row.make(row.read(part), Side::kKeys)->make_rows(machine.context, request);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Csr, WhatCannotBeIsRefused) {
  EXPECT_EQ(refusal("csr"), "");
  EXPECT_NE(refusal("csr(s=65)").find("from 1 to 64"), std::string::npos);
  EXPECT_NE(refusal("csr(s=0)"), "");
  EXPECT_NE(refusal("csr(s=8,chunks=3)").find("divide"), std::string::npos);
  EXPECT_NE(refusal("csr(s=8,chunks=4)", 80).find("head_dim 80"), std::string::npos);
  EXPECT_NE(refusal("csr(online=0)").find("no atoms"), std::string::npos);
  EXPECT_NE(refusal("csr(online=70000)").find("65536"), std::string::npos);
  EXPECT_NE(refusal("csr(online=4097,pair_bits=16)").find("pairs of 16 bits name 4096"),
            std::string::npos);
  EXPECT_NE(refusal("csr(pair_bits=8)"), "");
  EXPECT_NE(refusal("csr(solver=lasso)"), "");
}

TEST(Csr, NumbersThatF16CannotHoldAreRefused) {
  for (float bad : {NAN, INFINITY, 1e6f}) {
    const Machine machine;
    for (size_t at : {3, 30}) {  // while collecting, and after
      const auto rows = make(machine, format_of(4, 1, 16));
      auto x = normals(40 * kDim, 20);
      x[at * kDim + 5] = bad;
      EXPECT_THROW(rows->append(x.data(), kDim, 40), Error);
    }
  }
}

TEST(Csr, ZeroRowsStayZero) {
  const Machine machine;
  for (Solver solver : {Solver::kMp, Solver::kOmp}) {
    CsrFormat format = format_of(4, 2, 16);
    format.solver = solver;
    format.outliers = 0.5f;
    format.packed = solver == Solver::kOmp;
    const auto rows = make(machine, format);
    const std::vector<float> x(40 * kDim);
    rows->append(x.data(), kDim, 40);
    EXPECT_EQ(decoded(*rows), x);
    EXPECT_EQ(rows->outlier_rows(), 0u);
  }
}

}  // namespace
}  // namespace pith
