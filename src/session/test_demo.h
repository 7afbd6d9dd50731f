#pragma once
// For tests of sessions: the demo model, loaded once per program.

#include <memory>

#include "paths.h"
#include "pith/model.h"

namespace pith::test {

inline std::shared_ptr<const Model> demo() {
  static const auto model = Model::load(repo_dir() / "models/demo");
  return model;
}

}  // namespace pith::test
