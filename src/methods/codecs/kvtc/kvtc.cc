#include "methods/codecs/kvtc/kvtc.h"

#include <fmt/format.h>

#include "methods/codecs/kvtc/transform_rows.h"
#include "methods/methods.h"

namespace pith {
namespace {

constexpr size_t kMostOnGpu = 4096;  // rows that wait there

std::unique_ptr<Codec> make_kvtc(const MethodOptions& options, Side side) {
  const auto& o = options.as<KvtcOptions>();
  return std::make_unique<TransformCodec>(TransformFormat{o.bits, o.calibrate}, side);
}

/// Per head on the GPU: mean and vectors in f16, a place and a deviation of each vector, energies
/// and angles of channel pairs, and levels that a layer's heads share.
size_t kvtc_tables_on_gpu(const KvtcOptions& o, const OfferSite& site) {
  const size_t dim = static_cast<size_t>(site.dim);
  const size_t vectors =
      (TransformFormat{o.bits, o.calibrate}.most_coordinates(dim) + 15) / 16 * 16;
  constexpr size_t kLevels = 512, kCounts = 4;
  return 2 * dim + kCounts + vectors * (2 * dim + 8) + 6 * dim + 4 * kLevels;
}

/// Tables of a head's own; as many rows wait as they are made from.
Offers kvtc_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<KvtcOptions>();
  const std::string text = write_options("kvtc", o);
  return {.codec = text,
          .code = text,
          .before_rope = site.side == Side::kKeys,
          .learns = o.calibrate,
          .tables = kvtc_tables_on_gpu(o, site),
          .limits = {Limit::of("kvtc", "calibrate", o.calibrate, o.calibrate <= kMostOnGpu,
                               fmt::format("up to {}", kMostOnGpu))}};
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
  row.on_gpu = kvtc_on_gpu;
  return row;
}

}  // namespace pith
