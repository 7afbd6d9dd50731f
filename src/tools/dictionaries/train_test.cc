// Training on data that is sparse over a dictionary nobody tells: the trained dictionary must beat
// k-means and random atoms on rows it has not seen. And the files, the grouping of layers, k-means.

#include "tools/dictionaries/train.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "core/dtype.h"
#include "core/safetensors.h"
#include "methods/codecs/csr/csr_codec.h"
#include "methods/codecs/csr/dictionary.h"
#include "methods/codecs/csr/kmeans.h"
#include "model/test_files.h"
#include "pith/error.h"
#include "tools/dictionaries/dict_jobs.h"
#include "tools/dictionaries/layer_groups.h"

namespace pith {
namespace {

using testing_files::expect_error;
using testing_files::TemporaryFolder;

constexpr size_t kDim = 32;

/// Rows that are sums of 3 of 48 hidden directions, with a little noise.
std::vector<float> sparse_rows(size_t count, uint32_t seed) {
  std::mt19937 hidden(77), random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> directions(48 * kDim);
  for (float& v : directions) v = normal(hidden) / std::sqrt(static_cast<float>(kDim));
  std::vector<float> x(count * kDim);
  for (size_t t = 0; t < count; ++t) {
    for (int i = 0; i < 3; ++i) {
      const size_t n = random() % 48;
      const float weight = normal(random) + (random() % 2 ? 2.0f : -2.0f);
      for (size_t c = 0; c < kDim; ++c) x[t * kDim + c] += weight * directions[n * kDim + c];
    }
    for (size_t c = 0; c < kDim; ++c) x[t * kDim + c] += 0.02f * normal(random);
  }
  return x;
}

struct Trained {
  double first = 0, last = 0;
  TrainResult result;
};

TrainResult train(TrainOptions::Method method, float diversity = 0.1f, uint64_t seed = 1) {
  static const std::vector<float> x = sparse_rows(2500, 1);
  MemoryCounter memory;
  TrainOptions options;
  options.method = method;
  options.atoms = 64;
  options.code = {3, Solver::kMp};
  options.epochs = 15;
  options.batch = 128;
  options.rate = 0.01f;
  options.diversity = diversity;
  options.seed = seed;
  return train_atoms(kernels_for(), memory, {x.data(), 2500, kDim, 500}, options);
}

TEST(Train, TrainedAtomsBeatKMeansAndRandomOnesOnRowsHeldOut) {
  using Method = TrainOptions::Method;
  const double neural = train(Method::kNeural).losses.back();
  const double centroids = train(Method::kKMeans).losses.back();
  const double rows = train(Method::kRows).losses.back();
  const double gaussian = train(Method::kGaussian).losses.back();
  EXPECT_LT(neural, 0.7 * centroids);
  EXPECT_LT(neural, 0.7 * rows);
  EXPECT_LT(centroids, gaussian);
  EXPECT_LT(rows, gaussian);
}

TEST(Train, AtomsHaveUnitNormAndLossesAreThoseOfTheAtoms) {
  const TrainResult result = train(TrainOptions::Method::kNeural);
  ASSERT_EQ(result.losses.size(), 16u);
  ASSERT_EQ(result.atoms.size(), 64 * kDim);
  for (size_t n = 0; n < 64; ++n) {
    double norm = 0;
    for (size_t c = 0; c < kDim; ++c) norm += std::pow(f16_to_f32(result.atoms[n * kDim + c]), 2.0);
    EXPECT_NEAR(norm, 1, 2e-3);
  }
  EXPECT_LT(result.losses.back(), result.losses.front());
  const auto x = sparse_rows(2500, 1);
  MemoryCounter memory;
  EXPECT_NEAR(coding_loss(kernels_for(), memory, {x.data() + 2000 * kDim, 500, kDim, 0},
                          result.atoms, {3, Solver::kMp}),
              result.losses.back(), 1e-9);
}

TEST(Train, SameSeedSameAtomsAndAStopLeavesNone) {
  using Method = TrainOptions::Method;
  EXPECT_EQ(train(Method::kNeural).atoms, train(Method::kNeural).atoms);
  EXPECT_NE(train(Method::kNeural).atoms, train(Method::kNeural, 0.1f, 2).atoms);
  EXPECT_NE(train(Method::kNeural).atoms, train(Method::kNeural, 0).atoms);
  const auto x = sparse_rows(300, 2);
  MemoryCounter memory;
  TrainOptions options;
  options.atoms = 32;
  options.code.pairs = 2;
  int asked = 0;
  EXPECT_TRUE(train_atoms(kernels_for(), memory, {x.data(), 300, kDim, 50}, options, [&] {
                return ++asked < 3;
              }).atoms.empty());
}

TEST(Train, KeepingAtomsApartDoesNotHurt) {
  double with = 0, without = 0;
  for (uint64_t seed : {1, 2, 3}) {
    with += train(TrainOptions::Method::kNeural, 0.1f, seed).losses.back();
    without += train(TrainOptions::Method::kNeural, 0, seed).losses.back();
  }
  EXPECT_LT(with, 1.02 * without);
}

TEST(Train, KMeansFindsClusters) {
  // Three tight clusters: the centroids are their means.
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(300 * 16);
  for (size_t t = 0; t < 300; ++t)
    for (size_t c = 0; c < 16; ++c)
      x[t * 16 + c] = (c == t % 3 ? 10.0f : 0.0f) + 0.1f * normal(random);
  const auto centroids = kmeans(kernels_for(), x.data(), 300, 16, {3, 20, 5});
  for (size_t j = 0; j < 3; ++j) {
    double nearest = INFINITY;
    for (size_t k = 0; k < 3; ++k) {
      double distance = 0;
      for (size_t c = 0; c < 16; ++c)
        distance += std::pow(centroids[k * 16 + c] - (c == j ? 10 : 0), 2.0);
      nearest = std::min(nearest, distance);
    }
    EXPECT_LT(nearest, 0.1);
  }
}

std::vector<float> cloud(size_t count, size_t dim, float shift, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count * dim);
  for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random) + (i % dim < dim / 2 ? shift : 0.0f);
  return x;
}

