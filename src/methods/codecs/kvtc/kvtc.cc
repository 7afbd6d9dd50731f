#include "methods/codecs/kvtc/kvtc.h"

#include "methods/codecs/kvtc/transform_rows.h"
#include "methods/methods.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_kvtc(const MethodOptions& options, Side side) {
  const auto& o = options.as<KvtcOptions>();
  return std::make_unique<TransformCodec>(TransformFormat{o.bits, o.calibrate}, side);
}

}  // namespace

Fields KvtcOptions::fields() {
  return {number("bits", bits, {0.5, 8}, "of a number, the row's scale among them"),
          whole("calibrate", calibrate, {.least = 2, .most = size_t{1} << 20},
                "first rows of a head's body that its directions are made from")};
}

CodecRow kvtc_row() {
  CodecRow row;
  row.info = {"kvtc",
              false,
              "keys before RoPE along eigenvectors of the head's first rows, bits by variance",
              "KVTC: Staniszewski and Lancucki 2025",
              {},
              ""};
  row.takes<KvtcOptions>();
  row.make = make_kvtc;
  return row;
}

}  // namespace pith
