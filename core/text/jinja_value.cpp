#include "core/text/jinja_value.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/text/utf8.h"

namespace bolt::jinja {
namespace {

// White_Space and the four separators U+001C to U+001F.
bool is_python_space(char32_t code) {
  return is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

std::string float_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  std::string out = fmt::format("{}", x);
  if (out.find_first_not_of("-0123456789") == out.npos) out += ".0";
  return out;
}

// repr() of a string: what lists and dicts print.
std::string python_quoted(std::string_view text) {
  charge_work(text.size() / 8);
  const bool use_double = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t code = next_code_point(text, at);
    if (code == '\\' || code == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (code < 0x20 || (code >= 0x7F && code <= 0xA0) || code == 0xAD) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(code));
    } else if (is_white_space(code) && code != ' ') {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(code));
    } else {
      out += text.substr(start, at - start);
    }
  }
  return out + quote;
}

void append_text(const Value& value, std::string& out);

void append_repr(const Value& value, std::string& out) {
  if (!value.is_string()) return append_text(value, out);
  out += python_quoted(value.string());
}

void append_text(const Value& value, std::string& out) {
  charge_work(1);
  need_room(out.size());
  if (value.is_undefined()) return;
  if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.boolean() ? "True" : "False";
  } else if (value.is_integer()) {
    out += std::to_string(value.integer());
  } else if (value.is_float()) {
    out += float_text(value.number());
  } else if (value.is_string()) {
    charge_work(value.string().size() / 64);
    out += value.string();
  } else if (value.is_list()) {
    out += '[';
    bool first = true;
    for (const Value& item : value.list()) {
      if (!std::exchange(first, false)) out += ", ";
      append_repr(item, out);
    }
    out += ']';
  } else if (value.is_dict()) {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.dict().items()) {
      if (!std::exchange(first, false)) out += ", ";
      out += python_quoted(key) + ": ";
      append_repr(item, out);
    }
    out += '}';
  } else {
    fail("prints a function");
  }
}

void append_json_string(std::string_view text, std::string& out) {
  charge_work(text.size() / 16);
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append_json(const Value& value, int indent, int level, std::string& out) {
  charge_work(1);
  need_room(out.size());
  const auto separate = [&](bool first, int depth) {
    if (!first) out += indent < 0 ? ", " : ",";
    if (indent >= 0) out += "\n" + std::string(static_cast<std::size_t>(indent * depth), ' ');
  };
  if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.boolean() ? "true" : "false";
  } else if (value.is_integer()) {
    out += std::to_string(value.integer());
  } else if (value.is_float()) {
    const double x = value.number();
    out += std::isnan(x)   ? "NaN"
           : std::isinf(x) ? (x < 0 ? "-Infinity" : "Infinity")
                           : float_text(x);
  } else if (value.is_string()) {
    append_json_string(value.string(), out);
  } else if (value.is_list()) {
    out += '[';
    bool first = true;
    for (const Value& item : value.list()) {
      separate(first, level + 1);
      append_json(item, indent, level + 1, out);
      first = false;
    }
    if (!first && indent >= 0)
      out += "\n" + std::string(static_cast<std::size_t>(indent * level), ' ');
    out += ']';
  } else if (value.is_dict()) {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.dict().items()) {
      separate(first, level + 1);
      append_json_string(key, out);
      out += ": ";
      append_json(item, indent, level + 1, out);
      first = false;
    }
    if (!first && indent >= 0)
      out += "\n" + std::string(static_cast<std::size_t>(indent * level), ' ');
    out += '}';
  } else {
    fail(fmt::format("writes {} as JSON", value.type_name()));
  }
}

Value from_element(simdjson::dom::element element, const std::string& name, int depth) {
  using simdjson::dom::element_type;
  if (depth > kInputDepthMax) {
    throw Error(Exit::usage,
                fmt::format("{}: nested more than {} levels deep", name, kInputDepthMax));
  }
  switch (element.type()) {
    case element_type::NULL_VALUE:
      return None{};
    case element_type::BOOL:
      return bool(element);
    case element_type::INT64:
      return std::int64_t(element);
    case element_type::UINT64:
      throw Error(Exit::usage, fmt::format("{}: {} is past the largest integer, 2^63 - 1", name,
                                           std::uint64_t(element)));
    case element_type::DOUBLE:
      return double(element);
    case element_type::STRING:
      return std::string_view(element);
    case element_type::ARRAY: {
      List list;
      for (const simdjson::dom::element item : simdjson::dom::array(element)) {
        list.push_back(from_element(item, name, depth + 1));
      }
      return list;
    }
    case element_type::OBJECT: {
      Dict dict;
      for (const simdjson::dom::key_value_pair field : simdjson::dom::object(element)) {
        dict.set(field.key, from_element(field.value, name, depth + 1));
      }
      return dict;
    }
  }
  return {};
}

}  // namespace

void fail(const std::string& what) {
  throw Error(Exit::usage, "the package's chat template " + what);
}

const Value* Dict::find(std::string_view key) const {
  charge_work(items_.size() / 16);
  for (const auto& item : items_) {
    if (item.first == key) return &item.second;
  }
  return nullptr;
}

