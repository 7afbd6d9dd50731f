#include "methods/kvquant/kvquant.h"

#include "methods/kvquant/nonuniform_rows.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_kvquant(const MethodOptions& o, Side side) {
  NonUniformFormat format = o.as<KvquantOptions>().format();
  format.side = side;
  return std::make_unique<NonUniformCodec>(format);
}

}  // namespace

Fields KvquantOptions::fields() {
  return {choice("bits", bits, {2, 3, 4}, "of a code"),
          whole("outliers", outliers, {.most = 65535},
                "numbers of a row kept apart in f16; unset: 1 in 100, rounded up"),
          whole("calibrate", calibrate, {.least = 1, .most = size_t{1} << 20},
                "first rows of a head's body that its levels and ranges are made from")};
}

NonUniformFormat KvquantOptions::format() const {
  NonUniformFormat format;
  format.bits = bits;
  format.outliers = outliers.value_or(NonUniformCodec::kByShare);
  format.calibrate = calibrate;
  return format;
}

CodecRow kvquant_row() {
  CodecRow row;
  row.info = {"kvquant",
              false,
              "2, 3 or 4 bits to levels fitted to the head, keys per channel before RoPE, numbers "
              "that stand out apart",
              "KVQuant: Hooper et al. 2024",
              {},
              ""};
  row.takes<KvquantOptions>();
  row.make = make_kvquant;
  return row;
}

}  // namespace pith
