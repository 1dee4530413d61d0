// How a run fails, and what the shell is told. Every other file throws Error or returns a value.
#pragma once

#include <stdexcept>
#include <string>

namespace bolt {

// no: checked and false. input: malformed. unmet: cannot compare. fault: device, I/O, bug.
enum class Exit : int {
  ok = 0,
  no = 1,
  usage = 2,
  input = 3,
  unmet = 4,
  trust = 5,
  fault = 6,
  interrupted = 130,
};

// One line: subject, problem, expected against found, next step.
struct Error : std::runtime_error {
  Error(Exit exit, const std::string& line) : std::runtime_error(line), code(exit) {}
  const Exit code;
};

// Our own broken contracts; stays on in release and exits `fault`.
// (Builtins, because clang 14's tools do not see GCC 12's std::source_location.)
inline void require(bool holds, const char* what, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  if (holds) return;
  throw Error(Exit::fault, std::string("internal: ") + what + " does not hold at " + file + ":" +
                               std::to_string(line));
}

}  // namespace bolt
