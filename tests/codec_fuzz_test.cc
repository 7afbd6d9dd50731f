// Every codec of the registry, and some of their settings, over random shapes, cuts and deletions:
// rows do not depend on how they arrive, every run of rows decodes alike, scores and sums are those
// of the decoded rows, and bytes are what the allocator saw.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "machine.h"
#include "pith/policy.h"
#include "policy/registry.h"

namespace pith {
namespace {

using test::Machine;

class CodecFuzz : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec(Side side) const {
    const PolicyPart part = *Policy::parse("exact+" + GetParam()).rules.front().key_codec;
    const CodecRow& row = codec_row(part.name);
    return row.make(row.read(part), side);
  }
  std::vector<float> numbers(size_t n) {
    std::normal_distribution<float> normal(0.3f, 1);
    std::vector<float> x(n);
    for (float& v : x) v = normal(random_);
    return x;
  }
  size_t below(size_t n) { return random_() % n; }
  void check_rows(const CodedRows& rows, Side side);

  std::mt19937 random_{17};
};

std::vector<float> decoded(const CodedRows& rows, size_t first, size_t count) {
  std::vector<float> x(count * rows.dim(), NAN);
  rows.decode(x.data(), first, count);
  return x;
}

double product(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t c = 0; c < n; ++c) sum += double{a[c]} * b[c];
  return sum;
}

/// A run of rows against all of them; scores or sums over it against its decoded rows.
void CodecFuzz::check_rows(const CodedRows& rows, Side side) {
  if (rows.rows() == 0) return;
  const size_t dim = rows.dim(), first = below(rows.rows());
  const size_t count = 1 + below(rows.rows() - first), queries = 1 + below(5);
  const auto all = decoded(rows, 0, rows.rows()), run = decoded(rows, first, count);
  for (size_t i = 0; i < run.size(); ++i) ASSERT_EQ(run[i], all[first * dim + i]);
  if (side == Side::kKeys) {
    const auto q = numbers(queries * dim);
    std::vector<float> prepared(rows.prepared_size(queries) + 1, NAN);
    std::vector<float> out(queries * count, NAN);
    rows.prepare(prepared.data(), q.data(), queries);
    rows.scores(out.data(), count, q.data(), prepared.data(), queries, first, count, 0.25f);
    for (size_t m = 0; m < queries; ++m)
      for (size_t t = 0; t < count; ++t)
        ASSERT_NEAR(out[m * count + t], product(q.data() + m * dim, run.data() + t * dim, dim) / 4,
                    3e-3);
    return;
  }
  const auto p = numbers(queries * count);
  std::vector<float> sums(queries * rows.accumulator_width()), out(queries * dim);
  rows.accumulate(sums.data(), p.data(), count, queries, first, count);
  rows.finish(out.data(), sums.data(), queries);
  for (size_t m = 0; m < queries; ++m)
    for (size_t c = 0; c < dim; ++c) {
      double sum = 0;
      for (size_t t = 0; t < count; ++t) sum += double{p[m * count + t]} * run[t * dim + c];
      ASSERT_NEAR(out[m * dim + c], sum, 5e-3);
    }
}

TEST_P(CodecFuzz, RandomShapesCutsAndDeletions) {
  for (Side side : {Side::kKeys, Side::kValues})
    for (int trial = 0; trial < 3; ++trial) {
      const auto made = codec(side);
      RowsRequest request;
      request.side = side;
      // sketch=hadamard apart, every multiple of 16 is a head_dim.
      request.dim = 16 * (1 + below(trial == 0 ? 16 : 8));
      const size_t dim = request.dim;
      const Machine machine;
      const auto whole = made->make_rows(machine.context, request);
      const auto single = made->make_rows(machine.context, request);
      bool evicted = false;
      for (int round = 0; round < 6; ++round) {
        const size_t count = below(round == 0 ? 200 : 70);
        const auto x = numbers(count * dim);
        whole->append(x.data(), dim, count);
        for (size_t t = 0; t < count; ++t) single->append(x.data() + t * dim, dim, 1);
        const auto rows = decoded(*whole, 0, whole->rows());
        ASSERT_EQ(decoded(*single, 0, single->rows()), rows) << "D " << dim;
        check_rows(*whole, side);
        const auto used = whole->payload_bytes() + whole->metadata_bytes();
        ASSERT_LE(static_cast<double>(used), made->most_bytes(whole->rows(), dim, evicted) + 1);
        // Tables that rows share are the codec's; those of one head are its rows'.
        ASSERT_EQ(whole->allocated_bytes() + single->allocated_bytes(),
                  machine.memory.bytes(MemoryKind::kPayload) +
                      machine.memory.bytes(MemoryKind::kMetadata) +
                      machine.memory.bytes(MemoryKind::kShared) - made->shared_bytes());
        if (round % 2 == 0) continue;
        std::vector<uint32_t> kept;
        for (uint32_t t = 0; t < whole->rows(); ++t)
          if (below(3) != 0) kept.push_back(t);
        evicted |= kept.size() < whole->rows();
        const auto copy = whole->clone();
        whole->keep(kept);
        single->keep(kept);
        const auto left = decoded(*whole, 0, whole->rows());
        ASSERT_EQ(left.size(), kept.size() * dim);
        for (size_t i = 0; i < left.size(); ++i)
          ASSERT_EQ(left[i], rows[kept[i / dim] * dim + i % dim]);
        ASSERT_EQ(decoded(*copy, 0, copy->rows()), rows);
      }
    }
}

std::vector<std::string> texts() {
  std::vector<std::string> all;
  for (const CodecRow& row : codec_rows()) all.push_back(row.info.name);
  for (const char* text :
       {"int4(hadamard=true,center=40)", "kivi(bits=4,center=32)",
        "qjl(paper=true,outliers=0,center=33)", "qjl(residual=2,m=48,sketch=gaussian)",
        "gear(bits=4,rank=1,rows=32,outliers=0)", "kvquant(bits=2,calibrate=50,outliers=3)",
        "kvquant(bits=4,outliers=0)", "turboquant(bits=1)", "turboquant(bits=4,center=16)",
        "ladder(new=kivi(bits=4),old=turboquant(center=48),rows=20)",
        "int4(hadamard=true,center=40,pre_rope=true)", "kivi(center=33,pre_rope=true)",
        "gear(rows=32,center=20,pre_rope=true)", "qjl(center=1,pre_rope=true)",
        "kvtc(bits=0.5,calibrate=40)", "kvtc(bits=4.25,calibrate=33)"})
    all.emplace_back(text);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Registry, CodecFuzz, testing::ValuesIn(texts()),
                         [](const auto& i) { return "codec" + std::to_string(i.index); });

}  // namespace
}  // namespace pith
