#pragma once
// The rows of each layer and KV head of a session, as a table.

#include <string>

#include "pith/session.h"

namespace pith::cli {

std::string rows_table(const Session& session);

}  // namespace pith::cli
