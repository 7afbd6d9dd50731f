#pragma once
// The policy: which rows of the cache stay (selector), how they are stored (codec), and what is
// kept exact (sink, window). One string says it everywhere: command line, C++, C.
//
//   policy  := rule (';' where ':' rule)*
//   where   := 'layers=' ranges ['/heads=' ranges] | 'heads=' ranges
//   rule    := part ('+' part)* (',' setting)*
//   part    := ['k:' | 'v:'] name ['(' key=value (',' key=value)* ')']
//              (a value may be a name with parameters of its own: ladder's codecs)
//   setting := 'sink=' rows | 'window=' rows | 'dtype=' f32|f16|bf16
//   ranges  := range (',' range)*, range := n | n-m        (negative n counts from the end)
//
// Examples: "exact", "streaming_llm(window=1020)", "uniform(rate=0.25)+bf16,sink=4,window=64",
//           "streaming_llm(window=508);layers=0-1,-1:exact".
// A budget is rows ("1024"), a share of what is read ("25%": SessionOptions::percent_of), or bytes
// of the whole cache ("16MiB"); it counts body rows per KV head and is turned into rows once, at
// construction.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pith/dtype.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// A name with its parameters, as written.
struct PolicyPart {
  std::string name = {};
  std::map<std::string, std::string> parameters = {};
};

/// Numbers or ranges as written; first and last may be negative (-1 = last).
struct IndexRange {
  int first = 0, last = 0;
};

struct PolicyRule {
  std::vector<IndexRange> layers = {}, heads = {};  ///< empty: all
  PolicyPart selector{"exact", {}};
  std::optional<PolicyPart> key_codec = {}, value_codec = {};  ///< none: dense, in `dtype`
  std::optional<uint32_t> sink = {}, window = {};              ///< none: the selector's default
  std::optional<DType> dtype = {};                             ///< of exact rows; none: f16
};

class Policy {
 public:
  /// Parses and checks names and parameters against the registry. Throws kInvalidArgument with the
  /// offending part, what is known, and a suggestion.
  static Policy parse(std::string_view text);
  /// Sets the size parameter of every rule's selector ("1024", "25%", "16MiB"). Throws
  /// kInvalidArgument if a selector has none or has its size written already.
  void set_budget(const std::string& budget);
  /// A policy that parses back to the same.
  std::string to_string() const;
  /// The rule in force for a layer and KV head: the last that names it.
  const PolicyRule& rule_for(int layer, int layers, int head, int heads) const;

  std::vector<PolicyRule> rules = {};  ///< rules[0] is the default
};

/// One parameter of a method, for help and for checking.
struct ParameterInfo {
  std::string name = {}, default_value = {}, help = {};
};

/// One row of the registry, as users see it.
struct MethodInfo {
  std::string name = {};
  bool is_selector = false;
  std::string summary = {}, source = {};
  std::vector<ParameterInfo> parameters = {};
  /// Selectors: the parameter that a budget sets ("budget", "window"); empty if it has none.
  std::string size_parameter = {};
  /// Selectors, with default parameters: what they need of whoever runs them.
  bool needs_mass = false;     ///< each row's attention mass
  bool needs_queries = false;  ///< the queries of every step
  bool needs_rope = false;     ///< the RoPE of keys and queries
  bool weighted = false;       ///< rows have weights: one may stand for several
  bool ragged = false;         ///< heads may hold different numbers of rows
  bool on_gpu = false;         ///< sessions of Device::kCuda know it, in builds that have CUDA
};

/// Every selector and codec that this build has, selectors first.
std::vector<MethodInfo> methods();

}  // namespace pith

#pragma GCC visibility pop
