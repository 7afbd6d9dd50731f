#pragma once
// The registry's second table: what each method is on the GPU, made by a function in its folder
// that the lists of methods.h declare.

#include "methods/device_selector.h"
#include "methods/methods.h"
#include "rows/cuda/device_codec.h"

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

#define PITH_DECLARE(name) SelectorOnGpu make_##name##_on_gpu(const SelectorPlace& place);
PITH_SELECTORS_ON_GPU(PITH_DECLARE)
#undef PITH_DECLARE
#define PITH_DECLARE(name) \
  std::shared_ptr<const DeviceCodec> make_##name##_on_gpu(const MethodOptions& options);
PITH_CODECS_ON_GPU(PITH_DECLARE)
#undef PITH_DECLARE
/// Keys of one codec beside values of another, of pairs that have a kernel of their own; null:
/// others.
std::shared_ptr<const DeviceCodec> make_pair_on_gpu(std::shared_ptr<const DeviceCodec> keys,
                                                    std::shared_ptr<const DeviceCodec> values);

}  // namespace pith::cuda
