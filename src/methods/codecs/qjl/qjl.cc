#include "methods/codecs/qjl/qjl.h"

#include <fmt/format.h>

#include <algorithm>

#include "methods/codecs/qjl/qjl_keys.h"
#include "methods/methods.h"
#include "pith/error.h"
#include "rows/cpu/plane_rows.h"
#include "rows/cpu/token_rows.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_keys(const QjlOptions& o) {
  if (o.residual == 0) return std::make_unique<QjlCodec>(o.format());
  return std::make_unique<PlaneCodec>(o.key_planes());
}

/// Those of KIVI beside a sketch alone.
std::unique_ptr<Codec> make_values(const QjlOptions& o) {
  if (o.residual == 0) return std::make_unique<TokenCodec>(TokenFormat{2, true});
  return std::make_unique<PlaneCodec>(o.value_planes());
}

std::unique_ptr<Codec> make_qjl(const MethodOptions& options, Side side) {
  const auto& o = options.as<QjlOptions>();
  auto keys = make_keys(o);  // sizes are checked on both sides
  if (side == Side::kValues) return make_values(o);
  return centred_if_asked(std::move(keys), o, side);
}

/// The GPU's limits for a coarse code and for a sketch of the keys themselves.
std::vector<Limit> limits_on_gpu(const QjlOptions& o, size_t dim) {
  const QjlFormat format = o.format();
  const bool sketch = o.residual == 0;
  const size_t m = sketch ? format.inlier_bits(dim) : o.residual_bits();
  const size_t out = sketch ? format.outlier_bits(dim) : 0;
  const auto limit = [](const char* parameter, size_t value, bool fits, std::string there) {
    return Limit::of("qjl", parameter, value, fits, std::move(there));
  };
  Limit center = center_limit("qjl", o, dim);
  if (sketch) center = limit("center", o.center, o.center == 0, center.there);
  center.there += "; 0 with residual=0";
  return {
      center,
      {"residual", "1, 2, 3 or 4 at head_dim 256", sketch && dim > 128 ? "qjl(residual=0)" : ""},
      {"unbias", "false: scores are the estimates themselves",
       o.unbias_weights ? "qjl(unbias=true)" : ""},
      {"slack", "0: each group has channels of its own",
       format.slack > 0 ? fmt::format("qjl(slack={})", format.slack) : ""},
      limit("outliers", format.outliers, format.outliers <= kQjlOutliersOnGpu,
            fmt::format("up to {}", kQjlOutliersOnGpu)),
      limit("m", m, sketch ? m == 2 * dim || m == 4 * dim : m == 0,
            "none beside a coarse code; 2 or 4 bits a channel with residual=0"),
      limit("m_out", out, out % 16 == 0 && out <= 128, "a multiple of 16 up to 128")};
}

/// Codes of levels are rows of levels; keys that are sketched themselves have kernels of their own,
/// beside KIVI's values of 2 bits.
Offers qjl_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<QjlOptions>();
  const std::string text = write_options("qjl", o);
  const auto limits = limits_on_gpu(o, site.dim);
  if (o.residual > 0) {
    return offers_centred({.codec = text, .code = text, .limits = limits}, o, site.side);
  }
  const CodecRow& kivi = codec_row("kivi");
  return {.codec = text,
          .code = kivi.on_gpu(kivi.read({"kivi", {{"bits", "2"}}}), site).code,
          .levels = false,
          .shares = true,
          .limits = limits};
}

}  // namespace

Fields QjlOptions::fields() {
  constexpr size_t kMostBits = 65536;
  return Fields{
             whole("m", bits, {.most = kMostBits, .multiple = 16},
                   "bits of the sketch: of what a coarse code leaves, unset: none; of a key with "
                   "residual=0, unset: 2 a channel"),
             choice<Sketch>("sketch", sketch,
                            {{"ortho", Sketch::kOrtho},
                             {"gaussian", Sketch::kGaussian},
                             {"hadamard", Sketch::kHadamard}},
                            "rows of the random sketch"),
             whole("outliers", outliers, {.most = 65535},
                   "residual=0: channels of largest norm over 32 rows with a sketch of their own; "
                   "unset: 8"),
             whole("m_out", out_bits, {.least = 16, .most = kMostBits, .multiple = 16},
                   "residual=0: bits of the outliers' sketch; unset: 1 a channel"),
             number(
                 "slack", slack, {0, 1},
                 "residual=0: energy that channels of the 32 rows before may leave the inliers in "
                 "excess, and "
                 "stay: 0.05 is 2.5% more noise, and twice as fast on the CPU"),
             choice("residual", residual, {0, 1, 2, 3, 4},
                    "bits a channel of a coarse code, and of values, 2 at least there; 0: keys are "
                    "sketched themselves, values in 2 bits as in kivi"),
             flag("unbias", unbias_weights,
                  "scores less half of their variance, so that their exponentials are unbiased")} +
         CentreOptions::fields() +
         Fields{flag("paper", paper,
                     "the paper's form where nothing else is given: residual=0, center=0")
                    .when(paper)};
}

void QjlOptions::check(const std::string& method) const {
  CentreOptions::check(method);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}({}", method, why));
  };
  if (residual == 0) {
    if (bits == size_t{0}) refuse("m=0) leaves no sketch; m=0 goes with residual=...");
    return;
  }
  const char* apart = outliers.value_or(0) > 0 ? "outliers"
                      : out_bits               ? "m_out"
                      : slack > 0              ? "slack"
                                               : nullptr;
  if (apart)
    refuse(
        fmt::format("residual={}) has no channels apart, its transform spreads them; leave '{}' "
                    "out, or give paper=true",
                    residual, apart));
  const char* sketched = sketch != Sketch::kOrtho ? "sketch" : unbias_weights ? "unbias" : nullptr;
  if (sketched && residual_bits() == 0)
    refuse(
        fmt::format("residual={}) has no sketch for '{}' unless m says how many bits; give m, "
                    "or paper=true",
                    residual, sketched));
}

QjlFormat QjlOptions::format() const {
  QjlFormat format;
  format.sketch = sketch;
  format.bits = bits.value_or(0);
  format.out_bits = out_bits.value_or(0);
  format.outliers = outliers.value_or(format.outliers);
  format.slack = slack;
  format.unbias_weights = unbias_weights;
  return format;
}

PlaneFormat QjlOptions::key_planes() const {
  PlaneFormat format{residual, sketch, residual_bits()};
  format.unbias_weights = unbias_weights;
  format.whole_rows = format.random_turn = format.tight = residual_bits() == 0;
  return format;
}

// Like the keys', but for one bit, which is too few for values.
PlaneFormat QjlOptions::value_planes() const {
  return {.planes = std::max(residual, 2), .bits = 0, .whole_rows = true, .tight = true};
}

CodecRow qjl_row() {
  CodecRow row;
  row.info = {"qjl",
              false,
              "rows in 3 bits after random signs and a transform; paper: sign bits of a sketch",
              "QJL: 1-Bit Quantized JL Transform for KV Cache Quantization",
              {},
              ""};
  row.takes<QjlOptions>();
  row.make = make_qjl;
  row.on_gpu = qjl_on_gpu;
  return row;
}

}  // namespace pith
