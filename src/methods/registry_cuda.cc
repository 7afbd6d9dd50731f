// The GPU's half of the registry: one row a method that is there.

#include "methods/registry_cuda.h"

#include <algorithm>
#include <array>

namespace pith {
namespace cuda {
namespace {

constexpr std::array kSelectors = {
    DeviceSelectorRow{"exact", BodyOnGpu::kAllStay},
    DeviceSelectorRow{"local", BodyOnGpu::kAllGo},
    DeviceSelectorRow{"streaming_llm", BodyOnGpu::kAllGo},
    DeviceSelectorRow{.name = "uniform", .make = make_uniform_on_gpu},
    DeviceSelectorRow{.name = "express", .make = make_express_on_gpu},
    DeviceSelectorRow{.name = "balancekv", .make = make_balancekv_on_gpu},
    DeviceSelectorRow{.name = "buzz", .make = make_buzz_on_gpu},
    DeviceSelectorRow{.name = "h2o", .make = make_h2o_on_gpu},
    DeviceSelectorRow{.name = "tova", .make = make_tova_on_gpu},
    DeviceSelectorRow{.name = "snapkv", .make = make_snapkv_on_gpu},
    DeviceSelectorRow{.name = "pyramidkv", .make = make_pyramidkv_on_gpu},
    DeviceSelectorRow{.name = "keydiff", .make = make_keydiff_on_gpu},
    DeviceSelectorRow{.name = "knorm", .make = make_knorm_on_gpu},
    DeviceSelectorRow{.name = "expected_attention", .make = make_expected_attention_on_gpu},
};

constexpr std::array kCodecs = {
    DeviceCodecRow{"f16"},
    DeviceCodecRow{"bf16"},
    DeviceCodecRow{"int8", make_int8_on_gpu},
    DeviceCodecRow{"int4", make_int4_on_gpu},
    DeviceCodecRow{"kivi", make_kivi_on_gpu},
    DeviceCodecRow{"qjl", make_qjl_on_gpu},
    DeviceCodecRow{"kvquant", make_kvquant_on_gpu},
    DeviceCodecRow{"gear", make_gear_on_gpu},
    DeviceCodecRow{"turboquant", make_turboquant_on_gpu},
    DeviceCodecRow{"csr", make_csr_on_gpu},
    DeviceCodecRow{"ladder", make_ladder_on_gpu},
};

template <class Rows>
auto* find(const Rows& rows, std::string_view name) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](auto& r) { return r.name == name; });
  return row == rows.end() ? nullptr : &*row;
}

}  // namespace

const DeviceSelectorRow* find_device_selector(std::string_view name) {
  return find(kSelectors, name);
}
const DeviceCodecRow* find_device_codec(std::string_view name) { return find(kCodecs, name); }
std::span<const DeviceSelectorRow> device_selector_rows() { return kSelectors; }
std::span<const DeviceCodecRow> device_codec_rows() { return kCodecs; }

}  // namespace cuda

bool is_on_gpu(std::string_view name) {
  return cuda::find_device_selector(name) || cuda::find_device_codec(name);
}

}  // namespace pith
