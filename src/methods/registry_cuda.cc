// The GPU's half of the registry.

#include "methods/registry_cuda.h"

#include <algorithm>
#include <array>

namespace pith::cuda {
namespace {

#define PITH_SELECTOR(name) DeviceSelectorRow{#name, make_##name##_on_gpu},
constexpr auto kSelectors = std::to_array<DeviceSelectorRow>(
    {{"exact"}, {"local"}, {"streaming_llm"}, PITH_SELECTORS_ON_GPU(PITH_SELECTOR)});
#undef PITH_SELECTOR

#define PITH_CODEC(name) DeviceCodecRow{#name, make_##name##_on_gpu},
constexpr auto kCodecs =
    std::to_array<DeviceCodecRow>({{"f16"}, {"bf16"}, PITH_CODECS_ON_GPU(PITH_CODEC)});
#undef PITH_CODEC

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
