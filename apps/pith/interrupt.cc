#include "interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

#include "commands.h"
#include "pith/error.h"
#include "resumed.h"

namespace pith::cli {
namespace {

// A signal handler has no other way to say anything.
std::atomic<bool> was_interrupted{false}, was_terminated{false}, was_resumed{false}, at_once{false},
    patient{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// The handler writes a byte here, so that a wait for input ends whichever thread got the signal and
// however short before the wait.
int wake[2] = {-1, -1};

// Work that looks ends within this time; what never looks (loading, rendering) ends here.
constexpr unsigned kSecondsToEnd = 3;

void on_alarm(int) { _exit(kExitTerminated); }

void wake_up() {
  const int before = errno;
  [[maybe_unused]] const ssize_t written = ::write(wake[1], "", 1);
  errno = before;
}

void go_to_sleep() {
  char byte = 0;
  while (::read(wake[0], &byte, 1) > 0) {
  }
}

// fg after Ctrl-Z.
void on_resume(int) {
  was_resumed = true;
  wake_up();
}

// Files of models are mapped: who makes one shorter takes pages away that are still read.
void on_lost_page(int) {
  constexpr std::string_view kWords =
      "pith: error: a mapped file was cut while in use, or its disk fails: run again\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWords.data(), kWords.size());
  _exit(kExitError + static_cast<int>(ErrorCode::kIo));
}

void on_signal(int signal) {
  const bool terminate = signal == SIGTERM;
  if (terminate && was_terminated.exchange(true)) _exit(kExitTerminated);
  const bool again = was_interrupted.exchange(true) && !terminate;
  if (at_once || again) _exit(terminate ? kExitTerminated : kExitInterrupted);
  if (terminate && !patient) ::alarm(kSecondsToEnd);
  wake_up();
}

}  // namespace

void install_interrupt_handler() {
  if (::pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) wake[0] = wake[1] = -1;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  // Without SA_RESTART: a read of the next line returns when Ctrl-C is pressed.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGALRM, on_alarm);
  std::signal(SIGBUS, on_lost_page);
  std::signal(SIGCONT, on_resume);  // reads go on: of waits, only that for a line looks
  // A reader that went away (pith ... | head) and a limit of file sizes are errors of write
  // instead.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void end_at_first_interrupt() { at_once = true; }

void take_time_to_end() { patient = true; }

const std::atomic<bool>& interrupted() { return was_interrupted; }
bool terminated() { return was_terminated; }

bool wait_for_input(int descriptor) {
  pollfd both[] = {{descriptor, POLLIN, 0}, {wake[0], POLLIN, 0}};
  while (!was_interrupted && !was_resumed && ::poll(both, 2, -1) < 0 && errno == EINTR) {
  }
  return !was_interrupted;
}

bool resumed() {
  if (!was_resumed.exchange(false)) return false;
  if (!was_interrupted) go_to_sleep();
  return true;
}

void clear_interrupt() {
  go_to_sleep();
  was_interrupted = was_terminated.load();
}

}  // namespace pith::cli
