#pragma once
// The values that a session's state depends on beside its tokens, with their names.

#include <string>
#include <utility>
#include <vector>

#include "pith/session.h"

namespace pith {

/// In the order of importance.
using SessionKey = std::vector<std::pair<std::string, std::string>>;

/// Of the values in which two sessions of one engine may differ.
SessionKey session_key(const Engine& engine, const SessionOptions& options);

/// The value of a field; "" if there is none.
std::string field_of(const SessionKey& key, const std::string& name);

/// Of a state that was saved under `saved`: throws kInvalidArgument, naming the first field that
/// differs, with both values. `what` begins the message, `goes_on` says of what it is the state,
/// and more.
void check_key(const std::string& what, const SessionKey& saved, const SessionKey& wanted,
               const std::string& goes_on);
/// The same of protected tokens, which come with the state: `asked` are the same or none.
void check_protected(const std::string& what, const std::vector<TokenRange>& saved,
                     const std::vector<TokenRange>& asked);

}  // namespace pith
