#include "core/text/jinja.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_parser.h"
#include "core/text/utf8.h"

namespace bolt::jinja {
namespace {

constexpr int kCallsMax = 100;   // macros within macros
constexpr int kDepthMax = 1000;  // expressions and blocks within one another, macros' included

// The bytes of what the template is given.
std::size_t input_bytes(const Dict& variables) {
  std::size_t out = 0;
  for (const auto& [name, value] : variables.items()) out += name.size() + value.input_bytes();
  return out;
}

enum class Flow { next, break_, continue_ };

class Renderer {
 public:
  explicit Renderer(const Dict& variables) : limits_(input_bytes(variables)) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables.items()) scopes_[0].set(name, value);
    define_functions();
  }

  std::string run(const Block& body) {
    std::string out;
    block(body, out);
    return out;
  }

 private:
  // --- names ---
  void define_functions() {
    scopes_[0].set("raise_exception", Function([](const Arguments& a) -> Value {
                     fail("refuses the conversation: " + (a.empty() ? "" : to_text(a[0].second)));
                   }));
    scopes_[0].set("namespace", Function([](const Arguments& a) -> Value {
                     Dict out;
                     for (const auto& [name, value] : a) {
                       if (name.empty()) fail("gives namespace an argument without a name");
                       out.set(name, value);
                     }
                     return Value::object(std::move(out));
                   }));
    scopes_[0].set("range", Function([](const Arguments& a) -> Value {
                     std::int64_t parts[3] = {0, 0, 1};
                     if (a.empty() || a.size() > 3) fail("gives range no or too many arguments");
                     for (std::size_t i = 0; i < a.size(); ++i) {
                       if (!a[i].second.is_integer()) fail("gives range what is not an int");
                       parts[a.size() == 1 ? 1 : i] = a[i].second.integer();
                     }
                     const auto [begin, end, step] = parts;
                     if (step == 0) fail("gives range the step 0");
                     List out;
                     for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
                       if (out.size() == 100'000) fail("makes a range of more than 100000 items");
                       out.push_back(i);
                       if (__builtin_add_overflow(i, step, &i)) break;
                     }
                     return out;
                   }));
  }

