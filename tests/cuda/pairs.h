#pragma once
// Every selector over every codec that is on the GPU, as the registry has them.

#include <string>

#include "cache_pair.h"
#include "pith/error.h"
#include "policy/registry.h"
#include "policy/support.h"

namespace pith::cuda {

/// The policy with about `rows` rows in the body. `seldom`: selected after 512 more, not a few
/// at a time, and without heavy rows, whose choice follows each rounding, where the selector leaves
/// that.
inline std::string policy_of(const SelectorRow& selector, const std::string& codec, size_t rows,
                             bool seldom) {
  const MethodInfo& method = selector.info;
  std::string text = method.name;
  if (!method.size_parameter.empty()) {
    text += "(" + method.size_parameter + "=" + std::to_string(rows);
    for (const auto& [name, value] : {std::pair{"interval", "512"}, {"heavy", "0"}}) {
      const bool has = std::ranges::any_of(method.parameters,
                                           [&](const ParameterInfo& p) { return p.name == name; });
      if (seldom && has) text += std::string(",") + name + "=" + value;
    }
    text += ")";
  }
  text += "+" + codec + ",sink=2";
  return selector.owns_window ? text : text + ",window=30";
}

/// Whether the pair is on the GPU.
inline bool is_there(const std::string& policy, int dim, const std::vector<int64_t>& sliding = {}) {
  try {
    ResolvedPolicy(Policy::parse(policy), shape_of(dim, sliding), 0, Device::kCuda);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << policy;
    return false;
  }
  return true;
}

/// Whether tokens can be protected under it on the GPU.
inline bool protects(const std::string& policy) {
  try {
    ResolvedPolicy(Policy::parse(policy), shape_of(64), 0, Device::kCuda).check_protect();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << policy;
    return false;
  }
  return true;
}

/// A codec with its defaults, and in its paper's form, whose kernels may be others.
inline std::vector<std::string> forms_of(const CodecRow& codec) {
  std::vector<std::string> forms{codec.info.name};
  if (std::ranges::count(codec.info.parameters, "paper", &ParameterInfo::name) > 0)
    forms.push_back(codec.info.name + "(paper=true)");
  return forms;
}

/// f(policy with about `rows` rows, selector, codec) for every pair that is on the GPU; `seldom`
/// selected over codes, so that rows that leave the window together are a group on both
/// devices.
template <class F>
void for_pairs(size_t rows, bool seldom, const F& f) {
  for (const SelectorRow& selector : selector_rows()) {
    for (const CodecRow& codec : codec_rows()) {
      for (const std::string& form : forms_of(codec)) {
        const std::string policy = policy_of(selector, form, rows, seldom && !codec.dense);
        SCOPED_TRACE(policy);
        if (is_there(policy, 64)) f(policy, selector, codec);
      }
    }
  }
}

inline DType dtype_of(const CodecRow& codec) {
  return codec.dense == DType::kBF16 ? DType::kBF16 : DType::kF16;
}
}  // namespace pith::cuda
