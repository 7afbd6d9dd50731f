#pragma once

namespace pith::cli {

/// The list that `pith policies` and `pith inspect --policies` print.
int print_policies(bool json);

}  // namespace pith::cli
