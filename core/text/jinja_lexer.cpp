#include "core/text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text/jinja_value.h"
#include "core/text/utf8.h"

namespace bolt::jinja {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (std::size_t i = 0; i < source.size(); ++i) {  // \r\n and \r are line ends too
      if (source[i] != '\r') {
        text_ += source[i];
      } else if (i + 1 == source.size() || source[i + 1] != '\n') {
        text_ += '\n';
      }
    }
    if (text_.ends_with('\n')) text_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t open = find_open();
      data(open);
      if (open == text_.size()) break;
      const char kind = text_[open + 1];
      at_ = open + 2;
      if (at_ < text_.size() && (text_[at_] == '-' || (text_[at_] == '+' && kind != '{'))) ++at_;
      if (kind == '#') {
        comment();
      } else {
        tag(kind);
      }
    }
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& what) const {
    fail(fmt::format("cannot be read: line {}: {}", line(), what));
  }
  int line() const {
    const std::size_t end = std::min(at_, text_.size());
    return 1 + static_cast<int>(std::count(text_.begin(),
                                           text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
  }
  void add(Token::Kind kind, std::string text) {
    // Lines are counted on from the token before, so that long templates stay linear.
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
    counted_ = at_;
    tokens_.push_back({kind, std::move(text), line_});
  }

  std::size_t find_open() const {
    for (std::size_t i = at_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) {
        return i;
      }
    }
    return text_.size();
  }

  // The text from at_ to `open`, as the tags on both sides leave it.
  void data(std::size_t open) {
    std::string_view piece = std::string_view(text_).substr(at_, open - at_);
    if (strip_next_) {
      piece = strip(piece, /*left=*/true, /*right=*/false);
    } else if (trim_newline_ && piece.starts_with('\n')) {
      piece.remove_prefix(1);
    }
    const std::size_t begin = open - piece.size();
    if (open < text_.size()) {
      const char sign = open + 2 < text_.size() ? text_[open + 2] : ' ';
      if (sign == '-') {
        piece = strip(piece, /*left=*/false, /*right=*/true);
      } else if (sign != '+' && text_[open + 1] != '{') {
        // lstrip_blocks: blanks between the line's start and a block or comment.
        std::size_t end = piece.size();
        while (end > 0 && (piece[end - 1] == ' ' || piece[end - 1] == '\t')) --end;
        const std::size_t start = begin + end;
        if (start == 0 || text_[start - 1] == '\n') piece = piece.substr(0, end);
      }
    }
    strip_next_ = trim_newline_ = false;
    if (!piece.empty()) add(Token::Kind::data, std::string(piece));
    at_ = open;
  }

  void comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == text_.npos) error("a comment does not end");
    after_tag(end > at_ ? text_[end - 1] : ' ', /*block=*/true);
    at_ = end + 2;
  }

  void after_tag(char sign, bool block) {
    strip_next_ = sign == '-';
    trim_newline_ = block && sign != '+';
  }

  void tag(char kind) {
    const bool block = kind == '%';
    const std::string_view close = block ? "%}" : "}}";
    add(block ? Token::Kind::block_begin : Token::Kind::print_begin, {});
    std::string open_brackets;
    while (true) {
      while (at_ < text_.size() &&
             strip(std::string_view(text_).substr(at_, 1), true, true).empty()) {
        ++at_;
      }
      const std::string_view rest = std::string_view(text_).substr(at_);
      if (rest.empty()) error("a tag does not end");
      if (open_brackets.empty()) {
        const bool sign = rest[0] == '-' || (block && rest[0] == '+');
        if (rest.substr(sign ? 1 : 0).starts_with(close)) {
          after_tag(sign ? rest[0] : ' ', block);
          at_ += close.size() + (sign ? 1 : 0);
          add(block ? Token::Kind::block_end : Token::Kind::print_end, {});
          return;
        }
      }
      token(rest, open_brackets);
    }
  }

  void token(std::string_view rest, std::string& open_brackets) {
    const char c = rest[0];
    if (is_name_start(c)) {
      std::size_t n = 1;
      while (n < rest.size() && (is_name_start(rest[n]) || is_digit(rest[n]))) ++n;
      at_ += n;
      add(Token::Kind::name, std::string(rest.substr(0, n)));
    } else if (is_digit(c)) {
      number(rest);
    } else if (c == '"' || c == '\'') {
      string(rest);
    } else {
      constexpr std::string_view kLong[] = {"==", "!=", ">=", "<=", "//", "**"};
      std::size_t n = 1;
      for (const std::string_view symbol : kLong) {
        if (rest.starts_with(symbol)) n = 2;
      }
      if (n == 1 && std::string_view("+-*/%~<>=.:|,()[]{}").find(c) == std::string_view::npos) {
        error("a character that is no part of an expression");
      }
      if (c == '(' || c == '[' || c == '{') open_brackets += c;
      if (c == ')' || c == ']' || c == '}') {
        const char opener = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (!open_brackets.ends_with(opener)) error("a bracket that was not opened");
        open_brackets.pop_back();
      }
      at_ += n;
      add(Token::Kind::symbol, std::string(rest.substr(0, n)));
    }
  }

  void number(std::string_view rest) {
    std::size_t n = 0;
    while (n < rest.size() && is_digit(rest[n])) ++n;
    bool real = false;
    if (n + 1 < rest.size() && rest[n] == '.' && is_digit(rest[n + 1])) {
      real = true;
      ++n;
      while (n < rest.size() && is_digit(rest[n])) ++n;
    }
    if (n < rest.size() && (rest[n] == 'e' || rest[n] == 'E')) {
      const bool sign = n + 1 < rest.size() && (rest[n + 1] == '+' || rest[n + 1] == '-');
      std::size_t end = n + 1 + (sign ? 1 : 0);
      const std::size_t digits = end;
      while (end < rest.size() && is_digit(rest[end])) ++end;
      if (end > digits) {
        real = true;
        n = end;
      }
    }
    if (n < rest.size() && is_name_start(rest[n])) error("a number of a form bolt does not read");
    at_ += n;
    add(real ? Token::Kind::real : Token::Kind::integer, std::string(rest.substr(0, n)));
  }

  // Python's escapes; an unknown one keeps its backslash.
  void string(std::string_view rest) {
    const char quote = rest[0];
    std::string out;
    std::size_t i = 1;
    const auto hex = [&](std::size_t digits) {
      char32_t code = 0;
      for (std::size_t k = 1; k <= digits; ++k) {
        const char c = i + k < rest.size() ? rest[i + k] : ' ';
        const std::size_t digit = std::string_view("0123456789abcdefABCDEF").find(c);
        if (digit == std::string_view::npos) error("a broken escape in a string");
        code = code * 16 + static_cast<char32_t>(digit < 16 ? digit : digit - 6);
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) error("an escape of no character");
      i += digits;
      return code;
    };
    for (; i < rest.size() && rest[i] != quote; ++i) {
      if (rest[i] != '\\' || i + 1 == rest.size()) {
        out += rest[i];
        continue;
      }
      ++i;
      constexpr std::string_view kEscapes = "\\'\"abfnrtv", kMeant = "\\'\"\a\b\f\n\r\t\v";
      const std::size_t known = kEscapes.find(rest[i]);
      if (known != kEscapes.npos) {
        out += kMeant[known];
      } else if (rest[i] == 'x') {
        append_utf8(hex(2), out);
      } else if (rest[i] == 'u') {
        append_utf8(hex(4), out);
      } else if (rest[i] == 'U') {
        append_utf8(hex(8), out);
      } else if (rest[i] >= '0' && rest[i] <= '7') {
        char32_t code = 0;
        std::size_t digits = 0;
        for (; digits < 3 && i + digits < rest.size() && rest[i + digits] >= '0' &&
               rest[i + digits] <= '7';
             ++digits) {
          code = code * 8 + static_cast<char32_t>(rest[i + digits] - '0');
        }
        append_utf8(code, out);
        i += digits - 1;
      } else if (rest[i] != '\n') {
        out += '\\';
        out += rest[i];
      }
    }
    if (i >= rest.size()) error("a string does not end");
    at_ += i + 1;
    add(Token::Kind::string, std::move(out));
  }

  std::string text_;
  std::size_t at_ = 0;
  bool strip_next_ = false;    // the tag before ended in -
  bool trim_newline_ = false;  // it was a block or a comment
  int line_ = 1;
  std::size_t counted_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

void check_source(std::string_view source) {
  constexpr std::size_t kSourceBytesMax = 1u << 20;  // known ones have 1 to 20 KiB
  if (source.size() > kSourceBytesMax) {
    fail(fmt::format("cannot be read: {} bytes, at most {} are read", source.size(),
                     kSourceBytesMax));
  }
  const std::size_t bad = invalid_utf8_at(source);
  if (bad != kNoOffset) {
    fail(fmt::format("cannot be read: byte {}, 0x{:02X}, is not UTF-8", bad,
                     static_cast<unsigned char>(source[bad])));
  }
  const std::size_t nul = source.find('\0');
  if (nul != source.npos) fail(fmt::format("cannot be read: byte {} is NUL", nul));
}

std::vector<Token> tokenize(std::string_view source) {
  check_source(source);
  return Lexer(source).run();
}

}  // namespace bolt::jinja
