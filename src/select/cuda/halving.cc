#include "select/cuda/halving.h"

#include <fmt/format.h>

#include "pith/error.h"
#include "select/halving.h"

namespace pith::cuda {

DeviceHalvingRule device_rule(const HalvingRule& rule) {
  DeviceHalvingRule out;
  out.scale = rule.scale * rule.temperature;
  out.value_constant = rule.value_constant;
  out.balance = rule.balance;
  out.delta = rule.delta;
  out.walk = static_cast<DeviceWalk>(rule.walk);
  out.values = rule.values;
  out.centre = rule.centre;
  out.coin_side = rule.side == KeptSide::kCoin;
  return out;
}

int HalvingCall::kept_size(const DeviceHalvingRule& rule) const {
  return rule.walk == DeviceWalk::kRows ? size : size / 2;
}

void HalvingCall::check(const DeviceHalvingRule& rule) const {
  const bool known = (dim == 64 || dim == 128 || dim == 256) && size > 0 && size % 2 == 0 &&
                     size <= most_halving_rows(dim) && heads > 0 && heads <= 65535 && groups > 0 &&
                     row_stride % 8 == 0 && (dtype == DType::kF16 || dtype == DType::kBF16);
  if (known && (rule.walk == DeviceWalk::kPairs || counts != nullptr ||
                rule.walk == DeviceWalk::kRowsExact)) {
    return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("halving on the GPU was asked for {} groups of {} rows of {} heads, "
                          "head_dim {}, {}; it takes even numbers of rows up to {}, head_dim 64, "
                          "128 or 256, f16 or bf16, and a place for the counts where they vary",
                          groups, size, heads, dim, to_string(dtype), most_halving_rows(dim)));
}

}  // namespace pith::cuda
