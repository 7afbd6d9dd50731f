// kvtc on the GPU: rows of levels along vectors, which the host finds in a head's first rows.

#include "methods/codecs/kvtc/kvtc_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <thread>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "kernels/cuda/device_archive.h"
#include "methods/codecs/kvtc/kvtc.h"
#include "methods/codecs/kvtc/normal_levels.h"
#include "methods/codecs/kvtc/transform_rows.h"
#include "methods/codecs/kvtc/transform_tables.h"
#include "methods/registry_cuda.h"
#include "rows/cuda/head_sample.h"
#include "rows/cuda/level_codec.h"

namespace pith::cuda {
namespace {

constexpr unsigned kThreads = 8;  // at most, that find tables

/// One side's tables, of all heads.
struct VectorTables {
  DeviceArray<uint16_t> means;            // [G, D]
  DeviceArray<int32_t> counts;            // [G]
  DeviceArray<uint32_t> places, vectors;  // [G, room], [G, room / 2, D]
  DeviceArray<float> deviations;          // [G, room]
  /// Keys': of the queries' energy while they are seen, then of the weights.
  DeviceArray<float> squares;  // [G, D/2]

  VectorTables() = default;
  VectorTables(const TableSite& site, size_t room, bool weighed)
      : means(*site.memory, MemoryKind::kShared, numbers(site), site.stream),
        counts(*site.memory, MemoryKind::kShared, heads(site), site.stream),
        places(*site.memory, MemoryKind::kShared, heads(site) * room, site.stream),
        vectors(*site.memory, MemoryKind::kShared, numbers(site) * room / 2, site.stream),
        deviations(*site.memory, MemoryKind::kShared, heads(site) * room, site.stream),
        squares(*site.memory, MemoryKind::kShared, weighed ? numbers(site) / 2 : 0, site.stream) {
    if (weighed)
      check(cudaMemsetAsync(squares.data(), 0, 4 * squares.size(), site.stream), "no queries yet");
  }
  static size_t heads(const TableSite& site) { return static_cast<size_t>(site.kv_heads); }
  static size_t numbers(const TableSite& site) {
    return heads(site) * static_cast<size_t>(site.head_dim);
  }

