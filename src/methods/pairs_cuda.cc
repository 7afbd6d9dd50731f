// Pairs of codecs that have a decode kernel of their own on the GPU.

#include "methods/int_options.h"
#include "methods/registry_cuda.h"
#include "rows/cuda/grouped_codec.h"

namespace pith::cuda {

std::shared_ptr<const DeviceCodec> make_pair_on_gpu(const std::string& keys,
                                                    const std::string& values) {
  // Offers::code of the codecs as they are, neither rotated nor centred.
  const std::string int8 = write_options("int8", IntOptions{});
  const std::string int4 = write_options("int4", IntOptions{});
  if (keys == int8 && values == int4) return make_int8_beside_int4();
  for (const int bits : {8, 4}) {
    const std::string& codes = bits == 8 ? int8 : int4;
    for (const DType rows : {DType::kF16, DType::kBF16}) {
      if (keys == to_string(rows) && values == codes) return make_beside_rows(bits, rows, true);
      if (keys == codes && values == to_string(rows)) return make_beside_rows(bits, rows, false);
    }
  }
  return nullptr;
}

}  // namespace pith::cuda
