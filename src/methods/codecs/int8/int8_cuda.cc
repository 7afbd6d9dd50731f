#include "methods/int_options.h"
#include "methods/registry_cuda.h"
#include "rows/cuda/grouped_codec.h"

namespace pith::cuda {

std::shared_ptr<const DeviceCodec> make_int8_on_gpu(const MethodOptions& options) {
  const auto& o = options.as<IntOptions>();
  return make_grouped("int8", GroupedCodec::kInt8, {o.hadamard, o.group_rows(), o.mean_rows()});
}

}  // namespace pith::cuda
