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

Offers offers_centred(Offers offers, const CentreOptions& o, Side side) {
  if (o.center == 0 || side == Side::kValues) return offers;
  offers.before_rope = o.pre_rope;
  if (o.pre_rope) {
    offers.learns = o.center;
  } else {
    offers.shares = true;
    offers.block = o.center;
  }
  return offers;
}

Limit center_limit(const std::string& method, const CentreOptions& o, size_t dim) {
  Limit limit = Limit::of_group(method, "center", o.group_rows(), true, dim);
  limit.there += "; any with pre_rope=true";
  return limit;
}

}  // namespace pith
