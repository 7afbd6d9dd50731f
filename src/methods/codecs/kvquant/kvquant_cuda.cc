// kvquant's codec on the GPU: rows of levels whose tables are learnt from a head's first rows.

#include "methods/codecs/kvquant/kvquant_cuda.h"

#include <fmt/format.h>

#include "kernels/cuda/device_archive.h"
#include "methods/codecs/kvquant/kvquant.h"
#include "methods/codecs/kvquant/nonuniform_rows.h"
#include "methods/registry_cuda.h"
#include "rows/cuda/head_sample.h"
#include "rows/cuda/level_codec.h"

namespace pith::cuda {
namespace {

class KvquantDeviceCodec final : public LevelCodec {
 public:
  KvquantDeviceCodec(std::string name, const LevelFormat& format, const NonUniformFormat& given)
      : LevelCodec(std::move(name), format), given_(given) {}

  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override;
  std::shared_ptr<const DeviceCodec> copy(cudaStream_t stream) const override;
  std::shared_ptr<const LevelCodec> in_form(const LevelFormat& format) const override {
    return std::make_shared<KvquantDeviceCodec>(name_, format, given_);
  }
  bool turns_keys() const override { return true; }
  size_t shared_bytes() const override {
    return 4 * levels_.size() + 2 * ranges_.size() + 8 * turns_.size();
  }
  size_t learns_from() const override { return given_.calibrate; }
  void learn(const RowTarget& rows, DType dtype, const RowPositions& positions,
             cudaStream_t stream) const override;
  void archive(Archive& a, cudaStream_t stream) const override {
    archive_finite(a, {levels_.data(), 4 * levels_.size()}, DType::kF32, stream);
    archive_finite(a, {ranges_.data(), 2 * ranges_.size()}, DType::kF16, stream);
  }

 private:
  static std::string base_of(const std::string& name) { return name.substr(0, name.find(',')); }
  float* value_levels() const { return levels_.data() + levels_.size() / 2; }

  NonUniformFormat given_;
  TableSite site_;
  DeviceArray<double> turns_;     // [D/2]
  DeviceArray<float> levels_;     // [2, G, 16] keys', then values'
  DeviceArray<uint16_t> ranges_;  // [G, 2, D] f16
};

std::shared_ptr<const DeviceCodec> KvquantDeviceCodec::with_tables(const TableSite& site) const {
  const int dim = site.head_dim;
  const size_t apart = NonUniformCodec(given_).at(static_cast<size_t>(dim)).outliers;
  static_assert(LevelSide::kMostApart == kApartOnGpu);
  auto own = std::make_shared<KvquantDeviceCodec>(
      fmt::format("{}, layer {}", base_of(name_), site.layer), format_, given_);
  own->site_ = site;
  const auto heads = static_cast<size_t>(site.kv_heads);
  MemoryCounter& memory = *site.memory;
  own->turns_ = rope_turns(site, "kvquant codes keys before RoPE");
  own->levels_ = {memory, MemoryKind::kShared, 2 * heads * LevelSide::kMostLevels, site.stream};
  own->ranges_ = {memory, MemoryKind::kShared, heads * 2 * static_cast<size_t>(dim), site.stream};
  LevelFormat& f = own->format_;
  f.keys.apart = f.values.apart = static_cast<int>(apart);
  f.keys.turns = own->turns_.data();
  f.keys.ranges = own->ranges_.data();
  f.keys.head_levels = own->levels_.data();
  f.values.head_levels = own->value_levels();
  return own;
}

std::shared_ptr<const DeviceCodec> KvquantDeviceCodec::copy(cudaStream_t stream) const {
  auto own = std::static_pointer_cast<const KvquantDeviceCodec>(with_tables(site_));
  check(cudaMemcpyAsync(own->levels_.data(), levels_.data(), 4 * levels_.size(),
                        cudaMemcpyDeviceToDevice, stream),
        "a copy of kvquant's levels");
  check(cudaMemcpyAsync(own->ranges_.data(), ranges_.data(), 2 * ranges_.size(),
                        cudaMemcpyDeviceToDevice, stream),
        "a copy of kvquant's ranges");
  return own;
}

void KvquantDeviceCodec::learn(const RowTarget& rows, DType dtype, const RowPositions& positions,
                               cudaStream_t stream) const {
  HeadSample sample = sample_keys({rows, dtype, positions}, site_, given_.calibrate);
  learn_kvquant(levels_.data(), ranges_.data(), format_.keys, sample, stream);
  sample.rows = rows.v;
  learn_kvquant(value_levels(), nullptr, format_.values, sample, stream);
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_kvquant_on_gpu(const MethodOptions& o) {
  const NonUniformFormat given = o.as<KvquantOptions>().format();
  LevelSide side;
  side.bits = given.bits;
  side.choice = LevelChoice::kNearest;
  LevelFormat format{side, side};
  format.keys.scale = LevelScale::kHeadChannel;
  format.values.scale = LevelScale::kRow;
  format.values.minima = true;
  const std::string apart =
      given.outliers == NonUniformCodec::kByShare ? "by share" : std::to_string(given.outliers);
  return std::make_shared<KvquantDeviceCodec>(
      fmt::format("kvquant of {} bits with {} apart from {} rows", given.bits, apart,
                  given.calibrate),
      format, given);
}

}  // namespace pith::cuda
