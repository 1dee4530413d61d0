#include "core/text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "core/text/jinja_lexer.h"

namespace bolt::jinja {
namespace {

using Kind = Expression::Kind;
constexpr int kNestingMax = 150;  // brackets and blocks
constexpr int kDepthMax = 500;    // long chains of one operator lean to the left

// Recursive descent in the order of Jinja2's own parser, so that precedences are the same.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Program run() {
    program_.body = block({});
    if (at_ < tokens_.size()) error(fmt::format("unexpected \"{}\"", peek_text()));
    return std::move(program_);
  }

 private:
  // --- tokens ---
  [[noreturn]] void error(const std::string& what) const {
    const int line = tokens_.empty() ? 1 : tokens_[std::min(at_, tokens_.size() - 1)].line;
    fail(fmt::format("cannot be read: line {}: {}", line, what));
  }
  bool is(Token::Kind kind) const { return at_ < tokens_.size() && tokens_[at_].kind == kind; }
  bool is(Token::Kind kind, std::string_view text) const {
    return is(kind) && tokens_[at_].text == text;
  }
  bool is_symbol(std::string_view text) const { return is(Token::Kind::symbol, text); }
  bool is_word(std::string_view text) const { return is(Token::Kind::name, text); }
  std::string_view peek_text() const {
    return at_ < tokens_.size() ? std::string_view(tokens_[at_].text) : "the end";
  }
  bool take_symbol(std::string_view text) { return is_symbol(text) && ++at_; }
  bool take_word(std::string_view text) { return is_word(text) && ++at_; }
  void need_symbol(std::string_view text) {
    if (!take_symbol(text)) error(fmt::format("expected \"{}\", found \"{}\"", text, peek_text()));
  }
  void need_word(std::string_view text) {
    if (!take_word(text)) error(fmt::format("expected \"{}\", found \"{}\"", text, peek_text()));
  }
  std::string need_name() {
    if (!is(Token::Kind::name)) error(fmt::format("expected a name, found \"{}\"", peek_text()));
    return tokens_[at_++].text;
  }
  void need_end(Token::Kind kind) {
    if (!is(kind)) error(fmt::format("unexpected \"{}\"", peek_text()));
    ++at_;
  }
  int line() const { return at_ < tokens_.size() ? tokens_[at_].line : 0; }

  // Hostile templates must not overflow the stack.
  struct Nesting {
    explicit Nesting(Parser& p) : parser(p) {
      if (++parser.depth_ > kNestingMax) parser.error("nested too deeply");
    }
    ~Nesting() { --parser.depth_; }
    Parser& parser;
  };

  ExpressionPtr make(Kind kind, std::string text = {}) const {
    auto out = std::make_unique<Expression>();
    out->kind = kind;
    out->line = line();
    out->text = std::move(text);
    return out;
  }
  ExpressionPtr make(Kind kind, std::string text, ExpressionPtr a,
                     ExpressionPtr b = nullptr) const {
    auto out = make(kind, std::move(text));
    out->depth = 1 + std::max(a->depth, b ? b->depth : 0);
    if (out->depth > kDepthMax) error("an expression that is too long");
    out->kids.push_back(std::move(a));
    if (b) out->kids.push_back(std::move(b));
    return out;
  }
  // Adds a kid (null: an absent one), or the arguments of a call, to one that is made.
  void adopt(Expression& out, ExpressionPtr kid) const {
    if (kid) deepen(out, *kid);
    out.kids.push_back(std::move(kid));
  }
  void adopt(Expression& out, std::vector<Argument> arguments) const {
    for (const Argument& argument : arguments) deepen(out, *argument.value);
    out.arguments = std::move(arguments);
  }
  void deepen(Expression& out, const Expression& kid) const {
    out.depth = std::max(out.depth, 1 + kid.depth);
    if (out.depth > kDepthMax) error("an expression that is too long");
  }
  ExpressionPtr constant(Value value) const {
    auto out = make(Kind::constant);
    out->constant = std::move(value);
    return out;
  }

