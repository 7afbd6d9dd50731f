#pragma once
// fg after Ctrl-Z.

namespace pith::cli {

/// True if the program was stopped and resumed since the last call. wait_for_input then returns
/// true, and the terminal must be drawn again.
bool resumed();

}  // namespace pith::cli
