// The interrupt flag and its handlers.
#include "core/base/interrupt.h"

#include <csignal>

#include "core/base/error.h"

namespace bolt {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { flag.store(true, std::memory_order_relaxed); };
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a blocked read returns and its caller looks at the flag. Reset: the second ends.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

std::atomic<bool>& interrupt_flag() { return flag; }

void check_interrupt() {
  if (flag.load(std::memory_order_relaxed)) throw Error(Exit::interrupted, "interrupted");
}

}  // namespace bolt
