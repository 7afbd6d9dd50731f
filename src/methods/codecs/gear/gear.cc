#include "methods/codecs/gear/gear.h"

#include <fmt/format.h>

#include "methods/codecs/gear/gear_rows.h"
#include "methods/methods.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_gear(const MethodOptions& o, Side side) {
  const auto& gear = o.as<GearOptions>();
  GearFormat format = gear.format();
  format.side = side;
  return centred_if_asked(std::make_unique<GearCodec>(format), gear, side);
}

/// KIVI's levels with a product and numbers apart.
Offers gear_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<GearOptions>();
  const size_t apart = GearCodec(o.format()).at(site.dim).outliers;
  const std::string text = write_options("gear", o);
  const Offers offers{.codec = text,
                      .code = text,
                      .shares = o.rank > 0 || site.side == Side::kKeys,
                      .block = o.rows,
                      .limits = {Limit::of("gear", "rank", o.rank, o.rank <= kGearRankOnGpu,
                                           fmt::format("up to {}", kGearRankOnGpu)),
                                 Limit::of("gear", "outliers", apart, apart <= kApartOnGpu,
                                           fmt::format("up to {} of a row", kApartOnGpu)),
                                 Limit::of_group("gear", "rows", o.rows, false, site.dim),
                                 Limit::of("gear", "center", o.group_rows(), o.group_rows() == 0,
                                           "0; any with pre_rope=true")}};
  return offers_centred(offers, o, site.side);
}

}  // namespace

Fields GearOptions::fields() {
  return Fields{choice("bits", bits, {2, 4}, "of a code"),
                whole("rank", rank, {.most = 4096}, "of the product; 0 = none"),
                whole("outliers", outliers, {.most = 65535},
                      "numbers of a row kept apart in f16; unset: 2 in 100, rounded up"),
                whole("rows", rows, {.least = 32, .most = size_t{1} << 20, .multiple = 32},
                      "rows that share a product")} +
         CentreOptions::fields();
}

GearFormat GearOptions::format() const {
  GearFormat format;
  format.bits = bits;
  format.rank = rank;
  format.outliers = outliers.value_or(GearCodec::kByShare);
  format.group_rows = rows;
  return format;
}

CodecRow gear_row() {
  CodecRow row;
  row.info = {"gear",
              false,
              "KIVI's codes, a low-rank product of what they miss, numbers that stand out apart",
              "GEAR: Kang et al. 2024",
              {},
              ""};
  row.takes<GearOptions>();
  row.make = make_gear;
  row.on_gpu = gear_on_gpu;
  return row;
}

}  // namespace pith
