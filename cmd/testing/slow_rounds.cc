// A build that is slower by five percent on purpose, and equal in every token: each pass is
// followed by idling for a twentieth of its time. Linked into bolt_slow alone, for the test that a
// bench finds so much.
#include <chrono>
#include <span>

#include "core/engine/generate.h"

extern "C" {

// Rounds::run, as the linker's --wrap renames it (cmd/CMakeLists.txt).
void __real__ZN4bolt6Rounds3runESt4spanIKPNS_6StreamELm18446744073709551615EE(
    bolt::Rounds* rounds, std::span<bolt::Stream* const> streams);

void __wrap__ZN4bolt6Rounds3runESt4spanIKPNS_6StreamELm18446744073709551615EE(
    bolt::Rounds* rounds, std::span<bolt::Stream* const> streams) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  __real__ZN4bolt6Rounds3runESt4spanIKPNS_6StreamELm18446744073709551615EE(rounds, streams);
  const Clock::time_point end = Clock::now() + (Clock::now() - start) / 19;
  while (Clock::now() < end) {
  }
}

}  // extern "C"
