// Another program run to its end, as `bolt bench` runs another build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/file_map.h"

namespace bolt {

struct ChildEnd {
  int status = -1;  // exit status; -1 if a signal ended it
  int signal = 0;
  std::string errors;            // what it wrote to stderr
  std::uint64_t peak_bytes = 0;  // largest resident set
};

// A program that answers lines: one goes to its stdin, one comes from its stdout. Process group and
// errors as run_child's; what it says on stderr goes to a file.
class LineChild {
 public:
  LineChild(const std::string& program, const std::vector<std::string>& args,
            const std::string& errors_file);
  // Ends its input and waits for it, whatever it says.
  ~LineChild();
  LineChild(const LineChild&) = delete;
  LineChild& operator=(const LineChild&) = delete;

  // Error(fault), with the last line of its stderr, if it ends instead.
  std::string ask(const std::string& line);
  std::uint64_t peak_bytes() const;  // of its resident set, so far

 private:
  [[noreturn]] void fail_ended();

  const std::string program_, errors_file_;
  FileDescriptor to_, from_;
  std::string read_;  // beyond the last line
  int pid_ = -1;
};

// Runs `program` (a path) with these arguments, stdin and stdout at /dev/null, in a process group
// of its own, so that the terminal's Ctrl-C is the parent's alone. Error(fault) if it cannot be
// run.
ChildEnd run_child(const std::string& program, const std::vector<std::string>& args);

}  // namespace bolt
