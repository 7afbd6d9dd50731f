// QJL's stated bounds: Theorem 3.6 on attention scores, the Hadamard sketch's small bias on keys of
// few channels, and packed scores against signs that are counted one by one here.

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/dtype.h"
#include "machine.h"
#include "methods/codecs/qjl/qjl_keys.h"

namespace pith {
namespace {

using test::Machine;
using test::normals;

std::unique_ptr<CodedRows> make(const Machine& machine, const QjlFormat& format, uint64_t seed,
                                size_t dim) {
  RowsRequest request;
  request.dim = dim;
  request.seed = seed;
  return QjlCodec(format).make_rows(machine.context, request);
}

std::vector<float> scores_of(const CodedRows& rows, const std::vector<float>& q) {
  std::vector<float> prepared(rows.prepared_size(1)), out(rows.rows());
  rows.prepare(prepared.data(), q.data(), 1);
  rows.scores(out.data(), out.size(), q.data(), prepared.data(), 1, 0, out.size(), 1);
  return out;
}

double dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

/// Share of `seeds` for which some attention score of 512 keys is off by more than 3 eps of itself.
double violations(size_t bits, double eps, int seeds) {
  const size_t n = 512, dim = 64;
  auto k = normals(n * dim, 1), q = normals(dim, 2);
  const auto to_norm_1 = [&](float* x) {
    const double norm = std::sqrt(dot(x, x, dim));
    for (size_t c = 0; c < dim; ++c) x[c] = static_cast<float>(x[c] / norm);
  };
  for (size_t t = 0; t < n; ++t) to_norm_1(k.data() + t * dim);
  to_norm_1(q.data());
  const Machine machine;
  int failed = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const auto rows =
        make(machine, {Sketch::kGaussian, bits, 0, 0}, static_cast<uint64_t>(seed), dim);
    rows->append(k.data(), dim, n);
    const auto got = scores_of(*rows, q);
    double estimated = 0, exact = 0, worst = 0;
    for (size_t t = 0; t < n; ++t) {
      estimated += std::exp(got[t]);
      exact += std::exp(dot(q.data(), k.data() + t * dim, dim));
    }
    for (size_t t = 0; t < n; ++t) {
      const double score = std::exp(dot(q.data(), k.data() + t * dim, dim)) / exact;
      worst = std::max(worst, std::abs(std::exp(got[t]) / estimated / score - 1));
    }
    failed += worst > 3 * eps;
  }
  return static_cast<double>(failed) / seeds;
}

TEST(QjlBounds, ScoresAreWithinTheorem36) {
  // Norms of at most r = 1 and m >= 2 r^2 / eps^2 ln n: every score within 1 +- 3 eps, with
  // probability 1 - 1 / poly(n).
  const double eps = 0.25;
  const double m = 2 / (eps * eps) * std::log(512.0);
  const auto bits = static_cast<size_t>(std::ceil(m / 16)) * 16;
  EXPECT_LT(violations(bits, eps, 60), 0.05);
  // With a tenth of the bits it does not hold: the figure above can fail.
  EXPECT_GT(violations(bits / 160 * 16, eps, 20), 0.5);
}

/// Mean of estimate / <q, k> over seeds for q = k, and its standard error. One block of D bits.
std::pair<double, double> ratio(Sketch sketch, const std::vector<float>& k, int seeds) {
  const Machine machine;
  double sum = 0, square = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const auto rows =
        make(machine, {sketch, k.size(), 0, 0}, static_cast<uint64_t>(seed), k.size());
    rows->append(k.data(), k.size(), 1);
    const double r = scores_of(*rows, k)[0] / dot(k.data(), k.data(), k.size());
    sum += r / seeds;
    square += r * r / seeds;
  }
  return {sum, std::sqrt((square - sum * sum) / seeds)};
}

/// E|B| / sqrt(n) for a sum B of n signs, n even.
double mean_of_signs(int n) {
  const double log = std::lgamma(n + 1.0) - 2 * std::lgamma(n / 2 + 1.0) - n * std::log(2.0);
  return std::exp(log) * n / std::sqrt(n);
}