TEST(Train, AlikeLayersAreGrouped) {
  const auto a = cloud(4000, 16, 3, 1), b = cloud(4000, 16, -3, 2), c = cloud(4000, 16, -2, 3);
  EXPECT_NEAR(layer_divergence(a, a, 16), 0, 1e-12);
  EXPECT_NEAR(layer_divergence(a, b, 16), 1, 1e-3) << "opposite directions share no bin";
  EXPECT_NEAR(layer_divergence(a, b, 16), layer_divergence(b, a, 16), 1e-9);
  const double noise = layer_divergence(b, cloud(4000, 16, -3, 4), 16);
  EXPECT_LT(noise, 0.03) << "one distribution, other rows: raw histograms differ by 0.4";
  const double near = layer_divergence(b, c, 16);
  EXPECT_GT(near, noise + 0.03);
  const std::vector<std::vector<float>> layers = {a, b, b, c, a};
  const auto groups = group_layers(layers, 16, {near + 0.01, 1});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[1].first, 1u);
  EXPECT_EQ(groups[1].last, 3u);
  EXPECT_EQ(group_layers(layers, 16, {near - 0.01, 1})[1].last, 2u) << "delta1";
  EXPECT_EQ(group_layers(layers, 16, {near + 0.01, near - 0.01})[1].last, 2u) << "delta2";
}

