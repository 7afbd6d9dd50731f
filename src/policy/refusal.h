#pragma once
// Refusals: why a policy is impossible, and the nearest one that works.

#include <optional>
#include <string>
#include <vector>

#include "policy/resolved.h"

namespace pith {

/// Throws kUnsupported with the policy, its needs, the offers, the differences and the nearest
/// policy that works.
[[noreturn]] void refuse(const PolicyRule& rule, const RulePlace& place, const Asked& asked,
                         const std::vector<Difference>& differences);
/// The same for rules that differ from one another.
[[noreturn]] void refuse_types();

/// The rule with as little as possible changed that works in its place: parameters left out, then
/// another codec, of those that cost about as much first, then another selector; prompts are read
/// as the device can. None if there is none.
std::optional<PolicyRule> nearest(const PolicyRule& rule, const RulePlace& place, bool protect);

}  // namespace pith
