#pragma once
// fg after Ctrl-Z.

namespace pith::cli {

/// Whether the program was stopped and goes on since the last call. wait_for_input then returns
/// true, and what stood on the terminal is to be drawn again.
bool resumed();

}  // namespace pith::cli
