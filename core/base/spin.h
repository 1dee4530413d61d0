// Waiting for another thread for a moment, before it is worth a sleep.
#pragma once

#include <chrono>

namespace bolt {

// Before a thread sleeps: long enough for the serial step between two regions, short enough that a
// shared core is soon free.
inline constexpr std::chrono::microseconds kSpin{60};

// Spins until `done()` or the time is over; says which.
template <class Done>
bool spin(std::chrono::microseconds limit, const Done& done) {
  if (done()) return true;
  if (limit.count() == 0) return false;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 16; ++i) {
      __builtin_ia32_pause();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace bolt
