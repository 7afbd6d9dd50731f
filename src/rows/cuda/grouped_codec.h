#pragma once
// int8, int4 and KIVI on the GPU: the device's contract over codes in groups of 32.

#include <memory>
#include <string>

#include "rows/cuda/device_codec.h"
#include "rows/cuda/grouped_code.h"

namespace pith::cuda {

struct GroupedForm {
  bool hadamard = false;
  size_t center = 0;     ///< rows of a mean of keys, 0: none
  size_t mean_rows = 0;  ///< first rows of a mean of keys before RoPE, 0: none
};

/// Centred codes, and KIVI's of rotated rows, are rows of levels (level_codec.h).
std::shared_ptr<const DeviceCodec> make_grouped(const std::string& name, GroupedCodec codec,
                                                const GroupedForm& form);

}  // namespace pith::cuda
