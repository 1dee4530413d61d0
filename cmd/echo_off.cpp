// One termios, kept where signal handlers find it. Changes take effect at once and never drop what
// was typed (TCSANOW).
#include "cmd/echo_off.h"

#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iterator>

#include "core/base/interrupt.h"

namespace bolt {
namespace {

// Those that end the process, now or when they come twice, and the one that stops it. SIGINT is the
// chat's own.
constexpr int kSignals[] = {SIGTERM, SIGHUP,  SIGQUIT, SIGTSTP, SIGSEGV,
                            SIGBUS,  SIGABRT, SIGFPE,  SIGILL};

termios as_it_was;
volatile std::sig_atomic_t is_off = 0;
struct sigaction old_actions[std::size(kSignals)];

// A job in the background would be stopped for touching the terminal, and it is not its own then.
bool in_foreground() { return ::tcgetpgrp(STDIN_FILENO) == ::getpgrp(); }

void set_echo(bool on) {
  if (!in_foreground()) return;
  termios mode = as_it_was;
  if (!on) mode.c_lflag &= ~static_cast<tcflag_t>(ECHO | ECHONL);
  (void)::tcsetattr(STDIN_FILENO, TCSANOW, &mode);
}

// The first SIGTERM or SIGHUP ends the reply as interrupt.h says; anything else takes its default
// course with the terminal as it was. Only a stopped process comes back.
void handle(int signal) {
  const int error = errno;
  const bool unwinds = (signal == SIGTERM || signal == SIGHUP) && !interrupt_flag().exchange(true);
  if (!unwinds) {
    EchoOff::restore();
    struct sigaction mine = {}, plain = {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, &mine);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal);
    (void)std::raise(signal);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);  // it is delivered here
    sigaction(signal, &mine, nullptr);
    if (is_off != 0) set_echo(false);
  }
  errno = error;
}

}  // namespace

EchoOff::EchoOff() {
  if (::tcgetattr(STDIN_FILENO, &as_it_was) != 0 || !in_foreground()) return;
  is_off = 1;
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = handle;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &old_actions[i]);
    // Ignored signals stay ignored; a sanitizer keeps its handlers.
    const bool is_ours = kSignals[i] == SIGTERM || kSignals[i] == SIGHUP;
    if (is_ours ? old_actions[i].sa_handler != SIG_IGN : old_actions[i].sa_handler == SIG_DFL) {
      sigaction(kSignals[i], &action, nullptr);
    }
  }
  set_echo(false);
}

EchoOff::~EchoOff() {
  if (is_off == 0) return;
  restore();
  is_off = 0;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &old_actions[i], nullptr);
  }
}

void EchoOff::restore() noexcept {
  if (is_off != 0) set_echo(true);
}

}  // namespace bolt
