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

/// Transformed or centred codes are rows of levels (level_codec.h).
std::shared_ptr<const DeviceCodec> make_grouped(const std::string& name, GroupedCodec codec,
                                                const GroupedForm& form);

/// Keys in int8, values in int4.
std::shared_ptr<const DeviceCodec> make_int8_beside_int4();
/// Codes of 8 or 4 `bits` on one side; on the other, keys if `row_keys`, rows of f16 or bf16.
std::shared_ptr<const DeviceCodec> make_beside_rows(int bits, DType rows, bool row_keys);

}  // namespace pith::cuda
