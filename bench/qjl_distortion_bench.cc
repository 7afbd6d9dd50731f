// QJL's figure: how far estimates of <q, k> are from the truth, against bits, for the three
// sketches, with and without channels of their own for outliers. Keys are normal numbers, once as
// they are and once with 4 channels 10 times as large, as the paper sees them in deep layers;
// queries normal. Distortion: root mean square of (estimate - <q, k>) / (|q| |k|) over rows and
// seeds. Bits: all that a key takes, norms and lists of channels too. Also what a sketch costs in
// bias: the mean of estimate / <q, k> for q = k, keys of one channel, of two, and of all.
//   qjl_distortion_bench [seeds=16]                                   (Markdown on standard output)

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "pith/error.h"
#include "policy/registry.h"

namespace pith::bench {
namespace {

constexpr size_t kDim = 128, kRows = 512;

std::vector<float> normals(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

double dot(const float* a, const float* b) {
  double sum = 0;
  for (size_t c = 0; c < kDim; ++c) sum += double{a[c]} * b[c];
  return sum;
}

struct Setting {
  std::string sketch;
  size_t m = 0, outliers = 0;
};

class Machine {
 public:
  /// Estimates of <q, k[t]> under one draw of the sketch; bits of a key to `bits`.
  std::vector<float> estimates(const Setting& s, uint64_t seed, const std::vector<float>& k,
                               const std::vector<float>& q, double* bits) {
    const CodecRow& row = codec_row("qjl");
    PolicyPart part{"qjl",
                    {{"paper", "true"},
                     {"sketch", s.sketch},
                     {"m", std::to_string(s.m)},
                     {"outliers", std::to_string(s.outliers)}}};
    if (s.outliers) part.parameters["m_out"] = std::to_string(s.m / 2);
    const auto codec = row.make(row.read(part), Side::kKeys);
    RowsRequest request;
    request.dim = kDim;
    request.seed = seed;
    const auto rows = codec->make_rows(context_, request);
    rows->append(k.data(), kDim, k.size() / kDim);
    if (bits) *bits = 8 * codec->bytes_per_row(kDim) / kDim;
    std::vector<float> prepared(rows->prepared_size(1)), out(rows->rows());
    rows->prepare(prepared.data(), q.data(), 1);
    rows->scores(out.data(), out.size(), q.data(), prepared.data(), 1, 0, out.size(), 1);
    return out;
  }

 private:
  ThreadPool pool_{1};
  MemoryCounter memory_;
  Context context_{pool_, memory_, kernels_for()};
};

/// Root mean square of the relative error over rows and seeds.
double distortion(Machine& machine, const Setting& s, bool planted, int seeds, double* bits) {
  auto k = normals(kRows * kDim, 1);
  if (planted)
    for (size_t t = 0; t < kRows; ++t)
      for (size_t c : {5, 40, 77, 101}) k[t * kDim + c] *= 10;
  double sum = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const auto q = normals(kDim, 100 + static_cast<uint32_t>(seed));
    const auto got = machine.estimates(s, static_cast<uint64_t>(seed), k, q, bits);
    for (size_t t = 0; t < kRows; ++t) {
      const float* key = k.data() + t * kDim;
      const double norms = std::sqrt(dot(q.data(), q.data()) * dot(key, key));
      sum += std::pow((got[t] - dot(q.data(), key)) / norms, 2);
    }
  }
  return std::sqrt(sum / (seeds * static_cast<double>(kRows)));
}

void print_distortion(Machine& machine, bool planted, int seeds) {
  fmt::print("### {}\n\n| bits a number |",
             planted ? "Four channels 10 times as large" : "Normal keys");
  for (const char* sketch : {"gaussian", "ortho", "hadamard"}) fmt::print(" {} |", sketch);
  fmt::print("\n|---|---|---|---|\n");
  for (size_t outliers : {0, 8})
    for (size_t m : {64, 128, 256, 512, 1024}) {
      std::string line;
      double bits = 0;
      for (const char* sketch : {"gaussian", "ortho", "hadamard"})
        line += fmt::format(" {:.4f} |",
                            distortion(machine, {sketch, m, outliers}, planted, seeds, &bits));
      fmt::print("| {:.2f} (m={}{}) |{}\n", bits, m,
                 outliers ? fmt::format(", {} apart with m_out={}", outliers, m / 2) : "", line);
    }
  fmt::print("\n");
}

void print_bias(Machine& machine, int seeds) {
  fmt::print(
      "### Mean of estimate / <q, k> for q = k, {} seeds, in brackets one standard error\n\n"
      "| key | gaussian | ortho | hadamard |\n|---|---|---|---|\n",
      seeds);
  for (size_t channels : {size_t{1}, size_t{2}, size_t{4}, kDim}) {
    std::vector<float> k(kDim);
    const auto numbers = normals(kDim, 7);
    for (size_t i = 0; i < channels; ++i) k[(5 + 37 * i) % kDim] = channels < 8 ? 1 : numbers[i];
    fmt::print("| {} channel{} |", channels, channels == 1 ? "" : "s");
    for (const char* sketch : {"gaussian", "ortho", "hadamard"}) {
      double sum = 0, square = 0;
      for (int seed = 0; seed < seeds; ++seed) {
        const auto got =
            machine.estimates({sketch, kDim, 0}, static_cast<uint64_t>(seed), k, k, nullptr);
        const double ratio = got[0] / dot(k.data(), k.data());
        sum += ratio / seeds;
        square += ratio * ratio / seeds;
      }
      fmt::print(" {:.4f} ({:.4f}) |", sum, std::sqrt((square - sum * sum) / seeds));
    }
    fmt::print("\n");
  }
}

int run(int seeds) {
  Machine machine;
  fmt::print(
      "Made by `ninja -C build qjl_distortion_bench && build/bin/qjl_distortion_bench {}`: "
      "D = {}, {} keys, root mean\nsquare of (estimate - <q, k>) / (|q| |k|).\n\n",
      seeds, kDim, kRows);
  for (bool planted : {false, true}) print_distortion(machine, planted, seeds);
  print_bias(machine, 16 * seeds);
  return 0;
}

}  // namespace
}  // namespace pith::bench

int main(int argc, char** argv) {
  try {
    return pith::bench::run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 16);
  } catch (const pith::Error& error) {
    fmt::print(stderr, "qjl_distortion_bench: {}\n", error.what());
    return 1;
  }
}