  struct Part {
    void* data;
    size_t bytes;
  };
  std::array<Part, 6> parts() const {
    return {
        Part{means.data(), 2 * means.size()},           Part{counts.data(), 4 * counts.size()},
        Part{places.data(), 4 * places.size()},         Part{vectors.data(), 4 * vectors.size()},
        Part{deviations.data(), 4 * deviations.size()}, Part{squares.data(), 4 * squares.size()}};
  }
  size_t bytes() const {
    size_t sum = 0;
    for (const Part& part : parts()) sum += part.bytes;
    return sum;
  }
};

/// The same of one head on the host.
struct HeadTables {
  std::vector<uint16_t> mean;  // [D]
  int32_t count = 0;
  std::vector<uint32_t> places, vectors;  // [room], [room / 2, D]
  std::vector<float> deviations;          // [room]
  std::vector<float> squares;             // [D/2]
};

/// Vectors [n, D] as the CPU stores them.
void round_vectors(std::vector<float>& vectors, size_t dim) {
  ThreadPool one(1);
  MemoryCounter memory;
  const size_t n = vectors.size() / dim;
  RowsRequest request;
  request.dim = dim;
  request.max_rows = n;
  const auto rows =
      TokenCodec(TransformFormat::kBasis).make_rows({one, memory, kernels_for()}, request);
  rows->append(vectors.data(), dim, n);
  rows->decode(vectors.data(), 0, n);
}

/// Of rows [n, D] in f16 and the queries' energy [D/2], or none, as TransformRows::learn finds
/// them.
HeadTables head_tables(std::span<const uint16_t> halves, std::span<const float> energy, size_t dim,
                       const TransformFormat& format, size_t room, ThreadPool& pool) {
  std::vector<float> rows(halves.size()), mean(dim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = f16_to_f32(halves[i]);
  take_means(mean.data(), rows.data(), rows.size() / dim, dim);
  HeadTables tables;
  for (float& m : mean) {
    tables.mean.push_back(f32_to_f16(m));
    m = f16_to_f32(tables.mean.back());
  }
  const std::vector<float> weights = channel_weights(pair_weights(energy), dim);
  for (size_t i = 0; i < dim / 2; ++i) tables.squares.push_back(weights[i] * weights[i]);
  TransformTables found = find_transform(rows, mean, weights, format.code_bits(dim), pool);
  round_vectors(found.vectors, dim);
  tables.count = static_cast<int32_t>(found.bits.size());
  tables.places.resize(room);
  tables.deviations.resize(room);
  tables.vectors.resize(room / 2 * dim);
  uint32_t at = 0;
  for (size_t i = 0; i < found.bits.size(); ++i) {
    tables.places[i] = at | uint32_t{found.bits[i]} << 16;
    at += found.bits[i];
    const float deviation = f16_to_f32(f32_to_f16(found.deviations[i]));
    tables.deviations[i] = deviation;
    for (size_t c = 0; c < dim; ++c) {
      const float part = deviation * found.vectors[i * dim + c] / weights[c];
      const uint32_t number = f32_to_f16(std::clamp(part, -65504.0f, 65504.0f));
      tables.vectors[i / 2 * dim + c] |= i % 2 == 0 ? number : number << 16;
    }
  }
  return tables;
}

class KvtcDeviceCodec final : public LevelCodec {
 public:
  struct Sides {
    bool keys = true, values = true;  ///< that lie along vectors
  };
  KvtcDeviceCodec(std::string name, const LevelFormat& format, const TransformFormat& given,
                  const Sides& sides)
      : LevelCodec(std::move(name), format), given_(given), sides_(sides) {}

  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override;
  std::shared_ptr<const DeviceCodec> copy(cudaStream_t stream) const override;
  std::shared_ptr<const LevelCodec> in_form(const LevelFormat& format) const override {
    return std::make_shared<KvtcDeviceCodec>(name_, format, given_, sides_);
  }
  std::shared_ptr<const LevelCodec> of_keys() const override {
    return std::make_shared<KvtcDeviceCodec>(name_, format_, given_, Sides{true, false});
  }
  std::shared_ptr<const LevelCodec> of_values() const override {
    return std::make_shared<KvtcDeviceCodec>(name_, format_, given_, Sides{false, true});
  }
  bool turns_keys() const override { return sides_.keys; }
  size_t shared_bytes() const override {
    return keys_.bytes() + values_.bytes() + 4 * levels_.size() + 8 * turns_.size();
  }
  size_t scratch_bytes() const override { return 2 * sample_numbers(); }
  size_t learns_from() const override { return (given_.calibrate + 31) / 32 * 32; }
  void learn(const RowTarget& rows, DType dtype, const RowPositions& positions,
             cudaStream_t stream) const override;
  size_t first_queries() const override { return sides_.keys ? given_.calibrate : 0; }
  void see_queries(const FirstQueries& queries, cudaStream_t stream) const override {
    if (sides_.keys)
      add_energy(keys_.squares.data(), queries, site_.kv_heads, site_.head_dim, stream);
  }
  void archive_queries(Archive& a, cudaStream_t stream) const override {
    if (sides_.keys) archive_squares(a, stream);
  }
  void archive(Archive& a, cudaStream_t stream) const override;
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    if (!keys.empty()) code_along_vectors(format_.keys, keys_.squares.data(), batch, keys, stream);
    if (!values.empty()) code_along_vectors(format_.values, nullptr, batch, values, stream);
  }

 private:
  size_t dim() const { return static_cast<size_t>(site_.head_dim); }
  /// Of the rows of one side that it learns from, [G, rows, D] as f16.
  size_t sample_numbers() const { return VectorTables::numbers(site_) * given_.calibrate; }
  size_t room() const { return (given_.most_coordinates(dim()) + 15) / 16 * 16; }
  /// Tables of a side that has them.
  VectorTables place(LevelSide& side, bool there) const;
  void learn_side(const VectorTables& tables, HeadSample sample, const double* turns,
                  cudaStream_t stream) const;
  void archive_side(Archive& a, const VectorTables& tables, cudaStream_t stream) const;
  void archive_squares(Archive& a, cudaStream_t stream) const;

  TransformFormat given_;
  Sides sides_;
  TableSite site_;
  DeviceArray<double> turns_;  // [D/2]
  DeviceArray<float> levels_;  // [LevelVectors::kLevels]
  VectorTables keys_, values_;
};

std::vector<float> all_levels() {
  static_assert(LevelVectors::kMostBits == kMostLevelBits);
  std::vector<float> all{0};
  for (const NormalLevels& of : normal_levels())
    all.insert(all.end(), of.levels().begin(), of.levels().end());
  all.resize(LevelVectors::kLevels);
  return all;
}

VectorTables KvtcDeviceCodec::place(LevelSide& side, bool there) const {
  side.along.row_bytes = static_cast<int>(given_.row_bytes(dim()) - 1);  // the scale lies beside
  if (!there) return {};
  VectorTables tables(site_, room(), &side == &format_.keys);
  side.means = tables.means.data();
  side.along.room = static_cast<int>(room());
  side.along.levels = levels_.data();
  side.along.counts = tables.counts.data();
  side.along.places = tables.places.data();
  side.along.deviations = tables.deviations.data();
  side.along.vectors = tables.vectors.data();
  return tables;
}

std::shared_ptr<const DeviceCodec> KvtcDeviceCodec::with_tables(const TableSite& site) const {
  auto own = std::make_shared<KvtcDeviceCodec>(
      fmt::format("{}, layer {}", name_.substr(0, name_.find(',')), site.layer), format_, given_,
      sides_);
  own->site_ = site;
  const std::vector<float> levels = all_levels();
  own->levels_ = {*site.memory, MemoryKind::kShared, levels.size(), site.stream};
  own->levels_.upload(levels.data(), levels.size(), site.stream);
  check(cudaStreamSynchronize(site.stream), "kvtc's levels");
  if (sides_.keys) own->turns_ = rope_turns(site, "kvtc codes keys before RoPE");
  own->format_.keys.turns = sides_.keys ? own->turns_.data() : nullptr;
  own->keys_ = own->place(own->format_.keys, sides_.keys);
  own->values_ = own->place(own->format_.values, sides_.values);
  return own;
}

std::shared_ptr<const DeviceCodec> KvtcDeviceCodec::copy(cudaStream_t stream) const {
  auto own = std::static_pointer_cast<const KvtcDeviceCodec>(with_tables(site_));
  for (const auto& [to, from] : {std::pair{&own->keys_, &keys_}, {&own->values_, &values_}}) {
    const auto into = to->parts(), parts = from->parts();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].bytes == 0) continue;
      check(cudaMemcpyAsync(into[i].data, parts[i].data, parts[i].bytes, cudaMemcpyDeviceToDevice,
                            stream),
            "a copy of kvtc's tables");
    }
  }
  return own;
}

