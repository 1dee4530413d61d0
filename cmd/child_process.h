// Another program run to its end, as `bolt bench` runs another build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bolt {

struct ChildEnd {
  int status = -1;  // exit status; -1 if a signal ended it
  int signal = 0;
  std::string errors;            // what it wrote to stderr
  std::uint64_t peak_bytes = 0;  // largest resident set
};

// Runs `program` (a path) with these arguments, stdin and stdout at /dev/null, in a process group
// of its own, so that the terminal's Ctrl-C is the parent's alone. Error(fault) if it cannot be
// run.
ChildEnd run_child(const std::string& program, const std::vector<std::string>& args);

}  // namespace bolt
