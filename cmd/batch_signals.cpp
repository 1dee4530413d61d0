// One counter, set by handlers.
#include "cmd/batch_signals.h"

#include <unistd.h>

#include <csignal>

#include "core/base/error.h"
#include "core/base/interrupt.h"

namespace bolt {
namespace {

constexpr int kCut = 2, kEnd = 3;
volatile std::sig_atomic_t level_now = 0;

void raise_to(int level) {
  level_now = level;
  if (level >= kEnd) ::_exit(static_cast<int>(Exit::interrupted));
}

}  // namespace

BatchSignals::BatchSignals() {
  level_now = interrupt_flag() ? kCut : 0;
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = [](int) { raise_to(level_now + 1); };
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = [](int) { raise_to(level_now < kCut ? kCut : kEnd); };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);
}

BatchSignals::~BatchSignals() { catch_interrupts(); }

int BatchSignals::level() { return level_now; }

}  // namespace bolt
