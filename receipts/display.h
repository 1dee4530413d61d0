// Texts from receipts made safe for a terminal, and the short forms that answers print.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bolt::receipts {

// Control, bidirectional and invisible characters become \u{202e}, bytes that are not UTF-8 \x{ff};
// LF and TAB too. What comes out moves no cursor and reorders nothing.
std::string inert(std::string_view text);

// The first `digits` of a hex digest; "none" for an empty one.
std::string short_hex(std::string_view hex, std::size_t digits = 8);

// "1 pass", "3 passes"; `many` is `one` with an s if left out.
std::string counted(std::int64_t n, std::string_view one, std::string_view many = {});

// 1234567890 ns as 1.23 s, 12.3 ms and so on.
std::string short_time(long long ns);

// What a line of an answer says, for colouring by the caller.
enum class Tone { plain, good, bad, dim };
struct Line {
  std::string text;
  Tone tone = Tone::plain;
};

}  // namespace bolt::receipts
