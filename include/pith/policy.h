#pragma once
// The policy: which rows of the cache stay (selector), how they are stored (codec), and which stay
// exact (sink, window). The command line, C++ and C use the same string.
//
//   policy  := rule (';' where ':' rule)*
//   where   := 'layers=' ranges ['/heads=' ranges] | 'heads=' ranges
//   rule    := part ('+' part)* (',' setting)*
//   part    := ['k:' | 'v:'] name ['(' key=value (',' key=value)* ')']
//              (a value may be a name with parameters of its own: ladder's codecs)
//   setting := 'sink=' rows | 'window=' rows | 'dtype=' f32|f16|bf16
//              | 'prompt=' chunks|exact|once   (in the first rule: it is of the whole policy)
//   ranges  := range (',' range)*, range := n | n-m        (negative n counts from the end)
//
// Examples: "exact", "streaming_llm(window=1020)", "uniform(rate=0.25)+bf16,sink=4,window=64",
//           "streaming_llm(window=508);layers=0-1,-1:exact".
// A budget counts body rows per KV head. It is rows ("1024"), a share of the tokens read ("25%":
// SessionOptions::percent_of), or bytes of the whole cache ("16MiB"), and becomes rows once, when
// the cache is built.

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

/// A range of layers or heads as written, last included; negative numbers count from the end.
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

/// How several tokens that are appended at once are read.
enum class PromptReading : uint8_t {
  /// A chunk attends to its own rows exactly and to older ones as they are stored.
  kChunks,
  /// A layer at a time: all of them attend to each other exactly, and to older rows as they are
  /// stored; then the layer's rows are stored.
  kExact,
  /// The same, and the selector selects when the prompt ends, never before.
  kOnce
};
const char* to_string(PromptReading reading);

class Policy {
 public:
  /// Parses a policy and checks its names and parameters. Throws kInvalidArgument with the wrong
  /// part, the known names and a suggestion.
  static Policy parse(std::string_view text);
  /// Sets the size parameter of every rule's selector ("1024", "25%", "16MiB"). Throws
  /// kInvalidArgument if a selector has no size parameter, or its size is already written.
  void set_budget(const std::string& budget);
  /// Text that parse() turns into the same policy.
  std::string to_string() const;
  /// The rule for a layer and KV head: the last that names it.
  const PolicyRule& rule_for(int layer, int layers, int head, int heads) const;

  std::vector<PolicyRule> rules = {};  ///< rules[0] is the default
  PromptReading prompt = PromptReading::kChunks;
};

/// One parameter of a method, for help and for checking.
struct ParameterInfo {
  std::string name = {}, default_value = {}, help = {};
};

/// One selector or codec.
struct MethodInfo {
  std::string name = {};
  bool is_selector = false;
  std::string summary = {}, source = {};
  std::vector<ParameterInfo> parameters = {};
  /// Selectors: the parameter that a budget sets ("budget", "window"); empty if there is none.
  std::string size_parameter = {};
  /// Selectors with default parameters: the inputs that they need.
  bool needs_mass = false;     ///< each row's attention mass
  bool needs_queries = false;  ///< the queries of every step
  bool needs_rope = false;     ///< the RoPE of keys and queries
  bool weighted = false;       ///< a row may stand for several
  bool ragged = false;         ///< heads may hold different numbers of rows
  bool on_gpu = false;         ///< available with Device::kCuda, in builds with CUDA
  /// Codecs with default parameters: what their rows are like, for selectors that evict them.
  size_t block_rows = 0;          ///< rows that are coded together; 1: each alone; 0: a selector
  size_t learns_rows = 0;         ///< first rows of a stream that tables are made of; 0: no tables
  bool shares = false;            ///< rows of a block share numbers: a scale, a centre
  bool keys_before_rope = false;  ///< keys are rotated when they are read: it needs the RoPE
  /// In words: all that a selector needs of codecs and devices, or a codec offers.
  std::string needs = {}, offers = {};
};

/// Every selector and codec of this build, selectors first.
std::vector<MethodInfo> methods();

}  // namespace pith

#pragma GCC visibility pop
