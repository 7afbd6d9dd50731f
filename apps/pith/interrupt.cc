#include "interrupt.h"

#include <unistd.h>
#include <csignal>

#include "commands.h"

namespace pith::cli {
namespace {

// A signal handler has no other way to say anything.
std::atomic<bool> was_interrupted{false}, at_once{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  if (at_once || was_interrupted.exchange(true)) _exit(kExitInterrupted);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  // Without SA_RESTART: a read of the next line returns when Ctrl-C is pressed.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A reader that went away (pith ... | head) ends the program by an error of write instead.
  std::signal(SIGPIPE, SIG_IGN);
}

void end_at_first_interrupt() { at_once = true; }

const std::atomic<bool>& interrupted() { return was_interrupted; }

void clear_interrupt() { was_interrupted = false; }

}  // namespace pith::cli
