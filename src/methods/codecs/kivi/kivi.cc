#include "methods/codecs/kivi/kivi.h"

#include "methods/codecs/kivi/channel_rows.h"
#include "methods/methods.h"
#include "rows/cpu/token_rows.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_kivi(const MethodOptions& options, Side side) {
  const auto& o = options.as<KiviOptions>();
  std::unique_ptr<Codec> codec;
  if (side == Side::kKeys)
    codec = std::make_unique<ChannelCodec>(o.bits);
  else
    codec = std::make_unique<TokenCodec>(TokenFormat{o.bits, true});
  return with_int_options(std::move(codec), o, side);
}

Offers kivi_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<KiviOptions>();
  return int_on_gpu("kivi", write_options("kivi", o), o, site, site.side == Side::kKeys);
}

}  // namespace

Fields KiviOptions::fields() {
  return Fields{choice("bits", bits, {2, 4}, "of a code")} + IntOptions::fields();
}

CodecRow kivi_row() {
  CodecRow row;
  row.info = {"kivi",
              false,
              "2 or 4 bits: keys per channel over 32 rows, values per row (3 or 5 bits)",
              "Liu et al. 2024",
              {},
              ""};
  row.takes<KiviOptions>();
  row.make = make_kivi;
  row.on_gpu = kivi_on_gpu;
  return row;
}

}  // namespace pith
