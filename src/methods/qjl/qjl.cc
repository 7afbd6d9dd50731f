#include "methods/qjl/qjl.h"

#include "compress/centred_rows.h"
#include "compress/token_rows.h"
#include "methods/qjl/qjl_keys.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_qjl(const Parameters& p, Side side) {
  QjlFormat format;
  const std::string sketch = p.choice("sketch", {"ortho", "gaussian", "hadamard"});
  format.sketch = sketch == "ortho"      ? Sketch::kOrtho
                  : sketch == "gaussian" ? Sketch::kGaussian
                                         : Sketch::kHadamard;
  if (p.given("m")) format.bits = p.count("m", 16);
  if (p.given("m_out")) format.out_bits = p.count("m_out", 16);
  format.outliers = p.count("outliers", 0);
  if (side == Side::kValues) return std::make_unique<TokenCodec>(TokenFormat{2, true});
  return centred_if_asked(std::make_unique<QjlCodec>(format), p, side);
}

}  // namespace

CodecRow qjl_row() {
  CodecRow row;
  row.info = {
      "qjl",
      false,
      "keys as sign bits of a random sketch and a norm, values in 2 bits",
      "QJL: 1-Bit Quantized JL Transform for KV Cache Quantization",
      {{"m", "", "bits of a key's sketch, a multiple of 16; unset: 2 a channel"},
       {"sketch", "ortho", "ortho, gaussian or hadamard"},
       {"outliers", "8", "channels of largest norm over 32 rows with a sketch of their own"},
       {"m_out", "", "bits of the outliers' sketch; unset: 1 a channel"},
       centre_parameter()},
      ""};
  row.make = make_qjl;
  return row;
}

}  // namespace pith
