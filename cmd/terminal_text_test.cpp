// What a terminal gets: inert control characters, thinking dimmed up to its closing tag.
#include "cmd/terminal_text.h"

#include <doctest/doctest.h>

namespace bolt {
namespace {

std::string shown(TerminalText text, const std::string& reply, std::size_t piece) {
  std::string out;
  for (std::size_t at = 0; at < reply.size(); at += piece)
    out += text.push(reply.substr(at, piece));
  return out + text.finish();
}

}  // namespace

TEST_CASE("terminal text: control characters and overrides are shown, not obeyed") {
  CHECK(inert("a\tb\nc") == "a\tb\nc");
  CHECK(inert("\033[31mred\a\r") == "^[[31mred^G^M");
  CHECK(inert("\x7F") == "^?");
  CHECK(inert("\xC2\x9B"
              "2J") == "^[[2J");  // U+009B, a one-character CSI
  CHECK(inert("x\xE2\x80\xAEy") == "x<U+202E>y");
  CHECK(inert("grün 你好 😀") == "grün 你好 😀");
}

TEST_CASE("terminal text: thinking is dimmed up to its tag, however the pieces fall") {
  const std::string reply = "hm < </think </think>answer</think>";
  for (std::size_t piece = 1; piece <= reply.size(); ++piece) {
    CHECK(shown(TerminalText(true, true, true), reply, piece) ==
          "\033[2mhm < </think </think>\033[0manswer</think>");
  }
  CHECK(shown(TerminalText(true, true, true), "never done", 3) == "\033[2mnever done\033[0m");
  CHECK(shown(TerminalText(true, false, true), reply, 4) == reply);
  CHECK(shown(TerminalText(true, true, false), reply, 4) == reply);
  CHECK(shown(TerminalText(false, false, true), "\033[31m\r", 2) == "\033[31m\r");
}

}  // namespace bolt
