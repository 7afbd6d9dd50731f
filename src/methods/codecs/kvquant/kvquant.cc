#include "methods/codecs/kvquant/kvquant.h"

#include <fmt/format.h>

#include "methods/codecs/kvquant/nonuniform_rows.h"
#include "methods/methods.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_kvquant(const MethodOptions& o, Side side) {
  NonUniformFormat format = o.as<KvquantOptions>().format();
  format.side = side;
  return std::make_unique<NonUniformCodec>(format);
}

/// Levels of a head's own, made from rows that lie in a block's shared memory.
Offers kvquant_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<KvquantOptions>();
  const size_t apart = NonUniformCodec(o.format()).at(site.dim).outliers;
  const size_t most = kvquant_rows_on_gpu(site.dim);
  const std::string text = write_options("kvquant", o);
  return {.codec = text,
          .code = text,
          .before_rope = site.side == Side::kKeys,
          .learns = o.calibrate,
          .tables = 4 * (16 + 2 * static_cast<size_t>(site.dim)),  // levels, ranges, turns
          .limits = {Limit::of("kvquant", "calibrate", o.calibrate,
                               o.calibrate % 32 == 0 && o.calibrate <= most,
                               "a multiple of 32 up to 256 at head_dim 64, 128 above"),
                     Limit::of("kvquant", "outliers", apart, apart <= kApartOnGpu,
                               fmt::format("up to {} of a row", kApartOnGpu))}};
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
  row.on_gpu = kvquant_on_gpu;
  return row;
}

}  // namespace pith
