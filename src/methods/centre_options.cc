#include "methods/centre_options.h"

#include <fmt/format.h>

#include "pith/error.h"
#include "rows/cpu/centred_rows.h"
#include "rows/cpu/mean_rows.h"

namespace pith {

Fields CentreOptions::fields() {
  return {whole("center", center, {.most = 65536},
                "rows whose keys are coded around their mean; scores get its share back; 0 = none"),
          flag("pre_rope", pre_rope,
               "keys are coded before RoPE, all around the mean of the first `center` rows: for "
               "keys with a large constant part")
              .when(pre_rope)};
}

void CentreOptions::check(const std::string& method) const {
  if (pre_rope && center == 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}(pre_rope=true) has no rows to take the mean of; say of how many "
                            "first rows it is, as in {}(center=32,pre_rope=true)",
                            method, method));
}

std::unique_ptr<Codec> centred_if_asked(std::unique_ptr<Codec> codec, const CentreOptions& o,
                                        Side side) {
  if (o.center == 0 || side == Side::kValues) return codec;
  if (o.pre_rope) return std::make_unique<MeanCodec>(std::move(codec), o.center);
  return std::make_unique<CentredCodec>(std::move(codec), o.center);
}

Limit pre_rope_limit(const std::string& method, const CentreOptions& o) {
  return {"pre_rope",
          "false; keys are coded before RoPE by kvquant there, by all others with --device cpu",
          o.pre_rope ? fmt::format("{}(pre_rope=true)", method) : ""};
}

}  // namespace pith
