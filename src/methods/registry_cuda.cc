// The GPU's half of the registry: one row a method that is there.

#include "methods/registry_cuda.h"

#include <algorithm>
#include <array>

namespace pith::cuda {
namespace {

constexpr std::array kSelectors = {
    DeviceSelectorRow{"exact"},
    DeviceSelectorRow{"local"},
    DeviceSelectorRow{"streaming_llm"},
    DeviceSelectorRow{"uniform", make_uniform_on_gpu},
    DeviceSelectorRow{"express", make_express_on_gpu},
    DeviceSelectorRow{"balancekv", make_balancekv_on_gpu},
    DeviceSelectorRow{"buzz", make_buzz_on_gpu},
    DeviceSelectorRow{"h2o", make_h2o_on_gpu},
    DeviceSelectorRow{"tova", make_tova_on_gpu},
    DeviceSelectorRow{"snapkv", make_snapkv_on_gpu},
    DeviceSelectorRow{"pyramidkv", make_pyramidkv_on_gpu},
    DeviceSelectorRow{"keydiff", make_keydiff_on_gpu},
    DeviceSelectorRow{"knorm", make_knorm_on_gpu},
    DeviceSelectorRow{"expected_attention", make_expected_attention_on_gpu},
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

}  // namespace pith::cuda
