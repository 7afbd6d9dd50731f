#include "methods/qjl/qjl.h"

#include <fmt/format.h>

#include "compress/centred_rows.h"
#include "compress/token_rows.h"
#include "methods/qjl/plane_rows.h"
#include "methods/qjl/qjl_keys.h"
#include "pith/error.h"

namespace pith {
namespace {

Sketch sketch_of(const Parameters& p) {
  const std::string name = p.choice("sketch", {"ortho", "gaussian", "hadamard"});
  return name == "ortho"      ? Sketch::kOrtho
         : name == "gaussian" ? Sketch::kGaussian
                              : Sketch::kHadamard;
}

std::unique_ptr<Codec> make_keys(const Parameters& p) {
  const Sketch sketch = sketch_of(p);
  const std::string coarse = p.choice("residual", {"0", "1", "2", "3", "4"});
  if (coarse != "0") {
    for (const char* other : {"outliers", "m_out", "slack"})
      if (p.given(other) && p.text(other) != "0")
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("qjl(residual={}) has no channels apart, its transform spreads "
                                "them; leave '{}' out",
                                coarse, other));
    PlaneFormat format{coarse[0] - '0', sketch};
    if (p.given("m")) format.bits = p.count("m", 0);
    return std::make_unique<PlaneCodec>(format);
  }
  return std::make_unique<QjlCodec>(qjl_format(p));
}

std::unique_ptr<Codec> make_qjl(const Parameters& p, Side side) {
  auto keys = make_keys(p);  // parameters are checked on both sides
  if (side == Side::kValues) return std::make_unique<TokenCodec>(TokenFormat{2, true});
  return centred_if_asked(std::move(keys), p, side);
}

std::unique_ptr<Codec> make_turboquant(const Parameters& p, Side side) {
  PlaneFormat format;
  format.planes = p.choice("bits", {"1", "2", "3", "4"})[0] - '0';
  format.bits = 0;
  return centred_if_asked(std::make_unique<PlaneCodec>(format), p, side);
}

}  // namespace

QjlFormat qjl_format(const Parameters& p) {
  QjlFormat format;
  format.sketch = sketch_of(p);
  if (p.given("m")) format.bits = p.count("m", 16);
  if (p.given("m_out")) format.out_bits = p.count("m_out", 16);
  format.outliers = p.count("outliers", 0);
  format.slack = p.number("slack", 0, 1);
  return format;
}

CodecRow turboquant_row() {
  CodecRow row;
  row.info = {"turboquant",
              false,
              "1 to 4 bits a number after a Walsh-Hadamard transform, one scale a row",
              "TurboQuant: Zandieh et al. 2025, without its sketch (qjl(residual=...))",
              {{"bits", "2", "1 to 4"}, centre_parameter()},
              ""};
  row.make = make_turboquant;
  return row;
}

CodecRow qjl_row() {
  CodecRow row;
  row.info = {
      "qjl",
      false,
      "keys as sign bits of a random sketch and a norm, values in 2 bits",
      "QJL: 1-Bit Quantized JL Transform for KV Cache Quantization",
      {{"m", "", "bits of a key's sketch, a multiple of 16; unset: 2 a channel, 1 of a residual"},
       {"sketch", "ortho", "ortho, gaussian or hadamard"},
       {"outliers", "8", "channels of largest norm over 32 rows with a sketch of their own"},
       {"m_out", "", "bits of the outliers' sketch; unset: 1 a channel"},
       {"slack", "0",
        "energy that channels of the 32 rows before may leave the inliers in excess, and stay: "
        "0.05 "
        "is 2.5% more noise, and twice as fast on the CPU"},
       {"residual", "0",
        "1 to 4: bits a channel of a coarse code, whose rest is sketched; 0: none"},
       centre_parameter()},
      ""};
  row.make = make_qjl;
  return row;
}

}  // namespace pith
