// A text is escaped character by character; what is not well-formed is escaped byte by byte.
#include "receipts/display.h"

#include <fmt/format.h>

#include "receipts/canonical.h"

namespace bolt::receipts {
namespace {

struct Range {
  unsigned first, last;
};

// Controls, and characters that reorder or hide text or end a line: Unicode's Cc, Zl, Zp, the
// bidirectional controls of UAX #9, zero-width and other invisible formats, tags, variation
// fillers.
constexpr Range kActive[] = {
    {0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},   {0x61c, 0x61c},
    {0x115f, 0x1160},   {0x17b4, 0x17b5},   {0x180b, 0x180f},   {0x200b, 0x200f}, {0x2028, 0x202e},
    {0x2060, 0x206f},   {0x3164, 0x3164},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0}, {0xfff0, 0xfffb},
    {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
};

bool is_active(unsigned code) {
  for (const Range& range : kActive) {
    if (code >= range.first && code <= range.last) return true;
  }
  return false;
}

}  // namespace

std::string inert(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::size_t good = first_bad_utf8(text);
    if (good == std::string_view::npos) good = text.size();
    for (std::size_t at = 0; at < good;) {
      const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
      const std::size_t n = byte(0) < 0x80 ? 1 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
      unsigned code = n == 1 ? byte(0) : byte(0) & (0xffu >> (n + 1));
      for (std::size_t i = 1; i < n; ++i) code = code << 6 | (byte(i) & 0x3fu);
      if (is_active(code)) {
        out += fmt::format("\\u{{{:x}}}", code);
      } else {
        out += text.substr(at, n);
      }
      at += n;
    }
    text.remove_prefix(good);
    if (!text.empty()) {
      out += fmt::format("\\x{{{:02x}}}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string short_hex(std::string_view hex, std::size_t digits) {
  return hex.empty() ? "none" : std::string(hex.substr(0, digits));
}

std::string counted(std::int64_t n, std::string_view one, std::string_view many) {
  if (n == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", n, one) : fmt::format("{} {}", n, many);
}

std::string short_time(long long ns) {
  const double x = static_cast<double>(ns);
  if (ns < 1000) return fmt::format("{} ns", ns);
  if (ns < 1000000) return fmt::format("{:.3g} us", x / 1e3);
  if (ns < 1000000000) return fmt::format("{:.3g} ms", x / 1e6);
  return fmt::format("{:.2f} s", x / 1e9);
}

}  // namespace bolt::receipts
