// The syntax tree of a chat template. What it computes is jinja.cpp.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/jinja_value.h"

namespace bolt::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Argument {
  std::string name;  // empty: by position
  ExpressionPtr value;
};

struct Expression {
  enum class Kind {
    constant,
    name,
    list,       // kids; a tuple too
    dict,       // kids: key, value, key, value, ...
    attribute,  // kids[0].text
    item,       // kids[0][kids[1]]
    slice,      // kids[0][kids[1]:kids[2]:kids[3]], absent ones null
    call,       // kids[0](arguments)
    filter,     // kids[0] | text(arguments)
    test,       // kids[0] is text(arguments)
    unary,      // text: not, -, +
    binary,     // text: the operator; kids
    condition,  // kids[1] ? kids[0] : kids[2] (may be null)
  } kind;
  int line = 0;
  int depth = 1;  // of the tree below
  std::string text;
  Value constant;
  std::vector<ExpressionPtr> kids;
  std::vector<Argument> arguments;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Branch {
  ExpressionPtr condition;  // null: else
  Block body;
};

struct Statement {
  enum class Kind { data, print, if_, for_, set, set_block, macro, break_, continue_, group } kind;
  int line = 0;
  std::string text;                  // data; macro's name
  std::vector<std::string> targets;  // for, set: names; "ns.attribute" for one of a namespace
  ExpressionPtr value;               // print, set; for: what is walked
  ExpressionPtr filter;              // for: `if` behind it, or null
  std::vector<Branch> branches;      // if
  Block body, otherwise;             // for, set_block, macro, group; for: else
  std::vector<Argument> parameters;  // macro: defaults, or null
};

struct Program {
  Block body;
  std::set<std::string> names;       // every name that is read
  std::set<std::string> strings;     // every string constant
  std::set<std::string> attributes;  // every attribute read with a dot
};

// Throws Error(usage) naming the line and what is not understood: a filter, test or tag too.
Program parse(std::string_view source);

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);

}  // namespace bolt::jinja
