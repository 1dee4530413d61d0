// The one flag that SIGINT, SIGTERM and SIGHUP set. Long work looks at it, unwinds, and so removes
// what it had not finished; a second signal ends the process at once.
#pragma once

#include <atomic>

namespace bolt {

// Installs the handlers; call once, from main.
void catch_interrupts();
// Set by the handlers; loops that take the flag by pointer (Engine::generate) get this one.
std::atomic<bool>& interrupt_flag();
// Throws Error(interrupted) once the flag is set.
void check_interrupt();

}  // namespace bolt
