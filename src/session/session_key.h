#pragma once
// What a session's state depends on beside its tokens, as names and values.

#include <string>
#include <utility>
#include <vector>

#include "pith/session.h"

namespace pith {

/// In the order of importance.
using SessionKey = std::vector<std::pair<std::string, std::string>>;

/// What two sessions of one engine may differ in.
SessionKey session_key(const Engine& engine, const SessionOptions& options);

}  // namespace pith