void KvtcDeviceCodec::learn(const RowTarget& rows, DType dtype, const RowPositions& positions,
                            cudaStream_t stream) const {
  HeadSample sample = sample_keys({rows, dtype, positions}, site_, given_.calibrate);
  if (sides_.keys) learn_side(keys_, sample, turns_.data(), stream);
  sample.rows = rows.v;
  if (sides_.values) learn_side(values_, sample, nullptr, stream);
}

// The host waits for the rows, once in a session for each layer: 30 D^3 multiply-adds in f64 for a
// head.
void KvtcDeviceCodec::learn_side(const VectorTables& tables, HeadSample sample, const double* turns,
                                 cudaStream_t stream) const {
  DeviceArray<uint16_t> out(site_.of_moments(), MemoryKind::kScratch, sample_numbers(), stream);
  wait_as_halves(out.data(), turns, sample, stream);
  std::vector<uint16_t> all(out.size());
  out.download(all.data(), all.size(), stream);
  const size_t heads = VectorTables::heads(site_), numbers = sample_numbers() / heads;
  std::vector<float> energy(tables.squares.size());
  if (!energy.empty()) tables.squares.download(energy.data(), energy.size(), stream);
  check(cudaStreamSynchronize(stream), "rows that kvtc learns from");
  std::vector<HeadTables> found(heads);
  ThreadPool pool(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kThreads)));
  pool.parallel_for(heads, [&](size_t head, int) {
    const std::span<const uint16_t> rows(all.data() + head * numbers, numbers);
    const size_t pairs = energy.size() / heads;
    const std::span<const float> of_queries(energy.data() + head * pairs, pairs);
    found[head] = head_tables(rows, of_queries, dim(), given_, room(), pool);
  });
  for (size_t head = 0; head < heads; ++head) {
    const auto upload = [&](auto* to, const auto& from) {
      check(cudaMemcpyAsync(to + head * from.size(), from.data(), from.size() * sizeof(from[0]),
                            cudaMemcpyHostToDevice, stream),
            "kvtc's tables");
    };
    upload(tables.means.data(), found[head].mean);
    upload(tables.counts.data(), std::span(&found[head].count, 1));
    upload(tables.places.data(), found[head].places);
    upload(tables.vectors.data(), found[head].vectors);
    upload(tables.deviations.data(), found[head].deviations);
    if (!energy.empty()) upload(tables.squares.data(), found[head].squares);
  }
  check(cudaStreamSynchronize(stream), "kvtc's tables");
}

