// One live line on stderr, when it is a terminal: what is going on now. It never touches stdout's
// bytes; where stdout is the same terminal it stands on the row below the text.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace bolt {

class StatusLine {
 public:
  // A disabled one does nothing.
  explicit StatusLine(bool enabled);
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool enabled() const { return enabled_; }
  // Whether the next show() will draw: at most ten times a second, so that callers need not format
  // what nobody sees.
  bool due() const;
  void show(std::string_view text);
  // Takes the line away, as before text is written to the terminal; again() puts it back.
  void clear();
  void again();

 private:
  void draw();

  bool enabled_, below_text_;
  bool drawn_ = false;
  std::string text_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace bolt
