#pragma once
// What the gate's files share.

#include "serve/gate.h"

namespace pith::serve {

void read_common(Fields& fields, Call& call, const GateOptions& options);
void read_penalties(Fields& fields, Call& call, const GateOptions& options);
void refuse_unknown(const Fields& fields, const GateOptions& options);

}  // namespace pith::serve
