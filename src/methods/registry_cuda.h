#pragma once
// The registry's second table: what each method is on the GPU. A method's row in registry_cuda.cc
// names the function below that makes it; its definition is in the method's folder.

#include "attend/cuda/device_codec.h"
#include "attend/cuda/device_selector.h"
#include "compress/registry.h"

namespace pith::cuda {

struct DeviceSelectorRow {
  std::string_view name;
  /// For what the method's Needs and the device's offers allow. Null: all rows that leave the
  /// window stay, or all go.
  SelectorOnGpu (*make)(const SelectorPlace&) = nullptr;
};

struct DeviceCodecRow {
  std::string_view name;
  /// For parameters within the limits of the method's Offers. Null: plain numbers.
  std::shared_ptr<const DeviceCodec> (*make)(const MethodOptions&) = nullptr;
};

/// Null if the GPU does not have it.
const DeviceSelectorRow* find_device_selector(std::string_view name);
const DeviceCodecRow* find_device_codec(std::string_view name);
std::span<const DeviceSelectorRow> device_selector_rows();
std::span<const DeviceCodecRow> device_codec_rows();

SelectorOnGpu make_uniform_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_express_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_balancekv_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_buzz_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_h2o_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_tova_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_snapkv_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_pyramidkv_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_keydiff_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_knorm_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_expected_attention_on_gpu(const SelectorPlace& place);

std::shared_ptr<const DeviceCodec> make_int8_on_gpu(const MethodOptions& options);
std::shared_ptr<const DeviceCodec> make_int4_on_gpu(const MethodOptions& options);
std::shared_ptr<const DeviceCodec> make_kivi_on_gpu(const MethodOptions& options);
/// Keys in one form and values in another, of those pairs that have a kernel of their own: int8,
/// int4 (Offers::code), f16, bf16. Null: other pairs.
std::shared_ptr<const DeviceCodec> make_pair_on_gpu(const std::string& keys,
                                                    const std::string& values);
std::shared_ptr<const DeviceCodec> make_qjl_on_gpu(const MethodOptions& options);
std::shared_ptr<const DeviceCodec> make_kvquant_on_gpu(const MethodOptions& options);
std::shared_ptr<const DeviceCodec> make_gear_on_gpu(const MethodOptions& options);
std::shared_ptr<const DeviceCodec> make_turboquant_on_gpu(const MethodOptions& options);
std::shared_ptr<const DeviceCodec> make_csr_on_gpu(const MethodOptions& options);
std::shared_ptr<const DeviceCodec> make_ladder_on_gpu(const MethodOptions& options);

}  // namespace pith::cuda
