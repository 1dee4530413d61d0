// Control sequences of every terminal since the VT100: index, reverse index, save and restore the
// cursor, erase.
#include "cmd/status_line.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "cmd/streams.h"

namespace bolt {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);

bool same_terminal() {
  struct stat out, err;
  return stdout_is_terminal() && ::fstat(STDOUT_FILENO, &out) == 0 &&
         ::fstat(STDERR_FILENO, &err) == 0 && out.st_rdev == err.st_rdev;
}

std::size_t terminal_columns() {
  winsize size = {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

StatusLine::StatusLine(bool enabled)
    : enabled_(enabled && stderr_is_terminal()), below_text_(enabled_ && same_terminal()) {}

bool StatusLine::due() const {
  return enabled_ && std::chrono::steady_clock::now() - last_ >= kInterval;
}

void StatusLine::show(std::string_view text) {
  if (!enabled_) return;
  text_ = text.substr(0, terminal_columns() - 1);
  last_ = std::chrono::steady_clock::now();
  draw();
}

void StatusLine::draw() {
  // Below: one row down and up again, so that there is a row; the cursor's place is kept meanwhile.
  write_err(below_text_ ? "\033D\033M\0337\033D\r\033[2K" + text_ + "\0338" : "\r\033[2K" + text_);
  drawn_ = true;
}

void StatusLine::clear() {
  if (!drawn_) return;
  write_err(below_text_ ? "\033[J" : "\r\033[2K");
  drawn_ = false;
}

void StatusLine::again() {
  if (enabled_ && !text_.empty()) draw();
}

}  // namespace bolt
