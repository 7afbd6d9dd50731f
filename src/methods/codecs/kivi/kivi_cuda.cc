#include "methods/codecs/kivi/kivi.h"
#include "methods/registry_cuda.h"
#include "rows/cuda/grouped_codec.h"

namespace pith::cuda {

std::shared_ptr<const DeviceCodec> make_kivi_on_gpu(const MethodOptions& options) {
  const auto& o = options.as<KiviOptions>();
  const GroupedForm form{o.hadamard, o.group_rows(), o.mean_rows()};
  return o.bits == 2 ? make_grouped("kivi2", GroupedCodec::kKivi2, form)
                     : make_grouped("kivi4", GroupedCodec::kKivi4, form);
}

}  // namespace pith::cuda
