#include "methods/quant/quant.h"

#include "compress/centred_rows.h"
#include "compress/rotated_rows.h"
#include "compress/token_rows.h"
#include "methods/quant/channel_rows.h"

namespace pith {
namespace {

const ParameterInfo kHadamard = {
    "hadamard", "false",
    "code rows after a Walsh-Hadamard transform: outlying channels are "
    "spread over all"};

std::unique_ptr<Codec> with_wrappers(std::unique_ptr<Codec> codec, const Parameters& p, Side side) {
  if (p.flag("hadamard")) codec = std::make_unique<RotatedCodec>(std::move(codec), side);
  return centred_if_asked(std::move(codec), p, side);
}

template <int kBits>
std::unique_ptr<Codec> make_int(const Parameters& p, Side side) {
  return with_wrappers(std::make_unique<TokenCodec>(TokenFormat{kBits, false}), p, side);
}

std::unique_ptr<Codec> make_kivi(const Parameters& p, Side side) {
  const int bits = p.choice("bits", {"2", "4"}) == "2" ? 2 : 4;
  std::unique_ptr<Codec> codec;
  if (side == Side::kKeys)
    codec = std::make_unique<ChannelCodec>(bits);
  else
    codec = std::make_unique<TokenCodec>(TokenFormat{bits, true});
  return with_wrappers(std::move(codec), p, side);
}

CodecRow row_of(const std::string& name, const std::string& summary, const std::string& source,
                std::vector<ParameterInfo> parameters,
                std::unique_ptr<Codec> (*make)(const Parameters&, Side)) {
  CodecRow row;
  row.info = {name, false, summary, source, std::move(parameters), ""};
  row.make = make;
  return row;
}

}  // namespace

CodecRow int8_row() {
  CodecRow row = row_of("int8", "8-bit codes, a scale for 32 numbers of a row (8.5 bits)",
                        "llama.cpp q8_0", {kHadamard, centre_parameter()}, make_int<8>);
  return row;
}

CodecRow int4_row() {
  CodecRow row = row_of("int4", "4-bit codes, a scale for 32 numbers of a row (4.5 bits)",
                        "llama.cpp q4_0", {kHadamard, centre_parameter()}, make_int<4>);
  return row;
}

CodecRow kivi_row() {
  CodecRow row = row_of(
      "kivi", "2 or 4 bits: keys per channel over 32 rows, values per row (3 or 5 bits)",
      "Liu et al. 2024", {{"bits", "2", "2 or 4"}, kHadamard, centre_parameter()}, make_kivi);
  return row;
}

}  // namespace pith
