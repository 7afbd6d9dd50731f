#pragma once
// The models that are here, as OpenAI's and llama.cpp's APIs list them.

#include <cstdint>
#include <memory>

#include "pith_serve/serve.h"
#include "serve/preparer.h"
#include "serve/visit.h"

namespace pith::serve {

class ModelEndpoints {
 public:
  ModelEndpoints(std::shared_ptr<Engine> engine, const ServeOptions& options,
                 const Preparer& preparer);

  void models(Visit& v);
  void one_model(Visit& v);
  void props(Visit& v);

 private:
  Json model_json(const Preset& preset) const;

  const std::shared_ptr<Engine> engine_;
  const ServeOptions& options_;
  const Preparer& preparer_;
  const int64_t created_;  // unix seconds
};

}  // namespace pith::serve
