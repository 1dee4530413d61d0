// A reply's text on its way to stdout. To a file or a pipe the bytes go as they are; on a terminal
// control characters are shown, not obeyed, and thinking is dimmed where colour is allowed.
#pragma once

#include <string>
#include <string_view>

namespace bolt {

// Control characters but newline and tab in caret notation (ESC as ^[, DEL as ^?, C1 as ^[ and its
// letter), and the bidirectional overrides as <U+202E>. `text` is UTF-8 in whole characters.
std::string inert(std::string_view text);

class TerminalText {
 public:
  // thinking: the reply starts inside a think block, which "</think>" closes.
  TerminalText(bool terminal, bool color, bool thinking);

  std::string push(std::string_view piece);
  // Undoes what was switched on.
  std::string finish();
  // Whether text has come and the last of it was not a newline.
  bool mid_line() const { return mid_line_; }

 private:
  bool terminal_, dims_, thinking_;
  bool dimmed_ = false, mid_line_ = false;
  std::string tail_;  // the last bytes, to find the closing tag across pieces
};

}  // namespace bolt
