#pragma once
// Engines of little memory.

#include <memory>

#include "pith/engine.h"
#include "session/test_demo.h"

namespace pith::test {

/// In which few tokens are several chunks; `limit` bytes, 0: all there are.
inline std::shared_ptr<Engine> small_engine(size_t limit = 0) {
  EngineOptions o;
  o.threads = 2;
  o.chunk = 48;
  o.memory_limit = limit;
  return std::make_shared<Engine>(demo(), o);
}

}  // namespace pith::test