void Dict::set(std::string_view key, Value value) {
  charge_work(items_.size() / 16);
  for (auto& item : items_) {
    if (item.first == key) {
      item.second = std::move(value);
      return;
    }
  }
  items_.emplace_back(std::string(key), std::move(value));
}

namespace {

// Of a shared value beyond its elements: the counts, the sizes and the heap's own.
constexpr std::size_t kHeldBytes = 96;

}  // namespace

Value::Value(std::string s) {
  const std::size_t n_bytes = kHeldBytes + s.size();
  data_ = std::make_shared<Held<std::string>>(std::move(s), n_bytes, 0, false);
}

Value::Value(List list) {
  int depth = 1;
  for (const Value& item : list) depth = std::max(depth, 1 + item.storable().depth());
  if (depth > kValueDepthMax) {
    refuse(fmt::format("builds more than {} lists within one another", kValueDepthMax));
  }
  const std::size_t n_bytes = kHeldBytes + list.size() * sizeof(Value);
  data_ = std::make_shared<Held<List>>(std::move(list), n_bytes, depth, false);
}

Value::Value(Dict dict) : data_(hold(std::move(dict), /*is_object=*/false)) {}

Value Value::object(Dict dict) {
  Value out;
  out.data_ = hold(std::move(dict), /*is_object=*/true);
  return out;
}

Value::Shared<Dict> Value::hold(Dict dict, bool is_object) {
  int depth = 1;
  std::size_t n_bytes = kHeldBytes;
  for (const auto& [key, item] : dict.items()) {
    depth = std::max(depth, 1 + item.storable().depth());
    n_bytes += sizeof(Value) + sizeof(std::string) + key.size();
  }
  if (depth > kValueDepthMax) {
    refuse(fmt::format("builds more than {} dicts within one another", kValueDepthMax));
  }
  return std::make_shared<Held<Dict>>(std::move(dict), n_bytes, depth, is_object);
}

int Value::depth() const {
  if (is_list()) return std::get<Shared<List>>(data_)->depth;
  return is_dict() ? std::get<Shared<Dict>>(data_)->depth : 0;
}

const Value& Value::storable() const {
  if (is_object()) refuse("stores a namespace or a loop in another value, which is not supported");
  if (is_function()) refuse("stores a function in another value, which is not supported");
  return *this;
}

std::size_t Value::input_bytes() const {
  std::size_t out = 64;
  if (is_string()) return out + string().size();
  if (is_list()) {
    for (const Value& item : list()) out += item.input_bytes();
  }
  if (is_dict()) {
    for (const auto& [key, item] : dict().items()) out += key.size() + item.input_bytes();
  }
  return out;
}

std::int64_t Value::integer() const {
  return is_bool() ? std::int64_t{boolean()} : std::get<std::int64_t>(data_);
}

double Value::number() const {
  return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_float()) return number() != 0.0;
  if (is_number()) return integer() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return !dict().items().empty();
  return true;
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {
      "an undefined value", "None", "a bool", "an int", "a float", "a str", "a list", "a dict",
      "a function"};
  return kNames[data_.index()];
}

bool equal(const Value& a, const Value& b) {
  charge_work(1);  // shared values may be met many times over
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) {
    charge_work(std::min(a.string().size(), b.string().size()) / 64);
    return a.string() == b.string();
  }
  if (a.is_list() && b.is_list()) {
    if (a.list().size() != b.list().size()) return false;
    for (std::size_t i = 0; i < a.list().size(); ++i) {
      if (!equal(a.list()[i], b.list()[i])) return false;
    }
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().items().size() != b.dict().items().size()) return false;
    for (const auto& [key, value] : a.dict().items()) {
      const Value* other = b.dict().find(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() < b.integer();
    return a.number() < b.number();
  }
  // Bytes of UTF-8 sort as code points do.
  if (a.is_string() && b.is_string()) {
    charge_work(std::min(a.string().size(), b.string().size()) / 64);
    return a.string() < b.string();
  }
  fail(fmt::format("compares {} with {}", a.type_name(), b.type_name()));
}

std::string to_text(const Value& value) {
  std::string out;
  append_text(value, out);
  return out;
}

std::string to_json(const Value& value, int indent) {
  std::string out;
  append_json(value, indent, 0, out);
  return out;
}

Value from_json(std::string_view json, const std::string& name) {
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  const auto error = parser.parse(json.data(), json.size()).get(element);
  if (error) {
    throw Error(Exit::usage,
                fmt::format("{} is not valid JSON: {}", name, simdjson::error_message(error)));
  }
  return from_element(element, name, 0);
}

std::string_view strip(std::string_view text, bool left, bool right, std::string_view set) {
  const auto drops = [&](char32_t code) {
    if (set.empty()) return is_python_space(code);
    return code < 0x80 && set.find(static_cast<char>(code)) != set.npos;
  };
  const std::size_t n_bytes = text.size();
  while (left && !text.empty()) {
    std::size_t at = 0;
    if (!drops(next_code_point(text, at))) break;
    text.remove_prefix(at);
  }
  while (right && !text.empty()) {
    const std::size_t start = last_character_at(text);
    std::size_t at = start;
    if (!drops(next_code_point(text, at))) break;
    text = text.substr(0, start);
  }
  charge_work((n_bytes - text.size()) / 8);
  return text;
}

}  // namespace bolt::jinja
