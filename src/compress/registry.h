#pragma once
// The registry's rows. The table itself is in src/methods/registry.cc: a row a method.

#include <memory>
#include <string>
#include <string_view>

#include "compress/options.h"
#include "compress/selector.h"

namespace pith {

/// Everything that a selector is made from.
struct SelectorRequest {
  const Context& context;
  const MethodOptions& options;
  const BudgetSite& budget;
  SelectorSite site;
};

/// What a selector on the GPU is made from.
struct SelectorPlace {
  const MethodOptions& options;
  const BudgetSite& budget;
  SelectorSite site;
};

struct SelectorRow : MethodRow {
  SelectorParts (*make)(const SelectorRequest&);
  /// Exact rows around the body when the policy does not set them. `coded`: the body is not plain
  /// dense. The site's budget is for the window itself.
  uint32_t default_sink = 0;
  uint32_t (*default_window)(const MethodOptions&, const BudgetSite&, bool coded) = nullptr;
  /// The window is this method's own parameter, so that the setting would contradict it.
  bool owns_window = false;
  /// Bytes that the selector needs beside each body row: positions, weights, mass.
  double side_bytes = sizeof(uint32_t);
  /// More of them for some parameters.
  double (*more_side_bytes)(const MethodOptions&) = nullptr;
  /// Bytes of one KV head that do not grow with its rows: what the selector remembers.
  double (*state_bytes)(const MethodOptions&, const SelectorSite&) = nullptr;
  /// Cache positions instead of true ones (StreamingLLM's rope=cache).
  bool (*cache_positions)(const MethodOptions&) = nullptr;
};

struct CodecRow : MethodRow {
  std::optional<DType> dense;  ///< set if rows are plain numbers of this type
  std::unique_ptr<Codec> (*make)(const MethodOptions&, Side side);
};

/// A lookup that throws kInvalidArgument with what is known and the nearest name.
const SelectorRow& selector_row(std::string_view name);
const CodecRow& codec_row(std::string_view name);
const SelectorRow* find_selector(std::string_view name);
const CodecRow* find_codec(std::string_view name);
std::span<const SelectorRow> selector_rows();
std::span<const CodecRow> codec_rows();
/// Whether this build has a GPU's half of the method (src/methods/registry_cuda.cc).
bool is_on_gpu(std::string_view name);

}  // namespace pith