TEST(QjlBounds, TheHadamardSketchIsBiasedByAPercentOnKeysOfOneOrTwoChannels) {
  // Its numbers for a key of one channel are sums of D signs over sqrt(D), of two equal ones sums
  // of D / 2: their mean size is below that of the sphere, for which c is made, by 1 / (2 D) and 3
  // / (4 D). Orthogonal rows and keys of all channels have no bias.
  const size_t dim = 64;
  const auto d = static_cast<double>(dim);
  const double sphere =
      std::exp(std::lgamma(d / 2) - std::lgamma((d + 1) / 2)) * std::sqrt(d / std::numbers::pi);
  std::vector<float> one(dim), two(dim);
  one[9] = 3;
  two[9] = two[40] = 2;
  auto all = normals(dim, 3);
  const double expected[] = {mean_of_signs(64) / sphere, mean_of_signs(32) / sphere, 1};
  EXPECT_NEAR(expected[0], 1 - 1 / (2 * d), 3e-4);
  EXPECT_NEAR(expected[1], 1 - 3 / (4 * d), 3e-4);
  int i = 0;
  for (const auto* k : {&one, &two, &all}) {
    const auto [hadamard, error] = ratio(Sketch::kHadamard, *k, 3000);
    EXPECT_NEAR(hadamard, expected[i++], 4 * error + 5e-4);  // and f16 norms
    EXPECT_GT(hadamard, 1 - 1 / d - 4 * error) << "the page's bound";
    const auto [ortho, deviation] = ratio(Sketch::kOrtho, *k, 60);
    EXPECT_NEAR(ortho, 1, 4 * deviation + 5e-4);
  }
}

TEST(QjlBounds, PackedScoresAreTheUnpackedOnesBitForBit) {
  // Real sketches of normal keys and queries. The query's numbers are rounded to 2^-10, so that
  // sums of 256 of them are exact in f32 in any order, and must agree to the last bit.
  const size_t count = 67, queries = 4;
  for (Sketch sketch : {Sketch::kGaussian, Sketch::kOrtho, Sketch::kHadamard})
    for (size_t dim : {64, 128}) {
      const size_t bits = 2 * dim;
      const auto k = normals(count * dim, 5), q = normals(queries * dim, 6);
      MemoryCounter memory;
      const Projection s(memory, {sketch, bits, dim}, 9, 0, 0x514A);
      for (std::string_view isa : available_isas()) {
        const Machine machine{std::string(isa)};
        const auto rows = make(machine, {sketch, bits, 0, 0}, 9, dim);
        rows->append(k.data(), dim, count);
        std::vector<float> prepared(rows->prepared_size(queries)), got(queries * count);
        rows->prepare(prepared.data(), q.data(), queries);
        for (size_t m = 0; m < queries; ++m) {
          float sum = 0;
          for (size_t i = 0; i < bits; ++i) {
            float& x = prepared[m * bits + i];
            x = std::nearbyint(x * 1024) / 1024;
            sum += x;
          }
          prepared[queries * bits + m] = sum;
        }
        rows->scores(got.data(), count, q.data(), prepared.data(), queries, 0, count, 1);
        size_t set = 0;
        for (size_t t = 0; t < count; ++t) {
          std::vector<float> projected(bits);
          s.apply(machine.context.kernels, projected.data(), k.data() + t * dim);
          const float norm =
              std::sqrt(machine.context.kernels.dot(k.data() + t * dim, k.data() + t * dim, dim));
          const float factor = s.unbias() / static_cast<float>(bits) * f16_to_f32(f32_to_f16(norm));
          for (size_t m = 0; m < queries; ++m) {
            float sum = 0;
            for (size_t i = 0; i < bits; ++i) {
              const bool positive = projected[i] >= 0;
              set += positive;
              sum += positive ? prepared[m * bits + i] : -prepared[m * bits + i];
            }
            ASSERT_EQ(got[m * count + t], factor * sum) << isa << " row " << t;
          }
        }
        const double share = static_cast<double>(set) / static_cast<double>(queries * count * bits);
        EXPECT_NEAR(share, 0.5, 0.05);
      }
    }
}

}  // namespace
}  // namespace pith
