// Dimming is SGR 2; anything else that a model prints to a terminal is made inert.
#include "cmd/terminal_text.h"

#include <fmt/format.h>

#include "core/text/utf8.h"

namespace bolt {
namespace {

constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kDim = "\033[2m", kPlain = "\033[0m";

bool turns_text(char32_t c) { return (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069); }

}  // namespace

std::string inert(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7F) || (c >= 0xA0 && !turns_text(c))) {
      out += text.substr(begin, at - begin);
    } else if (c < 0x20 || c == 0x7F) {
      out += '^';
      out += static_cast<char>(c ^ 0x40);
    } else if (c < 0xA0) {
      out += "^[";
      out += static_cast<char>(c - 0x40);
    } else {
      out += fmt::format("<U+{:04X}>", static_cast<std::uint32_t>(c));
    }
  }
  return out;
}

TerminalText::TerminalText(bool terminal, bool color, bool thinking)
    : terminal_(terminal), dims_(color), thinking_(thinking) {}

std::string TerminalText::push(std::string_view piece) {
  if (piece.empty()) return {};
  mid_line_ = piece.back() != '\n';
  std::string shown = terminal_ ? inert(piece) : std::string(piece);
  if (!thinking_) return shown;
  std::string out;
  if (dims_ && !dimmed_) out += kDim;
  dimmed_ = dims_;
  // Where the tag ends, counted in bytes of this piece.
  const std::size_t n_before = tail_.size();
  tail_ += shown;
  const std::size_t at = tail_.find(kThinkEnd);
  if (at == std::string::npos) {
    if (tail_.size() >= kThinkEnd.size()) tail_.erase(0, tail_.size() - (kThinkEnd.size() - 1));
    return out + shown;
  }
  const std::size_t end = at + kThinkEnd.size() - n_before;
  thinking_ = false;
  out += shown.substr(0, end);
  if (dimmed_) out += kPlain;
  dimmed_ = false;
  return out + shown.substr(end);
}

std::string TerminalText::finish() {
  if (!dimmed_) return {};
  dimmed_ = false;
  return std::string(kPlain);
}

}  // namespace bolt