/// Two layer groups of keys, one of values that are cut in two; 3 layers, 2 heads.
DictionarySides sides() {
  const auto atoms = [](size_t n) {
    std::vector<uint16_t> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = f32_to_f16(static_cast<float>(i % 97) / 97);
    return x;
  };
  DictionarySides s;
  s.keys = {{{0, 0}, 2, 5, kDim, atoms(2 * 5 * kDim)}, {{1, 2}, 2, 7, kDim, atoms(2 * 7 * kDim)}};
  s.values = {{{0, 2}, 1, 11, kDim / 2, atoms(11 * kDim / 2)}};
  return s;
}

const DictionaryModel kModel{"toy", 0xABCDEF0123456789, 3, 2, kDim};

RowsRequest request_of(Side side, uint32_t layer, uint32_t head, uint64_t model) {
  RowsRequest r;
  r.side = side;
  r.dim = kDim;
  r.layer = layer;
  r.head = head;
  r.model = model;
  return r;
}

TEST(Dictionary, WhatIsWrittenIsReadByLayerAndHead) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "d.safetensors";
  const DictionarySides s = sides();
  write_dictionary(path, kModel, s, {{"text", "x.txt"}});
  const auto file = DictionaryFile::open(path);
  EXPECT_EQ(file.model().name, "toy");
  EXPECT_EQ(file.metadata().at("text"), "x.txt");
  EXPECT_EQ(file.chunks(Side::kKeys), 1u);
  EXPECT_EQ(file.chunks(Side::kValues), 2u);
  const auto keys = file.atoms(request_of(Side::kKeys, 2, 1, kModel.fingerprint));
  ASSERT_EQ(keys.count, 7u);
  EXPECT_TRUE(std::equal(keys.rows, keys.rows + 7 * kDim, s.keys[1].atoms.data() + 7 * kDim));
  const auto values = file.atoms(request_of(Side::kValues, 1, 1, kModel.fingerprint));
  EXPECT_EQ(values.count, 11u);
  EXPECT_EQ(values.dim, kDim / 2);
  EXPECT_EQ(values.rows[3], s.values[0].atoms[3]);
  // Each byte is counted once over the layers.
  size_t bytes = 0;
  for (size_t layer = 0; layer < 3; ++layer)
    bytes += file.layer_bytes(Side::kKeys, layer) + file.layer_bytes(Side::kValues, layer);
  EXPECT_EQ(bytes, 2 * (2 * 5 * kDim + 2 * 7 * kDim + 11 * kDim / 2));
}

TEST(Dictionary, AnotherModelIsRefused) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "d.safetensors";
  write_dictionary(path, kModel, sides(), {});
  const auto file = DictionaryFile::open(path);
  expect_error(ErrorCode::kInvalidArgument, {"toy", "not for this model"},
               [&] { file.atoms(request_of(Side::kKeys, 0, 0, 5)); });
  expect_error(ErrorCode::kInvalidArgument, {"does not know its model"},
               [&] { file.atoms(request_of(Side::kKeys, 0, 0, 0)); });
  write_safetensors(path, {}, {});
  expect_error(ErrorCode::kCorrupt, {"train-dict"}, [&] { DictionaryFile::open(path); });
  DictionarySides holes = sides();
  holes.keys.pop_back();
  write_dictionary(path, kModel, holes, {});
  expect_error(ErrorCode::kCorrupt, {"keys of layer 1"}, [&] { DictionaryFile::open(path); });
}

