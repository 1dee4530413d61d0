// UTF-8 and the few Unicode facts that text code needs. Nothing here allocates or throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bolt {

inline constexpr std::size_t kNoOffset = static_cast<std::size_t>(-1);
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The step that `byte` takes as the next byte of a well-formed sequence (Unicode 15, table 3-7).
// State 0 is "between characters"; kRefused says that no character continues so.
class Utf8State {
 public:
  enum class Step { complete, incomplete, refused };

  // After `refused` the state is between characters, and `byte` has not been taken unless it was
  // the first of its sequence.
  Step take(unsigned char byte) {
    if (pending_ == 0) return start(byte);
    if (byte < low_ || byte > high_) {
      pending_ = 0;
      return Step::refused;
    }
    low_ = 0x80;
    high_ = 0xBF;
    return --pending_ == 0 ? Step::complete : Step::incomplete;
  }
  bool between() const { return pending_ == 0; }

 private:
  Step start(unsigned char byte);

  int pending_ = 0;                         // bytes that the sequence still lacks
  unsigned char low_ = 0x80, high_ = 0xBF;  // what the next one may be
};

// Offset of the first byte that starts no well-formed character, kNoOffset if `text` is UTF-8.
std::size_t invalid_utf8_at(std::string_view text);

// The code point that starts at `text[at]`, which must be well-formed; advances `at` past it.
char32_t next_code_point(std::string_view text, std::size_t& at);
// Where the last character of non-empty, well-formed `text` starts.
std::size_t last_character_at(std::string_view text);

void append_utf8(char32_t code_point, std::string& out);

// The White_Space property: what Rust, Python's str.strip and Oniguruma's \s mean by white space
// (Python adds U+001C to U+001F, see strip_python in chat_text.h).
bool is_white_space(char32_t code_point);

// Lossy decoding, as Python's errors="replace" and Rust's from_utf8_lossy do it: each longest
// prefix of a character that cannot be completed becomes one U+FFFD.
std::string lossy_utf8(std::string_view bytes);

}  // namespace bolt