  // --- statements ---
  // Up to, not past, a tag that starts with one of `ends`.
  Block block(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Block out;
    while (at_ < tokens_.size()) {
      auto statement = std::make_unique<Statement>();
      statement->line = line();
      if (is(Token::Kind::data)) {
        statement->kind = Statement::Kind::data;
        statement->text = tokens_[at_++].text;
      } else if (is(Token::Kind::print_begin)) {
        ++at_;
        statement->kind = Statement::Kind::print;
        statement->value = tuple();
        need_end(Token::Kind::print_end);
      } else {
        need_end(Token::Kind::block_begin);
        for (const std::string_view end : ends) {
          if (is_word(end)) {
            --at_;
            return out;
          }
        }
        tag(*statement);
      }
      out.push_back(std::move(statement));
    }
    if (ends.size() > 0) error(fmt::format("expected {{% {} %}}", *(ends.end() - 1)));
    return out;
  }
  void end_tag(std::string_view word) {
    need_end(Token::Kind::block_begin);
    need_word(word);
    need_end(Token::Kind::block_end);
  }

  void tag(Statement& out) {
    const std::string word = need_name();
    if (word == "if") {
      if_tag(out);
    } else if (word == "for") {
      for_tag(out);
    } else if (word == "set") {
      set_tag(out);
    } else if (word == "macro") {
      macro_tag(out);
    } else if (word == "break" || word == "continue") {
      out.kind = word == "break" ? Statement::Kind::break_ : Statement::Kind::continue_;
      if (loops_ == 0) error(word + " outside of a loop");
      need_end(Token::Kind::block_end);
    } else if (word == "generation") {  // marks the assistant's tokens for training
      need_end(Token::Kind::block_end);
      out.kind = Statement::Kind::group;
      out.body = block({"endgeneration"});
      end_tag("endgeneration");
    } else {
      --at_;
      error(fmt::format("the tag {{% {} %}} is not supported", word));
    }
  }

  void if_tag(Statement& out) {
    out.kind = Statement::Kind::if_;
    ExpressionPtr condition = tuple();
    while (true) {
      need_end(Token::Kind::block_end);
      Block body = block({"elif", "else", "endif"});
      out.branches.push_back({std::move(condition), std::move(body)});
      need_end(Token::Kind::block_begin);
      if (take_word("elif")) {
        condition = tuple();
      } else if (take_word("else")) {
        need_end(Token::Kind::block_end);
        out.branches.push_back({nullptr, block({"endif"})});
        return end_tag("endif");
      } else {
        need_word("endif");
        return need_end(Token::Kind::block_end);
      }
    }
  }

  void for_tag(Statement& out) {
    out.kind = Statement::Kind::for_;
    out.targets = targets(/*attributes=*/false);
    need_word("in");
    out.value = tuple(/*with_condition=*/false);
    if (take_word("if")) out.filter = expression();
    if (is_word("recursive")) error("recursive loops are not supported");
    need_end(Token::Kind::block_end);
    ++loops_;
    out.body = block({"else", "endfor"});
    --loops_;
    need_end(Token::Kind::block_begin);
    if (take_word("else")) {
      need_end(Token::Kind::block_end);
      out.otherwise = block({"endfor"});
      return end_tag("endfor");
    }
    need_word("endfor");
    need_end(Token::Kind::block_end);
  }

  void set_tag(Statement& out) {
    out.targets = targets(/*attributes=*/true);
    if (take_symbol("=")) {
      out.kind = Statement::Kind::set;
      out.value = tuple();
      return need_end(Token::Kind::block_end);
    }
    if (is_symbol("|")) error("filters on a set block are not supported");
    need_end(Token::Kind::block_end);
    out.kind = Statement::Kind::set_block;
    out.body = block({"endset"});
    end_tag("endset");
  }

  void macro_tag(Statement& out) {
    out.kind = Statement::Kind::macro;
    out.text = need_name();
    need_symbol("(");
    while (!take_symbol(")")) {
      if (!out.parameters.empty()) need_symbol(",");
      Argument parameter{need_name(), nullptr};
      if (take_symbol("=")) parameter.value = expression();
      out.parameters.push_back(std::move(parameter));
    }
    need_end(Token::Kind::block_end);
    const int loops = std::exchange(loops_, 0);
    out.body = block({"endmacro"});
    loops_ = loops;
    end_tag("endmacro");
  }

  std::vector<std::string> targets(bool attributes) {
    std::vector<std::string> out;
    const bool parenthesis = take_symbol("(");
    do {
      std::string name = need_name();
      if (attributes && take_symbol(".")) name += "." + need_name();
      out.push_back(std::move(name));
    } while (take_symbol(","));
    if (parenthesis) need_symbol(")");
    return out;
  }

