#include "methods/codecs/quant/quant.h"

#include "methods/codecs/quant/channel_rows.h"
#include "methods/methods.h"
#include "rows/cpu/rotated_rows.h"
#include "rows/cpu/token_rows.h"

namespace pith {
namespace {

constexpr const char *kInt8 = "int8", *kInt4 = "int4", *kKivi = "kivi";

std::unique_ptr<Codec> with_wrappers(std::unique_ptr<Codec> codec, const IntOptions& o, Side side) {
  if (o.hadamard) codec = std::make_unique<RotatedCodec>(std::move(codec), side);
  return centred_if_asked(std::move(codec), o, side);
}

template <int kBits>
std::unique_ptr<Codec> make_int(const MethodOptions& o, Side side) {
  return with_wrappers(std::make_unique<TokenCodec>(TokenFormat{kBits, false}), o.as<IntOptions>(),
                       side);
}

std::unique_ptr<Codec> make_kivi(const MethodOptions& options, Side side) {
  const auto& o = options.as<KiviOptions>();
  std::unique_ptr<Codec> codec;
  if (side == Side::kKeys)
    codec = std::make_unique<ChannelCodec>(o.bits);
  else
    codec = std::make_unique<TokenCodec>(TokenFormat{o.bits, true});
  return with_wrappers(std::move(codec), o, side);
}

/// Rows of levels on the GPU, where keys around a mean share it.
Offers levels_on_gpu(const std::string& name, const std::string& code, const IntOptions& o,
                     const OfferSite& site) {
  const bool keys = site.side == Side::kKeys, centred = keys && o.center > 0;
  return {.codec = code,
          .code = code,
          .shares = centred || (keys && name == std::string_view(kKivi)),
          .block = centred ? o.center : 32,
          .limits = {Limit::of_group(name, "center", o.center, true), pre_rope_limit(name, o)}};
}

template <int kBits>
Offers int_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const std::string name = kBits == 8 ? kInt8 : kInt4;
  const auto& o = options.as<IntOptions>();
  return levels_on_gpu(name, write_options(name, o), o, site);
}

Offers kivi_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<KiviOptions>();
  return levels_on_gpu(kKivi, write_options(kKivi, o), o, site);
}

}  // namespace

Fields IntOptions::fields() {
  return Fields{flag("hadamard", hadamard,
                     "code rows after a Walsh-Hadamard transform: outlying channels are spread "
                     "over all")} +
         CentreOptions::fields();
}

Fields KiviOptions::fields() {
  return Fields{choice("bits", bits, {2, 4}, "of a code")} + IntOptions::fields();
}

CodecRow int8_row() {
  CodecRow row;
  row.info = {
      kInt8, false, "8-bit codes, a scale for 32 numbers of a row (8.5 bits)", "llama.cpp q8_0",
      {},    ""};
  row.takes<IntOptions>();
  row.make = make_int<8>;
  row.on_gpu = int_on_gpu<8>;
  return row;
}

CodecRow int4_row() {
  CodecRow row;
  row.info = {
      kInt4, false, "4-bit codes, a scale for 32 numbers of a row (4.5 bits)", "llama.cpp q4_0",
      {},    ""};
  row.takes<IntOptions>();
  row.make = make_int<4>;
  row.on_gpu = int_on_gpu<4>;
  return row;
}

CodecRow kivi_row() {
  CodecRow row;
  row.info = {kKivi,
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
