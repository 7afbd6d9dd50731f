#pragma once
// The registry's rows. The table itself is in src/methods/registry.cc: a row a method.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "policy/offers.h"
#include "policy/options.h"
#include "select/selector.h"

namespace pith {

/// Everything that a selector is resolved from.
struct SelectorPlace {
  const MethodOptions& options;
  const BudgetSite& budget;
  SelectorSite site;
};

/// A selector in a place, as a value: nothing is allocated yet.
struct ResolvedSelector {
  std::shared_ptr<const Rule> rule = nullptr;
  Needs needs = {};
  std::string text;  ///< as the user would write it, budgets as rows
  /// Null if the rule never selects.
  std::function<std::unique_ptr<Chooser>(const Context&)> chooser = nullptr;
  std::optional<HalverRule> halving = {};  ///< if rows are picked and halved

  /// Carries the rule out on the CPU.
  SelectorParts parts(const Context& context, const SelectorSite& site) const;
};

/// The memory of a selector for one KV head beside its rows, however many these are.
struct StateSize {
  double bytes = 0;
  size_t buffers = 0;  ///< that it lies in
};

struct SelectorRow : MethodRow {
  ResolvedSelector (*resolve)(const SelectorPlace&);
  bool on_gpu = false;  ///< a row of registry_cuda.cc makes its other half
  /// Exact rows around the body when the policy does not set them. `coded`: the body is not plain
  /// dense. The site's budget is for the window itself.
  uint32_t default_sink = 0;
  bool sink_of_codes = false;  ///< default_sink is for coded rows alone
  uint32_t (*default_window)(const MethodOptions&, const BudgetSite&, bool coded) = nullptr;
  /// The window is this method's own parameter, so that the setting would contradict it.
  bool owns_window = false;
  /// Bytes that the selector needs beside each body row: positions, weights, mass.
  double side_bytes = sizeof(uint32_t);
  /// More of them for some parameters.
  double (*more_side_bytes)(const MethodOptions&) = nullptr;
  StateSize (*state)(const MethodOptions&, const SelectorSite&) = nullptr;
};

/// A side of a codec at one head_dim.
struct OfferSite {
  Side side = Side::kKeys;
  size_t dim = 0;  // D
};

struct CodecRow : MethodRow {
  std::optional<DType> dense;  ///< set if rows are plain numbers of this type
  std::unique_ptr<Codec> (*make)(const MethodOptions&, Side side);
  /// Its offers on the GPU, with its limits there, whether they are met or not. Null: a row of
  /// plain numbers, or there is no GPU's half.
  Offers (*on_gpu)(const MethodOptions&, const OfferSite&) = nullptr;
};

/// A lookup that throws kInvalidArgument with what is known and the nearest name.
const SelectorRow& selector_row(std::string_view name);
const CodecRow& codec_row(std::string_view name);
const SelectorRow* find_selector(std::string_view name);
const CodecRow* find_codec(std::string_view name);
std::span<const SelectorRow> selector_rows();
std::span<const CodecRow> codec_rows();

}  // namespace pith
