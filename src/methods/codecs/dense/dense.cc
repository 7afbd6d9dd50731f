// f32, f16 and bf16: rows as they are.

#include "rows/cpu/dense.h"
#include "methods/methods.h"

namespace pith {
namespace {

template <DType kType>
std::unique_ptr<Codec> make_dense(const MethodOptions& /*none*/, Side /*side*/) {
  return std::make_unique<DenseCodec>(kType);
}

}  // namespace

CodecRow dense_row(DType dtype) {
  CodecRow row;
  row.info = {to_string(dtype),
              false,
              dtype == DType::kF32 ? "rows as they are, 32 bits per number"
                                   : "rows rounded to 16 bits per number",
              "-",
              {},
              ""};
  row.takes<NoOptions>();
  row.dense = dtype;
  row.make = dtype == DType::kF32   ? make_dense<DType::kF32>
             : dtype == DType::kF16 ? make_dense<DType::kF16>
                                    : make_dense<DType::kBF16>;
  return row;
}

}  // namespace pith
