#pragma once
// Ctrl-C: the first asks for a clean end, the second ends the program at once. SIGTERM is a
// first Ctrl-C, and ends the program after three seconds.

#include <atomic>

namespace pith::cli {

/// Installs the handler of SIGINT and SIGTERM.
void install_interrupt_handler();
/// For work that never checks interrupted() and leaves nothing half done: from here on the first
/// Ctrl-C ends the program.
void end_at_first_interrupt();
/// For a server, which checks it and lets its clients' answers end: no three seconds.
void take_time_to_end();
/// True once Ctrl-C was pressed or SIGTERM came; long work checks it and ends with its results so
/// far.
const std::atomic<bool>& interrupted();
/// True once SIGTERM came. No work continues after it.
bool terminated();
/// Waits until `descriptor` has something to read or has ended, or fg resumed the program: true.
/// False if Ctrl-C was pressed first; without a pipe to be woken by, that is seen with the input.
bool wait_for_input(int descriptor);
/// Forgets a Ctrl-C that has been dealt with (the interactive mode continues after it).
void clear_interrupt();

}  // namespace pith::cli
