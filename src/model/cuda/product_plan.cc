#include "model/cuda/product_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/skinny_product.h"

namespace pith::cuda {
namespace {

constexpr size_t kWideUnit = 16;                  // tokens
constexpr size_t kLogitBytes = size_t{16} << 20;  // as on the CPU: T x V is never whole

bool all_matrices(const DeviceWeights& weights, const auto& holds) {
  bool all = true;
  for_each_matrix(weights, [&](const MixedMatrix& w) { all = all && holds(w); });
  return all;
}
/// See ProductPlan::wide_.
size_t wide_rows_of(const DeviceWeights& weights, const ForwardShape& shape) {
  const auto as_they_lie = [&](const MixedMatrix& w) {
    return std::ranges::all_of(
        w.parts, [&](const MatrixPart& p) { return p.type == weight_type(shape.products); });
  };
  const bool pays =
      shape.max_tokens > 1 && shape.products != DType::kF32 && all_matrices(weights, as_they_lie);
  return pays ? (shape.max_tokens + kWideUnit - 1) / kWideUnit * kWideUnit : 0;
}
/// Whether passes have kernels of their own instead.
bool passes_are_skinny(const DeviceWeights& weights, const ForwardShape& shape) {
  return device_info().wgmma() && shape.max_tokens <= kMostSkinny &&
         wide_rows_of(weights, shape) > 0 && all_matrices(weights, [](const MixedMatrix& w) {
           return w.parts.size() == 1 && skinny_takes(w.dense(w.parts[0]));
         });
}
}  // namespace

ProductPlan::ProductPlan(const DeviceWeights& weights, const ForwardShape& shape)
    : wide_(wide_rows_of(weights, shape)),
      pass_way_(passes_are_skinny(weights, shape) ? ProductWay::kSkinny
                : wide_ > 0                       ? ProductWay::kChunk
                                                  : ProductWay::kFew),
      tiled_(weights.tiled()),
      products_(shape.products),
      max_chunk_(shape.max_chunk),
      block_(std::max(
          wide_, std::clamp<size_t>(
                     kLogitBytes / (static_cast<size_t>(weights.config().vocab) * sizeof(float)), 1,
                     std::max(shape.max_chunk, shape.max_tokens)))),
      max_tokens_(std::min(shape.max_tokens, block_)),
      together_(shape.max_tokens > 1),
      room_(std::max({max_chunk_, max_tokens_, wide_})) {}

size_t ProductPlan::most_few() const { return std::max(kFewTokens, max_tokens_); }

std::string ProductPlan::bits() const {
  if (!together_) return "one session";
  switch (pass_way_) {
    case ProductWay::kFew: return "many sessions in a pass";
    case ProductWay::kSkinny: return fmt::format("passes of up to {}", kMostSkinny);
    case ProductWay::kChunk: return fmt::format("passes of {}", wide_);
  }
  return {};
}

}  // namespace pith::cuda
