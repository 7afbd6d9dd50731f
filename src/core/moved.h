#pragma once
// Objects that hold what they are by a pointer, and are refused once it was moved away.

#include <memory>
#include <string>

#include "pith/error.h"

namespace pith {

/// `what`: "a session".
[[noreturn]] inline void refuse_moved(const char* what) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string(what) + " that was moved from; use the one that it was moved to");
}

/// The object's inside. Throws for one that was moved from.
template <class T>
T& there(const std::unique_ptr<T>& state, const char* what) {
  if (state) return *state;
  refuse_moved(what);
}

}  // namespace pith
