#include "methods/kvquant/kvquant.h"

#include "methods/kvquant/nonuniform_rows.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_kvquant(const Parameters& p, Side side) {
  NonUniformFormat format = kvquant_format(p);
  format.side = side;
  return std::make_unique<NonUniformCodec>(format);
}

}  // namespace

NonUniformFormat kvquant_format(const Parameters& p) {
  NonUniformFormat format;
  const std::string bits = p.choice("bits", {"2", "3", "4"});
  format.bits = bits[0] - '0';
  format.outliers = p.given("outliers") ? p.count("outliers", 0) : NonUniformCodec::kByShare;
  format.calibrate = p.count("calibrate", 1);
  return format;
}

CodecRow kvquant_row() {
  CodecRow row;
  row.info = {"kvquant",
              false,
              "2, 3 or 4 bits to levels fitted to the head, keys per channel before RoPE, numbers "
              "that stand out apart",
              "KVQuant: Hooper et al. 2024",
              {{"bits", "3", "2, 3 or 4"},
               {"outliers", "", "numbers of a row kept apart in f16; unset: 1 in 100, rounded up"},
               {"calibrate", "128",
                "first rows of a head's body that its levels and ranges are made from"}},
              ""};
  row.make = make_kvquant;
  return row;
}

}  // namespace pith
