#pragma once

#include <fmt/format.h>

#include "pith/error.h"

namespace pith {

/// Throws kInvalidArgument for a number of threads that makes no sense.
inline void check_threads(int threads) {
  if (threads < 0 || threads > 1024)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} threads; choose 1 to 1024, or 0 for all cores", threads));
}

}  // namespace pith
