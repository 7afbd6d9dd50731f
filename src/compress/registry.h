#pragma once
// The registry's rows and the parameters they are made from. The table itself is in
// src/methods/registry.cc: a row a method.

#include <memory>
#include <string>
#include <string_view>

#include "compress/selector.h"
#include "pith/policy.h"

namespace pith {

/// A number of rows, a share of the context, or bytes of the whole cache.
struct Budget {
  enum class Unit : uint8_t { kRows, kPercent, kBytes };
  double value = 0;
  Unit unit = Unit::kRows;
  /// "1024", "25%", "16MiB" (KiB and GiB too). Throws kInvalidArgument; zero is refused.
  static Budget parse(std::string_view text);
};

/// What turns a budget into rows.
struct BudgetSite {
  size_t context = 0;      ///< tokens of the session
  size_t caches = 1;       ///< layers * KV heads that share a byte budget
  double row_bytes = 0;    ///< of one body row of one KV head, side arrays included
  double exact_bytes = 0;  ///< sink and window of one KV head when full
  size_t rows(const Budget& budget) const;
};

/// A part's parameters, complete with defaults, with typed access. Values that do not parse throw
/// kInvalidArgument naming method, parameter and what is accepted.
class Parameters {
 public:
  /// Unknown names are refused with the known ones.
  Parameters(const MethodInfo& method, const PolicyPart& part);

  const std::string& method() const { return method_.name; }
  bool given(const std::string& name) const { return part_.parameters.contains(name); }
  const std::string& text(const std::string& name) const;
  double number(const std::string& name, double least, double most) const;
  size_t count(const std::string& name, size_t least) const;
  bool flag(const std::string& name) const;
  std::string choice(const std::string& name, std::initializer_list<std::string_view> known) const;
  size_t rows(const std::string& name, const BudgetSite& site) const;

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& wanted) const;
  const MethodInfo& method_;
  PolicyPart part_;
};

/// Everything that a selector is made from.
struct SelectorRequest {
  const Context& context;
  const Parameters& parameters;
  const BudgetSite& budget;
  SelectorSite site;
};

/// What a selector on the GPU is made from.
struct SelectorPlace {
  const Parameters& parameters;
  const BudgetSite& budget;
  SelectorSite site;
};

struct SelectorRow {
  MethodInfo info;
  std::unique_ptr<Selector> (*make)(const SelectorRequest&);
  /// Exact rows around the body when the policy does not set them. `coded`: the body is not plain
  /// dense. The site's budget is for the window itself.
  uint32_t default_sink = 0;
  uint32_t (*default_window)(const Parameters&, const BudgetSite&, bool coded) = nullptr;
  /// The window is this method's own parameter, so that the setting would contradict it.
  bool owns_window = false;
  /// Bytes that the selector needs beside each body row: positions, weights, mass.
  double side_bytes = sizeof(uint32_t);
  /// More of them for some parameters.
  double (*more_side_bytes)(const Parameters&) = nullptr;
  /// Cache positions instead of true ones (StreamingLLM's rope=cache).
  bool (*cache_positions)(const Parameters&) = nullptr;
};

struct CodecRow {
  MethodInfo info;
  std::optional<DType> dense;  ///< set if rows are plain numbers of this type
  std::unique_ptr<Codec> (*make)(const Parameters&, Side side);
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
