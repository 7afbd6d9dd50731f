#include "methods/codecs/qjl/qjl_cuda.h"

#include <fmt/format.h>

#include "core/dtype.h"
#include "core/finite.h"
#include "methods/codecs/qjl/qjl.h"
#include "methods/codecs/qjl/qjl_keys.h"
#include "methods/codecs/qjl/qjl_levels_cuda.h"
#include "methods/registry_cuda.h"
#include "pith/error.h"
#include "rows/cuda/device_codec.h"

namespace pith::cuda {

void QjlProjection::check() const {
  const bool sizes =
      (head_dim == 64 || head_dim == 128) && (m == 2 * head_dim || m == 4 * head_dim);
  const bool apart = outliers >= 0 && outliers <= kQjlOutliers && m_out <= 128 && m_out % 16 == 0 &&
                     (outliers == 0) == (m_out == 0);
  if (rows && half_rows && sizes && apart) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("QJL on the GPU was asked for m = {} bits at head_dim {}, {} outliers with {} "
                  "bits; it takes 2 or 4 bits per channel, head_dim 64 or 128, up to {} outliers, "
                  "and for them, if there are any, multiples of 16 bits up to 128",
                  m, head_dim, outliers, m_out, kQjlOutliers));
}

GroupedBytes qjl_bytes(int m, int head_dim, bool row_lists) {
  const auto d = static_cast<size_t>(head_dim);
  return {static_cast<size_t>(m) * 4 + kQjlApartBytes,
          static_cast<size_t>(row_lists ? kQjlListsSideBytes : kQjlSideBytes), 8 * d, 4 * d};
}

namespace {

/// KIVI's: their kernels are these values'.
std::shared_ptr<const DeviceCodec> values_in_two_bits() {
  const CodecRow& row = codec_row("kivi");
  return make_kivi_on_gpu(row.read({"kivi", {{"bits", "2"}}}));
}

/// Keys in QJL's form and values in 2 bits, with the projection of one layer.
class QjlDeviceCodec final : public DeviceCodec {
 public:
  explicit QjlDeviceCodec(const QjlFormat& format, bool row_lists = false)
      : format_(format), row_lists_(row_lists), values_(values_in_two_bits()) {}

  std::string name() const override { return name_; }
  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override;
  size_t shared_bytes() const override { return 4 * rows_.size() + 2 * half_rows_.size(); }
  GroupedBytes block_bytes(int head_dim) const override {
    return qjl_bytes(static_cast<int>(format_.inlier_bits(static_cast<size_t>(head_dim))), head_dim,
                     row_lists_);
  }
  std::shared_ptr<const DeviceCodec> with_rows_alone(int) const override {
    return row_lists_ ? nullptr : std::make_shared<QjlDeviceCodec>(format_, true);
  }
  void move_rows_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    for (const MoveCodesCall& call : calls) move_qjl_keys(projection_, call, stream);
    values_->move_values_of(calls, stream);
  }
  void add_token_mass(const TokenMass& call, const MassTarget* target,
                      cudaStream_t stream) const override {
    add_qjl_mass(projection_, call, target, stream);
  }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    for (const CodeJob& job : keys) code_qjl_keys(projection_, batch, job, stream);
    values_->code(batch, {}, values, stream);
  }
  void unpack_keys_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    for (const UnpackRowsCall& call : calls) unpack_qjl_keys(projection_, call, stream);
  }
  void unpack_values_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    values_->unpack_values_of(calls, stream);
  }
  void check_loaded(const Archive& a, const LoadedCodes& codes) const override;
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    decode_qjl(projection_, call, scratch, stream);
  }

 private:
  QjlFormat format_;
  bool row_lists_;
  std::shared_ptr<const DeviceCodec> values_;
  std::string name_ = "qjl";
  QjlProjection projection_;
  DeviceArray<float> rows_;          // [m + m_out, D]
  DeviceArray<uint16_t> half_rows_;  // the same, f16
};

void QjlDeviceCodec::check_loaded(const Archive& a, const LoadedCodes& codes) const {
  if (codes.part == CodePartOf::kValueCodes || codes.part == CodePartOf::kValueSide)
    return values_->check_loaded(a, codes);
  const GroupedBytes bytes = block_bytes(codes.head_dim);
  const auto finite = [&](size_t at, size_t count) {
    a.need(!has_non_finite(codes.bytes.data() + at, DType::kF16, count), "a number is not finite");
  };
  if (codes.part == CodePartOf::kKeyCodes) {
    for (size_t at = 0; at < codes.bytes.size(); at += bytes.key_codes)
      finite(at + bytes.key_codes - kQjlApartBytes, kQjlApartBytes / 2);
    return;
  }
  for (size_t at = 0; at < codes.bytes.size(); at += bytes.key_side) {
    finite(at, kQjlNormBytes / 2);
    for (size_t i = kQjlNormBytes; i < bytes.key_side; ++i)
      a.need(static_cast<int>(codes.bytes[at + i]) < codes.head_dim, "a channel that is not there");
  }
}

std::shared_ptr<const DeviceCodec> QjlDeviceCodec::with_tables(const TableSite& site) const {
  const auto dim = static_cast<size_t>(site.head_dim);
  const size_t bits = format_.inlier_bits(dim), out_bits = format_.outlier_bits(dim);
  auto own = std::make_shared<QjlDeviceCodec>(format_, row_lists_);
  own->name_ = fmt::format("qjl of layer {}", site.layer);
  MemoryCounter unused;  // the CPU's tables, from which the device's are made
  std::vector<float> rows;
  float unbias = 0;
  for (const auto& [count, stream] : {std::pair{bits, 0x514Au}, std::pair{out_bits, 0x514Bu}}) {
    if (count == 0) continue;  // no channels are apart
    const Projection table(unused, {format_.sketch, count, dim}, site.seed, site.layer, stream);
    for (size_t i = 0; i < count; ++i) {
      for (size_t c = 0; c < dim; ++c) rows.push_back(table.column(c)[i]);
    }
    unbias = table.unbias();
  }
  std::vector<uint16_t> half(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) half[i] = f32_to_f16(rows[i]);
  own->rows_ = {*site.memory, MemoryKind::kShared, rows.size(), site.stream};
  own->half_rows_ = {*site.memory, MemoryKind::kShared, half.size(), site.stream};
  own->rows_.upload(rows.data(), rows.size(), site.stream);
  own->half_rows_.upload(half.data(), half.size(), site.stream);
  check(cudaStreamSynchronize(site.stream), "QJL's projection");
  own->projection_ = {own->rows_.data(),
                      own->half_rows_.data(),
                      static_cast<int>(bits),
                      static_cast<int>(out_bits),
                      static_cast<int>(format_.outliers),
                      site.head_dim,
                      unbias,
                      row_lists_};
  return own;
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_qjl_on_gpu(const MethodOptions& options) {
  static_assert(kQjlOutliers == kQjlOutliersOnGpu);
  const auto& o = options.as<QjlOptions>();
  if (o.residual > 0) return make_qjl_levels(o);
  return std::make_shared<QjlDeviceCodec>(o.format());
}

}  // namespace pith::cuda
