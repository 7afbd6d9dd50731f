// One codec for all names: see host_device.h.

#include <cstring>

#include "attend/cuda/device_codec.h"
#include "attend/cuda/record_table.h"
#include "host_device.h"
#include "methods/registry_cuda.h"

namespace pith::cuda {
namespace {

/// Rows of f16 in blocks of 32 that move alone, with nothing beside them.
class PlainCodec : public DeviceCodec {
 public:
  std::string name() const override { return "plain"; }
  GroupedBytes block_bytes(int dim) const override {
    const auto bytes = static_cast<size_t>(kBlockRows * dim * 2);
    return {bytes, 0, bytes, 0};
  }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t) const override {
    const auto numbers = static_cast<size_t>(batch.rows * batch.head_dim);
    const auto all = [&](std::span<const CodeJob> jobs) {
      for (const CodeJob& job : jobs) {
        for (size_t h = 0; h < static_cast<size_t>(batch.heads); ++h) {
          const size_t to = h * job.block_stride * static_cast<size_t>(kBlockRows * batch.head_dim);
          for (size_t i = 0; i < numbers; ++i)
            put(DType::kF16, job.codes, to + i,
                number(batch.dtype, job.x, h * job.head_stride + i));
        }
      }
    };
    all(keys);
    all(values);
  }
  void unpack_keys(const UnpackRowsCall& call, cudaStream_t) const override { unpack(call); }
  void unpack_values(const UnpackRowsCall& call, cudaStream_t) const override { unpack(call); }
  void move_rows(const MoveCodesCall& call, cudaStream_t) const override {
    move(call.to.key_codes, call.from.key_codes, call);
    move(call.to.value_codes, call.from.value_codes, call);
  }
  void add_token_mass(const TokenMass& call, const MassTarget* target,
                      cudaStream_t) const override {
    add_mass(call, *target);
  }
  void attend(const DecodeCall& call, const DecodeScratch&, cudaStream_t) const override {
    attend_spans(call);
  }

 private:
  static void unpack(const UnpackRowsCall& call) {
    const auto block = static_cast<size_t>(kBlockRows * call.head_dim);
    for (size_t h = 0; h < static_cast<size_t>(call.heads); ++h)
      for (size_t i = 0; i < static_cast<size_t>(call.blocks) * block; ++i)
        put(call.dtype, call.out, h * call.head_stride + i,
            number(DType::kF16, call.codes, h * call.block_stride * block + i));
  }
  static void move(void* to, const void* from, const MoveCodesCall& call) {
    const auto block = static_cast<size_t>(kBlockRows * call.head_dim);
    const int first = call.first_block() * kBlockRows;
    for (int h = 0; h < call.heads; ++h) {
      for (int row = first; row < first + call.blocks() * kBlockRows; ++row) {
        const int source = call.source(h, row);
        uint16_t* at = row_at(to, call.to.stride * block, h, row, call.head_dim);
        if (source == MoveCodesCall::kZero) std::fill_n(at, call.head_dim, uint16_t{0});
        if (source >= 0)
          copy_row(at, row_at(from, call.from.stride * block, h, source, call.head_dim),
                   call.head_dim);
      }
    }
  }
};

/// Rows that are older than 64 others lie in blocks of their own.
class PlainLadder final : public PlainCodec {
 public:
  const AgedCodec* aged() const override { return &aged_; }

 private:
  AgedCodec aged_{std::make_shared<PlainCodec>(), std::make_shared<PlainCodec>(), 64, 64};
};

std::shared_ptr<const DeviceCodec> plain() { return std::make_shared<PlainCodec>(); }

}  // namespace

std::shared_ptr<const DeviceCodec> make_int8_on_gpu(const MethodOptions&) { return plain(); }
std::shared_ptr<const DeviceCodec> make_int4_on_gpu(const MethodOptions&) { return plain(); }
std::shared_ptr<const DeviceCodec> make_kivi_on_gpu(const MethodOptions&) { return plain(); }
std::shared_ptr<const DeviceCodec> make_qjl_on_gpu(const MethodOptions&) { return plain(); }
std::shared_ptr<const DeviceCodec> make_kvquant_on_gpu(const MethodOptions&) { return plain(); }
std::shared_ptr<const DeviceCodec> make_gear_on_gpu(const MethodOptions&) { return plain(); }
std::shared_ptr<const DeviceCodec> make_turboquant_on_gpu(const MethodOptions&) { return plain(); }
std::shared_ptr<const DeviceCodec> make_csr_on_gpu(const MethodOptions&) { return plain(); }
std::shared_ptr<const DeviceCodec> make_pair_on_gpu(const std::string&, const std::string&) {
  return plain();
}
std::shared_ptr<const DeviceCodec> make_ladder_on_gpu(const MethodOptions&) {
  return std::make_shared<PlainLadder>();
}

}  // namespace pith::cuda