  // --- expressions ---
  bool ends_tuple() const {
    return is(Token::Kind::print_end) || is(Token::Kind::block_end) || is_symbol(")") ||
           is_symbol("=") || is_word("if") || is_word("recursive");
  }
  ExpressionPtr tuple(bool with_condition = true) {
    const auto one = [&] { return with_condition ? expression() : or_(); };
    ExpressionPtr first = one();
    if (!is_symbol(",")) return first;
    ExpressionPtr out = make(Kind::list);
    adopt(*out, std::move(first));
    while (take_symbol(",") && !ends_tuple()) adopt(*out, one());
    return out;
  }

  ExpressionPtr expression() {
    const Nesting nesting(*this);
    ExpressionPtr out = or_();
    while (take_word("if")) {
      ExpressionPtr condition = or_();
      ExpressionPtr otherwise = take_word("else") ? expression() : nullptr;
      out = make(Kind::condition, {}, std::move(out), std::move(condition));
      adopt(*out, std::move(otherwise));
    }
    return out;
  }
  ExpressionPtr or_() {
    ExpressionPtr out = and_();
    while (take_word("or")) out = make(Kind::binary, "or", std::move(out), and_());
    return out;
  }
  ExpressionPtr and_() {
    ExpressionPtr out = not_();
    while (take_word("and")) out = make(Kind::binary, "and", std::move(out), not_());
    return out;
  }
  ExpressionPtr not_() {
    const Nesting nesting(*this);
    if (take_word("not")) return make(Kind::unary, "not", not_());
    return compare();
  }
  // a < b < c is (a < b) and (b < c), as in Python; b is a plain operand in real templates.
  ExpressionPtr compare() {
    ExpressionPtr out = sum();
    bool chained = false;
    while (true) {
      std::string op;
      for (const char* symbol : {"==", "!=", "<", "<=", ">", ">="}) {
        if (is_symbol(symbol)) op = symbol;
      }
      if (!op.empty()) {
        ++at_;
      } else if (is_word("in")) {
        ++at_;
        op = "in";
      } else if (is_word("not") && at_ + 1 < tokens_.size() &&
                 tokens_[at_ + 1].kind == Token::Kind::name && tokens_[at_ + 1].text == "in") {
        at_ += 2;
        op = "not in";
      } else {
        return out;
      }
      if (chained) error("chained comparisons are not supported");
      chained = true;
      out = make(Kind::binary, op, std::move(out), sum());
    }
  }
  ExpressionPtr sum() {
    ExpressionPtr out = concat();
    while (is_symbol("+") || is_symbol("-")) {
      const std::string op = tokens_[at_++].text;
      out = make(Kind::binary, op, std::move(out), concat());
    }
    return out;
  }
  ExpressionPtr concat() {
    ExpressionPtr out = product();
    while (take_symbol("~")) out = make(Kind::binary, "~", std::move(out), product());
    return out;
  }
  ExpressionPtr product() {
    ExpressionPtr out = unary();
    while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
      const std::string op = tokens_[at_++].text;
      out = make(Kind::binary, op, std::move(out), unary());
    }
    if (is_symbol("**")) error("the operator ** is not supported");
    return out;
  }
  ExpressionPtr unary(bool with_filter = true) {
    const Nesting nesting(*this);
    ExpressionPtr out;
    if (is_symbol("-") || is_symbol("+")) {
      const std::string op = tokens_[at_++].text;
      out = make(Kind::unary, op, unary(false));
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    return with_filter ? filters(std::move(out)) : std::move(out);
  }

  ExpressionPtr primary() {
    if (is(Token::Kind::string)) {
      std::string text;
      while (is(Token::Kind::string)) text += tokens_[at_++].text;
      program_.strings.insert(text);
      return constant(std::move(text));
    }
    if (is(Token::Kind::integer)) {
      const std::string digits = tokens_[at_++].text;
      std::int64_t i = 0;
      const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), i);
      if (problem != std::errc()) error("an integer that is too large");
      return constant(i);
    }
    if (is(Token::Kind::real)) return constant(std::strtod(tokens_[at_++].text.c_str(), nullptr));
    if (take_symbol("(")) {
      if (take_symbol(")")) return make(Kind::list);
      ExpressionPtr out = tuple();
      need_symbol(")");
      return out;
    }
    if (take_symbol("[")) {
      ExpressionPtr out = make(Kind::list);
      while (!take_symbol("]")) {
        if (!out->kids.empty()) {
          need_symbol(",");
          if (take_symbol("]")) break;
        }
        adopt(*out, expression());
      }
      return out;
    }
    if (take_symbol("{")) {
      ExpressionPtr out = make(Kind::dict);
      while (!take_symbol("}")) {
        if (!out->kids.empty()) {
          need_symbol(",");
          if (take_symbol("}")) break;
        }
        adopt(*out, expression());
        need_symbol(":");
        adopt(*out, expression());
      }
      return out;
    }
    std::string name = need_name();
    if (name == "true" || name == "True") return constant(true);
    if (name == "false" || name == "False") return constant(false);
    if (name == "none" || name == "None") return constant(None{});
    program_.names.insert(name);
    return make(Kind::name, std::move(name));
  }

  ExpressionPtr postfix(ExpressionPtr out) {
    int n = 0;
    while (true) {
      if (++n > kNestingMax) error("nested too deeply");
      if (take_symbol(".")) {
        std::string name = need_name();
        program_.attributes.insert(name);
        out = make(Kind::attribute, std::move(name), std::move(out));
      } else if (take_symbol("[")) {
        out = subscript(std::move(out));
      } else if (is_symbol("(")) {
        out = make(Kind::call, {}, std::move(out));
        adopt(*out, arguments());
      } else {
        return out;
      }
    }
  }
  ExpressionPtr subscript(ExpressionPtr base) {
    ExpressionPtr parts[3];
    int n_colons = 0;
    while (!is_symbol("]")) {
      if (take_symbol(":")) {
        if (++n_colons > 2) error("a slice has too many parts");
      } else if (parts[n_colons]) {
        error(fmt::format("expected \"]\", found \"{}\"", peek_text()));
      } else {
        parts[n_colons] = expression();
      }
    }
    need_symbol("]");
    ExpressionPtr out = make(n_colons > 0 ? Kind::slice : Kind::item, {}, std::move(base));
    if (n_colons == 0 && !parts[0]) error("an empty subscript");
    if (n_colons == 0 && parts[0]->kind == Kind::constant && parts[0]->constant.is_string()) {
      program_.attributes.insert(parts[0]->constant.string());
    }
    for (int i = 0; i < (n_colons > 0 ? 3 : 1); ++i) adopt(*out, std::move(parts[i]));
    return out;
  }
  std::vector<Argument> arguments() {
    need_symbol("(");
    std::vector<Argument> out;
    while (!take_symbol(")")) {
      if (!out.empty()) {
        need_symbol(",");
        if (take_symbol(")")) break;
      }
      if (is_symbol("*") || is_symbol("**")) error("unpacked arguments are not supported");
      Argument argument;
      if (is(Token::Kind::name) && at_ + 1 < tokens_.size() &&
          tokens_[at_ + 1].kind == Token::Kind::symbol && tokens_[at_ + 1].text == "=") {
        argument.name = tokens_[at_].text;
        at_ += 2;
      } else if (!out.empty() && !out.back().name.empty()) {
        error("an argument by position behind one by name");
      }
      argument.value = expression();
      out.push_back(std::move(argument));
    }
    return out;
  }

  ExpressionPtr filters(ExpressionPtr out) {
    int n = 0;
    while (true) {
      if (++n > kNestingMax) error("nested too deeply");
      if (take_symbol("|")) {
        const std::string name = need_name();
        if (!is_known_filter(name)) error(fmt::format("the filter {} is not supported", name));
        out = make(Kind::filter, name, std::move(out));
        if (is_symbol("(")) adopt(*out, arguments());
      } else if (take_word("is")) {
        const bool negated = take_word("not");
        const std::string name = need_name();
        if (!is_known_test(name)) error(fmt::format("the test {} is not supported", name));
        out = make(Kind::test, name, std::move(out));
        if (is_symbol("(")) {
          adopt(*out, arguments());
        } else if ((is(Token::Kind::name) || is(Token::Kind::string) || is(Token::Kind::integer) ||
                    is(Token::Kind::real) || is_symbol("[") || is_symbol("{")) &&
                   !is_word("else") && !is_word("or") && !is_word("and") && !is_word("if") &&
                   !is_word("in") && !is_word("not") && !is_word("is")) {
          std::vector<Argument> one;
          one.push_back({{}, postfix(primary())});
          adopt(*out, std::move(one));
        }
        if (negated) out = make(Kind::unary, "not", std::move(out));
      } else if (is_symbol("(")) {
        out = make(Kind::call, {}, std::move(out));
        adopt(*out, arguments());
      } else {
        return out;
      }
    }
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  Program program_;
};

}  // namespace

Program parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace bolt::jinja
