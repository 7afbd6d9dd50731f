#include "methods/int_options.h"

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

std::unique_ptr<Codec> make_int_rows(int bits, const IntOptions& o, Side side) {
  return with_int_options(std::make_unique<TokenCodec>(TokenFormat{bits, false}), o, side);
}

Offers int_on_gpu(const std::string& name, const std::string& code, const IntOptions& o,
                  const OfferSite& site, bool shares) {
  return offers_centred(
      {.codec = code, .code = code, .shares = shares, .limits = {center_limit(name, o, site.dim)}},
      o, site.side);
}

}  // namespace pith