  Value lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const Value* value = scope->find(name)) return *value;
    }
    return {};
  }

  void assign(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) return assign(targets[0], value);
    const Value walked = iterate(value);
    const List& items = walked.list();
    if (items.size() != targets.size()) {
      fail(fmt::format("unpacks {} values into {} names", items.size(), targets.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(targets[i], items[i]);
  }
  void assign(const std::string& target, const Value& value) {
    const std::size_t dot = target.find('.');
    if (dot == target.npos) return scopes_.back().set(target, value);
    const Value owner = lookup(target.substr(0, dot));
    if (!owner.is_object()) fail(fmt::format("sets {}, which is not in a namespace", target));
    owner.object_dict().set(target.substr(dot + 1), value.storable());
  }

  // --- statements ---
  void print(std::string_view text, std::string& out) {
    charge_text(text.size());
    out += text;
  }
  // Hostile templates must not overflow the stack.
  struct Nesting {
    explicit Nesting(int& depth) : depth_(depth) {
      if (++depth_ > kDepthMax) refuse("nests its blocks and macros too deeply");
    }
    ~Nesting() { --depth_; }
    int& depth_;
  };

  Flow block(const Block& body, std::string& out) {
    for (const auto& statement : body) {
      const Flow flow = run_one(*statement, out);
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  Flow run_one(const Statement& s, std::string& out) {
    using SK = Statement::Kind;
    const Nesting nesting(depth_);
    charge_work(1);
    switch (s.kind) {
      case SK::data:
        print(s.text, out);
        return Flow::next;
      case SK::print:
        print(to_text(eval(*s.value)), out);
        return Flow::next;
      case SK::if_:
        for (const Branch& branch : s.branches) {
          if (!branch.condition || eval(*branch.condition).truthy()) return block(branch.body, out);
        }
        return Flow::next;
      case SK::for_:
        loop(s, out);
        return Flow::next;
      case SK::set:
        assign(s.targets, eval(*s.value));
        return Flow::next;
      case SK::set_block: {
        std::string text;
        const Flow flow = block(s.body, text);
        assign(s.targets, text);
        return flow;
      }
      case SK::macro:
        scopes_.back().set(s.text, macro(s));
        return Flow::next;
      case SK::break_:
        return Flow::break_;
      case SK::continue_:
        return Flow::continue_;
      case SK::group:
        return block(s.body, out);
    }
    return Flow::next;
  }

  void loop(const Statement& s, std::string& out) {
    Value walked = iterate(eval(*s.value));
    if (s.filter) {
      List kept;
      for (const Value& item : walked.list()) {
        charge_work(2);
        scopes_.emplace_back();
        assign(s.targets, item);
        if (eval(*s.filter).truthy()) kept.push_back(item);
        scopes_.pop_back();
      }
      walked = std::move(kept);
    }
    const List& items = walked.list();
    const auto n = static_cast<std::int64_t>(items.size());
    const Value loop_facts = Value::object({});
    Dict& facts = loop_facts.object_dict();
    for (std::int64_t i = 0; i < n; ++i) {
      charge_work(12);
      facts.set("index", i + 1);
      facts.set("index0", i);
      facts.set("revindex", n - i);
      facts.set("revindex0", n - i - 1);
      facts.set("first", i == 0);
      facts.set("last", i == n - 1);
      facts.set("length", n);
      facts.set("previtem", i > 0 ? items[static_cast<std::size_t>(i - 1)] : Value());
      facts.set("nextitem", i + 1 < n ? items[static_cast<std::size_t>(i + 1)] : Value());
      scopes_.emplace_back();
      scopes_.back().set("loop", loop_facts);
      assign(s.targets, items[static_cast<std::size_t>(i)]);
      const Flow flow = block(s.body, out);
      scopes_.pop_back();
      if (flow == Flow::break_) break;
    }
    if (n == 0) block(s.otherwise, out);
  }

  // A macro sees the template's own names, not those of where it is called.
  Value macro(const Statement& s) {
    return Function([this, &s](const Arguments& arguments) -> Value {
      if (++n_calls_ > kCallsMax) refuse("calls macros within macros too deeply");
      charge_work(12);
      std::vector<Dict> outside(std::make_move_iterator(scopes_.begin() + 1),
                                std::make_move_iterator(scopes_.end()));
      scopes_.resize(1);
      Dict scope;
      std::size_t n_positional = 0;
      for (const auto& [name, value] : arguments) {
        if (name.empty() && n_positional == s.parameters.size()) {
          fail(fmt::format("gives {} too many arguments", s.text));
        }
        const std::string& target = name.empty() ? s.parameters[n_positional++].name : name;
        const auto known = std::find_if(s.parameters.begin(), s.parameters.end(),
                                        [&](const Argument& p) { return p.name == target; });
        if (known == s.parameters.end()) {
          fail(fmt::format("gives {} an argument {} that it does not take", s.text, target));
        }
        scope.set(target, value);
      }
      scopes_.push_back(std::move(scope));
      for (const Argument& parameter : s.parameters) {
        if (scopes_.back().find(parameter.name) != nullptr) continue;
        scopes_.back().set(parameter.name, parameter.value ? eval(*parameter.value) : Value());
      }
      std::string out;
      block(s.body, out);
      scopes_.resize(1);
      for (Dict& one : outside) scopes_.push_back(std::move(one));
      --n_calls_;
      return out;
    });
  }

  // --- expressions ---
  Value eval(const Expression& e) {
    using EK = Expression::Kind;
    const Nesting nesting(depth_);
    charge_work(1);
    switch (e.kind) {
      case EK::constant:
        return e.constant;
      case EK::name:
        return lookup(e.text);
      case EK::list: {
        List out;
        for (const auto& kid : e.kids) out.push_back(eval(*kid));
        return out;
      }
      case EK::dict: {
        Dict out;
        for (std::size_t i = 0; i < e.kids.size(); i += 2) {
          out.set(to_text(eval(*e.kids[i])), eval(*e.kids[i + 1]));
        }
        return out;
      }
      case EK::attribute:
        return attribute(eval(*e.kids[0]), e.text, e.line);
      case EK::item:
        return item(eval(*e.kids[0]), eval(*e.kids[1]), e.line);
      case EK::slice:
        return slice(e);
      case EK::call: {
        const Value function = eval(*e.kids[0]);
        if (!function.is_function()) {
          fail(fmt::format("calls {} in line {}", function.type_name(), e.line));
        }
        return function.function()(arguments(e));
      }
      case EK::filter:
        return apply_filter(e.text, eval(*e.kids[0]), arguments(e));
      case EK::test:
        return apply_test(e.text, eval(*e.kids[0]), arguments(e));
      case EK::unary:
        return unary(e.text, eval(*e.kids[0]), e.line);
      case EK::binary:
        return binary(e);
      case EK::condition:
        if (eval(*e.kids[1]).truthy()) return eval(*e.kids[0]);
        return e.kids[2] ? eval(*e.kids[2]) : Value();
    }
    return {};
  }

  Arguments arguments(const Expression& e) {
    Arguments out;
    for (const Argument& argument : e.arguments) {
      out.emplace_back(argument.name, eval(*argument.value));
    }
    return out;
  }

  // Jinja's order: a.b asks for Python's attribute first, a["b"] for the item first.
  static Value attribute(const Value& value, const std::string& name, int line) {
    if (value.is_undefined()) {
      fail(fmt::format("reads .{} of an undefined value in line {}", name, line));
    }
    bool found = false;
    Value out = method(value, name, found);
    return found ? out : member(value, name);
  }
  static Value item(const Value& value, const Value& key, int line) {
    if (value.is_undefined()) {
      fail(fmt::format("reads an item of an undefined value in line {}", line));
    }
    if (value.is_dict() && key.is_string()) {
      if (const Value* found = value.dict().find(key.string())) return *found;
    }
    if (key.is_string()) {
      bool found = false;
      return method(value, key.string(), found);
    }
    if (!key.is_integer() || (!value.is_list() && !value.is_string())) return {};
    const std::int64_t n = length(value);
    std::int64_t i = key.integer();
    if (i < 0) i += n;
    if (i < 0 || i >= n) return {};
    if (value.is_string()) return characters(value.string(), i, 1);
    return value.list()[static_cast<std::size_t>(i)];
  }

  Value slice(const Expression& e) {
    const Value value = eval(*e.kids[0]);
    if (!value.is_list() && !value.is_string()) {
      fail(fmt::format("slices {} in line {}", value.type_name(), e.line));
    }
    const std::int64_t n = length(value);
    const auto part = [&](std::size_t kid, std::int64_t otherwise) {
      if (!e.kids[kid]) return otherwise;
      const Value bound = eval(*e.kids[kid]);
      if (bound.is_none()) return otherwise;
      if (!bound.is_integer()) fail(fmt::format("slices at {}", bound.type_name()));
      return bound.integer();
    };
    const std::int64_t step = part(3, 1);
    if (step == 0) fail("slices with the step 0");
    // Python clamps both ends to what the direction can reach.
    const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    const auto clamp = [&](std::int64_t i) { return std::clamp(i < 0 ? i + n : i, low, high); };
    const bool has_begin = e.kids[1] && !eval(*e.kids[1]).is_none();
    const bool has_end = e.kids[2] && !eval(*e.kids[2]).is_none();
    const std::int64_t begin = has_begin ? clamp(part(1, 0)) : (step > 0 ? low : high);
    const std::int64_t end = has_end ? clamp(part(2, 0)) : (step > 0 ? high : low);
    if (value.is_string() && step == 1) {
      return characters(value.string(), begin, std::max<std::int64_t>(end - begin, 0));
    }
    const Value items = iterate(value);
    List out;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
      out.push_back(items.list()[static_cast<std::size_t>(i)]);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    if (value.is_list()) return out;
    std::string text;
    for (const Value& character : out) text += character.string();
    return text;
  }

  static Value unary(const std::string& op, const Value& value, int line) {
    if (op == "not") return !value.truthy();
    if (!value.is_number()) fail(fmt::format("negates {}", value.type_name()));
    if (op == "+") return value;
    if (value.is_float()) return -value.number();
    return arithmetic("-", std::int64_t{0}, value, line);
  }

  static std::string joined(std::string left, std::string_view right) {
    need_room(left.size() + right.size());
    return left += right;
  }

  Value binary(const Expression& e) {
    const std::string& op = e.text;
    const Value left = eval(*e.kids[0]);
    if (op == "and") return left.truthy() ? eval(*e.kids[1]) : left;
    if (op == "or") return left.truthy() ? left : eval(*e.kids[1]);
    const Value right = eval(*e.kids[1]);
    if (op == "~") {
      return joined(to_text(left), to_text(right));
    }
    if (op == "==") return equal(left, right);
    if (op == "!=") return !equal(left, right);
    if (op == "<") return less(left, right);
    if (op == ">") return less(right, left);
    if (op == "<=") return !less(right, left);
    if (op == ">=") return !less(left, right);
    if (op == "in") return contains(right, left);
    if (op == "not in") return !contains(right, left);
    if (op == "+" && left.is_string() && right.is_string()) {
      return joined(left.string(), right.string());
    }
    if (op == "+" && left.is_list() && right.is_list()) {
      need_room((left.list().size() + right.list().size()) * sizeof(Value));
      List out = left.list();
      out.insert(out.end(), right.list().begin(), right.list().end());
      return out;
    }
    return arithmetic(op, left, right, e.line);
  }

  static Value arithmetic(const std::string& op, const Value& left, const Value& right, int line) {
    if (!left.is_number() || !right.is_number() || left.is_float() || right.is_float() ||
        op == "/") {
      fail(fmt::format("computes {} {} {} in line {}, which is not supported", left.type_name(), op,
                       right.type_name(), line));
    }
    const std::int64_t a = left.integer(), b = right.integer();
    std::int64_t out = 0;
    bool overflow = false;
    if (op == "+") overflow = __builtin_add_overflow(a, b, &out);
    if (op == "-") overflow = __builtin_sub_overflow(a, b, &out);
    if (op == "*") overflow = __builtin_mul_overflow(a, b, &out);
    if (op == "//" || op == "%") {
      if (b == 0) fail(fmt::format("divides by zero in line {}", line));
      if (b == -1) {
        overflow = op == "//" && a == std::numeric_limits<std::int64_t>::min();
        out = op == "//" && !overflow ? -a : 0;
      } else {  // Python rounds down
        const bool adjust = a % b != 0 && (a < 0) != (b < 0);
        out = op == "//" ? a / b - (adjust ? 1 : 0) : a % b + (adjust ? b : 0);
      }
    }
    if (overflow) fail(fmt::format("overflows an integer in line {}", line));
    return out;
  }

  Limits limits_;             // before all values, which they outlive
  std::vector<Dict> scopes_;  // the template's own names first
  int n_calls_ = 0, depth_ = 0;
};

}  // namespace

struct Template::State {
  Program program;
};

Template::Template(std::string_view source) : state_(std::make_unique<State>()) {
  state_->program = parse(source);
}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

bool Template::reads(std::string_view name) const {
  return state_->program.names.contains(std::string(name));
}
bool Template::has_string(std::string_view text) const {
  return state_->program.strings.contains(std::string(text));
}
bool Template::has_attribute(std::string_view name) const {
  return state_->program.attributes.contains(std::string(name));
}

std::string Template::render(const Dict& variables) const {
  return Renderer(variables).run(state_->program.body);
}

}  // namespace bolt::jinja
