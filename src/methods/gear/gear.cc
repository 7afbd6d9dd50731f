#include "methods/gear/gear.h"

#include "methods/gear/gear_rows.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_gear(const Parameters& p, Side side) {
  GearFormat format = gear_format(p);
  format.side = side;
  return std::make_unique<GearCodec>(format);
}

}  // namespace

GearFormat gear_format(const Parameters& p) {
  GearFormat format;
  format.bits = p.choice("bits", {"2", "4"}) == "2" ? 2 : 4;
  format.rank = p.count("rank", 0);
  format.outliers = p.given("outliers") ? p.count("outliers", 0) : GearCodec::kByShare;
  format.group_rows = p.count("rows", 1);
  return format;
}

CodecRow gear_row() {
  CodecRow row;
  row.info = {"gear",
              false,
              "KIVI's codes, a low-rank product of what they miss, numbers that stand out apart",
              "GEAR: Kang et al. 2024",
              {{"bits", "2", "2 or 4"},
               {"rank", "2", "of the product; 0 = none"},
               {"outliers", "", "numbers of a row kept apart in f16; unset: 2 in 100, rounded up"},
               {"rows", "128", "rows that share a product, a multiple of 32"}},
              ""};
  row.make = make_gear;
  return row;
}

}  // namespace pith
