// A Jinja template's source, cut into text and the tokens of its tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bolt::jinja {

struct Token {
  enum class Kind {
    data,         // text between tags, white space control applied
    print_begin,  // {{
    print_end,
    block_begin,  // {%
    block_end,
    name,
    string,  // unescaped
    integer,
    real,
    symbol,  // an operator or a bracket
  } kind;
  std::string text;
  int line = 0;
};

// Throws Error(usage) for a source that is too long, no UTF-8, or has a NUL, which no text has.
void check_source(std::string_view source);

// As Jinja2 with trim_blocks and lstrip_blocks, which is how transformers renders templates.
// Throws Error(usage) naming the line, and as check_source does.
std::vector<Token> tokenize(std::string_view source);

}  // namespace bolt::jinja
