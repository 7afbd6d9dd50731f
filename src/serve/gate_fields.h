#pragma once
// Shared by the gate's files.

#include "serve/gate.h"

namespace pith::serve {

void read_common(Fields& fields, Call& call, const GateOptions& options);
void read_penalties(Fields& fields, Call& call, const GateOptions& options);
/// response_format and json_schema; tools and tool_choice (gate_form.cc).
void read_form(Fields& fields, Call& call);
void read_tools(Fields& fields, Call& call);
void refuse_unknown(const Fields& fields, const GateOptions& options);

}  // namespace pith::serve