void KvtcDeviceCodec::archive(Archive& a, cudaStream_t stream) const {
  if (sides_.keys) {
    archive_side(a, keys_, stream);
    archive_squares(a, stream);
  }
  if (sides_.values) archive_side(a, values_, stream);
}

void KvtcDeviceCodec::archive_squares(Archive& a, cudaStream_t stream) const {
  archive_numbers<float>(a, {keys_.squares.data(), 4 * keys_.squares.size()}, 0,
                         std::numeric_limits<float>::max(), stream);
}

void KvtcDeviceCodec::archive_side(Archive& a, const VectorTables& tables,
                                   cudaStream_t stream) const {
  const auto [means, counts, places, vectors, deviations, squares] = tables.parts();
  archive_finite(a, {means.data, means.bytes}, DType::kF16, stream);
  archive_numbers<int32_t>(a, {counts.data, counts.bytes}, 0, static_cast<int32_t>(room()), stream);
  archive_runs(a, {places.data, places.bytes}, stream, [&](std::span<const std::byte> bytes) {
    const auto* of = reinterpret_cast<const uint32_t*>(bytes.data());
    for (size_t i = 0; i < bytes.size() / 4; ++i) {
      const uint32_t first = of[i] & 0xffff, bits = of[i] >> 16;
      a.need(bits <= LevelVectors::kMostBits && first + bits <= given_.code_bits(dim()),
             "a coordinate of more than 8 bits, or behind its row");
    }
  });
  archive_finite(a, {vectors.data, vectors.bytes}, DType::kF16, stream);
  archive_finite(a, {deviations.data, deviations.bytes}, DType::kF32, stream);
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_kvtc_on_gpu(const MethodOptions& options) {
  const auto& o = options.as<KvtcOptions>();
  LevelSide side;
  side.bits = 0;
  side.choice = LevelChoice::kVectors;
  return std::make_shared<KvtcDeviceCodec>(
      fmt::format("kvtc of {} bits from {} rows", o.bits, o.calibrate), LevelFormat{side, side},
      TransformFormat{o.bits, o.calibrate}, KvtcDeviceCodec::Sides{});
}

}  // namespace pith::cuda
