#include "methods/int_options.h"

#include <fmt/format.h>

#include "rows/cpu/rotated_rows.h"
#include "rows/cpu/token_rows.h"

namespace pith {

Fields IntOptions::fields() {
  return Fields{flag("hadamard", hadamard,
                     "code rows after a Walsh-Hadamard transform: outlying channels are spread "
                     "over all")} +
         CentreOptions::fields();
}

std::unique_ptr<Codec> with_int_options(std::unique_ptr<Codec> codec, const IntOptions& o,
                                        Side side) {
  if (o.hadamard) codec = std::make_unique<RotatedCodec>(std::move(codec), side);
  return centred_if_asked(std::move(codec), o, side);
}

Offers int_on_gpu(const std::string& name, const std::string& code, const IntOptions& o,
                  const OfferSite& site, bool shares) {
  return offers_centred(
      {.codec = code, .code = code, .shares = shares, .limits = {center_limit(name, o, site.dim)}},
      o, site.side);
}

namespace {

template <int kBits>
std::unique_ptr<Codec> make_int(const MethodOptions& o, Side side) {
  return with_int_options(std::make_unique<TokenCodec>(TokenFormat{kBits, false}),
                          o.as<IntOptions>(), side);
}

template <int kBits>
Offers int_row_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<IntOptions>();
  const std::string name = fmt::format("int{}", kBits);
  return int_on_gpu(name, write_options(name, o), o, site, false);
}

}  // namespace

CodecRow int_row(int bits, const char* source) {
  CodecRow row;
  row.info = {fmt::format("int{}", bits),
              false,
              fmt::format("{0}-bit codes, a scale for 32 numbers of a row ({0}.5 bits)", bits),
              source,
              {},
              ""};
  row.takes<IntOptions>();
  row.make = bits == 8 ? make_int<8> : make_int<4>;
  row.on_gpu = bits == 8 ? int_row_on_gpu<8> : int_row_on_gpu<4>;
  return row;
}

}  // namespace pith