TEST(Dictionary, TheCodecCodesOverIt) {
  const TemporaryFolder folder;
  const auto path = (folder.path() / "d.safetensors").string();
  DictionarySides s = sides();
  // Head 1 of layers 1-2: the atoms are axes, so rows of few axes are coded exactly.
  auto& keys = s.keys[1].atoms;
  std::fill(keys.begin() + 7 * kDim, keys.end(), uint16_t{0});
  for (size_t n = 0; n < 7; ++n) keys[(7 + n) * kDim + 3 * n] = f32_to_f16(1);
  write_dictionary(path, kModel, s, {});
  ThreadPool pool(1);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for()};
  CsrFormat format;
  format.pairs = 2;
  const CsrCodec codec(format, Side::kKeys,
                       std::make_shared<const DictionaryFile>(DictionaryFile::open(path)));
  const auto rows = codec.make_rows(context, request_of(Side::kKeys, 2, 1, kModel.fingerprint));
  EXPECT_EQ(codec.shared_bytes(), 7 * kDim * 2) << "half of the group's two heads";
  std::vector<float> x(4 * kDim), got(4 * kDim);
  for (size_t t = 0; t < 4; ++t) x[t * kDim + 3 * t] = 2, x[t * kDim + 3 * t + 3] = -1.5f;
  rows->append(x.data(), kDim, 4);
  rows->decode(got.data(), 0, 4);
  EXPECT_EQ(got, x);
  EXPECT_EQ(rows->payload_bytes(), 4 * 2 * 4u) << "no online part: nothing waits";
  format.chunks = 2;
  const CsrCodec cut(format, Side::kKeys,
                     std::make_shared<const DictionaryFile>(DictionaryFile::open(path)));
  expect_error(ErrorCode::kInvalidArgument, {"chunks=2", "dictionary is for 1"},
               [&] { cut.make_rows(context, request_of(Side::kKeys, 2, 1, kModel.fingerprint)); });
}

/// Two layers with one KV head of 32 channels.
std::vector<LayerKv> layer_rows() {
  std::vector<LayerKv> kv(2);
  for (uint32_t l = 0; l < 2; ++l) {
    kv[l].keys = sparse_rows(400, 10 + l);
    kv[l].values = sparse_rows(400, 20 + l);
  }
  return kv;
}

struct JobsRun {
  bool complete = false;
  size_t resumed = 0, asked = 0;
  DictionarySides sides;
};

/// Trains until `progress` has been asked `most` times.
JobsRun run_jobs(const std::string& checkpoint, const std::string& identity, size_t most,
                 bool share_heads = false) {
  DictSettings settings;
  settings.train.atoms = 24;
  settings.train.epochs = 3;
  settings.train.batch = 64;
  settings.keys = {3, 1};
  settings.values = {2, 2};
  settings.grouping.pairwise = -1;  // every layer for itself
  settings.share_heads = share_heads;
  const std::vector<LayerKv> kv = layer_rows();
  ThreadPool pool(1);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for()};
  DictJobs jobs({"toy", 5, 2, 1, kDim}, settings);
  jobs.plan(kv);
  JobsRun run;
  run.complete =
      jobs.run(context, checkpoint, identity, [&](size_t, size_t) { return ++run.asked < most; });
  run.resumed = jobs.resumed();
  if (run.complete) run.sides = jobs.sides();
  return run;
}

TEST(Train, WhatWasStoppedGoesOnFromItsCheckpoint) {
  const TemporaryFolder folder;
  const auto at = [&](const char* name) { return (folder.path() / name).string(); };
  const JobsRun whole = run_jobs(at("whole"), "a", 1000);
  ASSERT_TRUE(whole.complete);
  ASSERT_EQ(whole.sides.keys.size(), 2u);
  EXPECT_EQ(whole.sides.values[0].dim, kDim / 2);
  EXPECT_FALSE(run_jobs(at("cut"), "a", 10).complete);  // in the third of four dictionaries
  const JobsRun rest = run_jobs(at("cut"), "a", 1000);
  ASSERT_TRUE(rest.complete);
  EXPECT_EQ(rest.resumed, 2u);
  EXPECT_LT(rest.asked, whole.asked);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rest.sides.keys[i].atoms, whole.sides.keys[i].atoms);
    EXPECT_EQ(rest.sides.values[i].atoms, whole.sides.values[i].atoms);
  }
  expect_error(ErrorCode::kInvalidArgument, {"other settings"},
               [&] { run_jobs(at("cut"), "b", 1000); });
}

}  // namespace
}  // namespace pith
