// The values a chat template computes with: Python's, as far as templates see them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/text/jinja_limits.h"

namespace bolt::jinja {

class Value;
using List = std::vector<Value>;
using Arguments = std::vector<std::pair<std::string, Value>>;  // by name; empty: by position

// Keys in the order in which they were first set, as Python's dict keeps them.
class Dict {
 public:
  const Value* find(std::string_view key) const;
  void set(std::string_view key, Value value);
  const std::vector<std::pair<std::string, Value>>& items() const { return items_; }

 private:
  std::vector<std::pair<std::string, Value>> items_;
};

struct Undefined {};
struct None {};
using Function = std::function<Value(const Arguments&)>;

// Strings, lists, dicts and functions are shared; nothing but an object, which is a namespace or
// the `loop` of a loop, is ever changed. A list or dict holds neither objects nor functions (which
// may hold objects) and nests at most kValueDepthMax deep: so there are no cycles, and every
// recursion over a value ends, its destruction too.
class Value {
 public:
  Value() = default;  // undefined
  Value(None) : data_(None{}) {}
  Value(bool b) : data_(b) {}
  Value(std::int64_t i) : data_(i) {}
  Value(double x) : data_(x) {}
  // Throw Error(input) for more than the rendering may build, and for what a list cannot hold.
  Value(std::string s);
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(List list);
  Value(Dict dict);
  Value(Function function) : data_(std::make_shared<Function>(std::move(function))) {}
  static Value object(Dict dict);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_string() const { return std::holds_alternative<Shared<std::string>>(data_); }
  bool is_list() const { return std::holds_alternative<Shared<List>>(data_); }
  bool is_dict() const { return std::holds_alternative<Shared<Dict>>(data_); }
  bool is_function() const { return std::holds_alternative<std::shared_ptr<Function>>(data_); }

  bool is_object() const { return is_dict() && std::get<Shared<Dict>>(data_)->is_object; }

  bool boolean() const { return std::get<bool>(data_); }
  const std::string& string() const { return std::get<Shared<std::string>>(data_)->value; }
  const List& list() const { return std::get<Shared<List>>(data_)->value; }
  const Dict& dict() const { return std::get<Shared<Dict>>(data_)->value; }
  const Function& function() const { return *std::get<std::shared_ptr<Function>>(data_); }
  Dict& object_dict() const { return std::get<Shared<Dict>>(data_)->value; }
  std::int64_t integer() const;  // of a bool or an integer
  double number() const;         // of any number

  bool truthy() const;
  const char* type_name() const;  // Python's

  int depth() const;                // 0 but for lists and dicts
  std::size_t input_bytes() const;  // about what it takes: of a value that comes in
  // Throws Error(input) for an object or a function, which no list, dict or object holds.
  const Value& storable() const;

 private:
  template <class T>
  struct Held {
    Held(T v, std::size_t n_bytes, int d, bool object)
        : charge(n_bytes), value(std::move(v)), depth(d), is_object(object) {}
    Charge charge;
    T value;
    int depth;
    bool is_object;
  };
  template <class T>
  using Shared = std::shared_ptr<Held<T>>;
  static Shared<Dict> hold(Dict dict, bool is_object);

  std::variant<Undefined, None, bool, std::int64_t, double, Shared<std::string>, Shared<List>,
               Shared<Dict>, std::shared_ptr<Function>>
      data_;
};

bool equal(const Value& a, const Value& b);
// Throws Error(usage) for values that Python does not order.
bool less(const Value& a, const Value& b);

// str(value): what {{ value }} prints. Undefined prints nothing.
std::string to_text(const Value& value);
// json.dumps(value, ensure_ascii=False): indent < 0 is one line with ", " and ": ".
std::string to_json(const Value& value, int indent = -1);
// A JSON text as Python's json.loads reads it. Throws Error(usage) that starts with `name`.
Value from_json(std::string_view json, const std::string& name);

// str.strip() and its halves: white space as Python has it, or the characters of `set` (ASCII).
std::string_view strip(std::string_view text, bool left, bool right, std::string_view set = {});

[[noreturn]] void fail(const std::string& what);  // Error(usage): the chat template ... what

}  // namespace bolt::jinja
