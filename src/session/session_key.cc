#include "session/session_key.h"

#include <fmt/format.h>

#include "pith/error.h"

namespace pith {

std::string field_of(const SessionKey& key, const std::string& name) {
  for (const auto& [field, value] : key)
    if (field == name) return value;
  return "";
}

void check_key(const std::string& what, const SessionKey& saved, const SessionKey& wanted,
               const std::string& goes_on) {
  for (const auto& [name, value] : wanted) {
    const std::string found = field_of(saved, name);
    if (found != value)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: its {} is '{}', and '{}' was asked for; {}", what, name, found,
                              value, goes_on));
  }
  if (saved.size() != wanted.size())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: it depends on {} things, and this Pith knows of {}", what,
                            saved.size(), wanted.size()));
}

void check_protected(const std::string& what, const std::vector<TokenRange>& saved,
                     const std::vector<TokenRange>& asked) {
  if (asked.empty() || to_string(asked) == to_string(saved)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: its protected tokens are '{}', and '{}' was asked for; leave them "
                          "out, and protect tokens to come afterwards",
                          what, to_string(saved), to_string(asked)));
}

}  // namespace pith
