#include "core/text/utf8.h"

#include <simdjson.h>

namespace bolt {

Utf8State::Step Utf8State::start(unsigned char byte) {
  low_ = 0x80;
  high_ = 0xBF;
  if (byte < 0x80) return Step::complete;
  if (byte < 0xC2 || byte > 0xF4) return Step::refused;  // continuation, overlong, past U+10FFFF
  if (byte < 0xE0) {
    pending_ = 1;
  } else if (byte < 0xF0) {
    pending_ = 2;
    if (byte == 0xE0) low_ = 0xA0;   // else overlong
    if (byte == 0xED) high_ = 0x9F;  // else a surrogate
  } else {
    pending_ = 3;
    if (byte == 0xF0) low_ = 0x90;   // else overlong
    if (byte == 0xF4) high_ = 0x8F;  // else past U+10FFFF
  }
  return Step::incomplete;
}

std::size_t invalid_utf8_at(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return kNoOffset;
  Utf8State state;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (state.between()) start = i;
    if (state.take(static_cast<unsigned char>(text[i])) == Utf8State::Step::refused) return start;
  }
  return state.between() ? kNoOffset : start;
}

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return text[at++];
  const int n_more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
  char32_t code = first & (0x3Fu >> n_more);
  for (int k = 1; k <= n_more; ++k) code = (code << 6) | (byte(at + k) & 0x3Fu);
  at += static_cast<std::size_t>(n_more) + 1;
  return code;
}

std::size_t last_character_at(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u) --at;
  return at;
}

void append_utf8(char32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

bool is_white_space(char32_t code) {
  return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8State state;
  std::size_t start = 0;  // of the character being read
  for (std::size_t i = 0; i < bytes.size();) {
    if (state.between()) start = i;
    const bool first = state.between();
    const Utf8State::Step step = state.take(static_cast<unsigned char>(bytes[i]));
    if (step == Utf8State::Step::refused) {
      out += kReplacement;
      if (first) ++i;
      continue;
    }
    ++i;
    if (step == Utf8State::Step::complete) out += bytes.substr(start, i - start);
  }
  if (!state.between()) out += kReplacement;
  return out;
}

}  // namespace bolt
