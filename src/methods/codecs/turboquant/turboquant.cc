#include "methods/codecs/turboquant/turboquant.h"

#include "methods/methods.h"
#include "rows/cpu/plane_rows.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_turboquant(const MethodOptions& options, Side side) {
  const auto& o = options.as<TurboquantOptions>();
  PlaneFormat format;
  format.planes = o.bits;
  format.bits = 0;
  format.whole_rows = o.whole_rows(side);
  return centred_if_asked(std::make_unique<PlaneCodec>(format), o, side);
}

Offers turboquant_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<TurboquantOptions>();
  const std::string text = write_options("turboquant", o);
  return offers_centred(
      {.codec = text, .code = text, .limits = {center_limit("turboquant", o, site.dim)}}, o,
      site.side);
}

}  // namespace

Fields TurboquantOptions::fields() {
  return Fields{choice("bits", bits, {1, 2, 3, 4}, "of a code")} + CentreOptions::fields() +
         Fields{flag(
             "fit", fit,
             "scales of the least squared error, by which rows become shorter; else what is read "
             "of a row is as long along the row as it, but for keys of 1 bit")};
}

CodecRow turboquant_row() {
  CodecRow row;
  row.info = {"turboquant",
              false,
              "1 to 4 bits a number after a Walsh-Hadamard transform, one scale a row",
              "TurboQuant: Zandieh et al. 2025, without its sketch (qjl(residual=...))",
              {},
              ""};
  row.takes<TurboquantOptions>();
  row.make = make_turboquant;
  row.on_gpu = turboquant_on_gpu;
  return row;
}

}  // namespace pith
