// Penalties and the bias of tokens.

#include "serve/gate_fields.h"
#include "serve/refusal.h"

namespace pith::serve {

void read_penalties(Fields& f, Call&) {
  for (const char* name : {"presence_penalty", "frequency_penalty"})
    if (const auto value = f.number(name, -2, 2); value && *value != 0)
      throw unsupported(name, "is not there yet; repeat_penalty is");
  if (const Json* bias = f.get("logit_bias"); bias && !bias->empty())
    throw unsupported("logit_bias", "is not there yet");
}

}  // namespace pith::serve
