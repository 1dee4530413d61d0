#include "core/text/jinja_value.h"

#include <fmt/format.h>
#include <simdjson.h>

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

std::string repr(const Value& value) {
  return value.is_string() ? python_quoted(value.string()) : to_text(value);
}

void append_json_string(std::string_view text, std::string& out) {
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
  if (depth > 200) throw Error(Exit::usage, name + ": nested more than 200 levels deep");
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
  for (const auto& item : items_) {
    if (item.first == key) return &item.second;
  }
  return nullptr;
}

void Dict::set(std::string_view key, Value value) {
  for (auto& item : items_) {
    if (item.first == key) {
      item.second = std::move(value);
      return;
    }
  }
  items_.emplace_back(std::string(key), std::move(value));
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
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) return a.string() == b.string();
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
  if (a.is_string() && b.is_string()) return a.string() < b.string();
  fail(fmt::format("compares {} with {}", a.type_name(), b.type_name()));
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.boolean() ? "True" : "False";
  if (value.is_integer()) return std::to_string(value.integer());
  if (value.is_float()) return float_text(value.number());
  if (value.is_string()) return value.string();
  std::string out;
  if (value.is_list()) {
    for (const Value& item : value.list()) out += (out.empty() ? "" : ", ") + repr(item);
    return "[" + out + "]";
  }
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().items()) {
      out += (out.empty() ? "" : ", ") + python_quoted(key) + ": " + repr(item);
    }
    return "{" + out + "}";
  }
  fail("prints a function");
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
  return text;
}

}  // namespace bolt::jinja
