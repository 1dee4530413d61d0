// The terminal's echo, off while a reply is written to it: keys typed meanwhile would land in the
// text. They stay in the terminal's queue and become the next line; Ctrl-C and Ctrl-Z work as ever.
#pragma once

namespace bolt {

class EchoOff {
 public:
  // Does nothing where stdin is no terminal, or another job's. One at a time.
  EchoOff();
  // Echo as it was before; so do signals that end or stop the process meanwhile.
  ~EchoOff();
  EchoOff(const EchoOff&) = delete;
  EchoOff& operator=(const EchoOff&) = delete;

  // For a handler that is about to end the process: async-signal-safe, does nothing without an
  // EchoOff.
  static void restore() noexcept;
};

}  // namespace bolt
