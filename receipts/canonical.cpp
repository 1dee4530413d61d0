// Strictness is in the grammar itself: every rule accepts one spelling only, so what parses is
// canonical. The fuzz target re-writes what it read and compares, to keep that claim honest.
#include "receipts/canonical.h"

#include <fmt/format.h>

#include <charconv>

#include "receipts/status.h"

namespace bolt::receipts {
namespace {

bool is_key(std::string_view key) {
  if (key.empty() || (key[0] >= '0' && key[0] <= '9')) return false;
  for (const char c : key) {
    if (!(c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) return false;
  }
  return true;
}

// Length of the UTF-8 sequence at `at`, 0 where it is not well formed: overlong forms, surrogates
// and code points past U+10FFFF are not.
std::size_t utf8_length(std::string_view s, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u;
  };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned b0 = byte(at), b1 = byte(at + 1);
  if (b0 < 0x80) return 1;
  if (b0 >= 0xc2 && b0 <= 0xdf) return tail(at + 1) ? 2 : 0;
  if (b0 >= 0xe0 && b0 <= 0xef) {
    if (!tail(at + 1) || !tail(at + 2)) return 0;
    if (b0 == 0xe0 && b1 < 0xa0) return 0;
    if (b0 == 0xed && b1 > 0x9f) return 0;
    return 3;
  }
  if (b0 >= 0xf0 && b0 <= 0xf4) {
    if (!tail(at + 1) || !tail(at + 2) || !tail(at + 3)) return 0;
    if (b0 == 0xf0 && b1 < 0x90) return 0;
    if (b0 == 0xf4 && b1 > 0x8f) return 0;
    return 4;
  }
  return 0;
}

void write(std::string& out, const Value& value, int depth) {
  if (depth > kDepthMax) throw Failure(Status::fault, "receipt: facts nested too deep to seal");
  if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_int()) {
    const std::int64_t n = value.as_int();
    if (n > kIntMax || n < -kIntMax) {
      throw Failure(Status::fault,
                    fmt::format("receipt: {} is past 2^53-1 and cannot be sealed", n));
    }
    out += std::to_string(n);
  } else if (value.is_string()) {
    append_quoted(out, value.as_string());
  } else if (value.is_array()) {
    out += '[';
    bool first = true;
    for (const Value& item : value.array()) {
      if (!first) out += ',';
      first = false;
      write(out, item, depth + 1);
    }
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.object()) {
      if (!is_key(key)) {
        throw Failure(Status::fault, fmt::format("receipt: {} is no field name", key));
      }
      if (!first) out += ',';
      first = false;
      append_quoted(out, key);
      out += ':';
      write(out, item, depth + 1);
    }
    out += '}';
  }
}

Value read(Cursor& cursor, int depth) {
  if (depth > kDepthMax) cursor.fail(fmt::format("nested deeper than {}", kDepthMax));
  switch (cursor.peek()) {
    case '{': {
      cursor.expect('{');
      Value::Object object;
      std::string last;
      if (cursor.accept('}')) return object;
      do {
        std::string key = cursor.string();
        if (!is_key(key)) cursor.fail("a key that is not [a-z_][a-z0-9_]*");
        if (!object.empty() && key == last) cursor.fail(fmt::format("duplicate key {}", key));
        if (!object.empty() && key < last) {
          cursor.fail(fmt::format("key {} out of order after {}", key, last));
        }
        cursor.expect(':');
        last = key;
        object.emplace_hint(object.end(), std::move(key), read(cursor, depth + 1));
      } while (cursor.accept(','));
      cursor.expect('}');
      return object;
    }
    case '[': {
      cursor.expect('[');
      Value::Array array;
      if (cursor.accept(']')) return array;
      do {
        array.push_back(read(cursor, depth + 1));
      } while (cursor.accept(','));
      cursor.expect(']');
      return array;
    }
    case '"':
      return cursor.string();
    case 't':
      cursor.expect("true");
      return true;
    case 'f':
      cursor.expect("false");
      return false;
    default:
      return cursor.integer();
  }
}

// Walks a dotted path; returns the first step and leaves the rest in `path`.
std::string_view next_step(std::string_view& path) {
  const std::size_t dot = path.find('.');
  const std::string_view step = path.substr(0, dot);
  path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  return step;
}

}  // namespace

Value& Value::operator=(const Value& other) {
  if (this == &other) return *this;
  if (other.is_array()) {
    data_ = std::make_unique<Array>(other.array());
  } else if (other.is_object()) {
    data_ = std::make_unique<Object>(other.object());
  } else if (other.is_string()) {
    data_ = other.as_string();
  } else if (other.is_int()) {
    data_ = other.as_int();
  } else {
    data_ = other.as_bool();
  }
  return *this;
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"a boolean", "an integer", "a string", "an array", "an object"};
  return kNames[data_.index()];
}

const Value* Value::find(std::string_view path) const {
  const Value* at = this;
  while (!path.empty()) {
    const std::string_view step = next_step(path);
    if (!at->is_object()) return nullptr;
    const auto found = at->object().find(step);
    if (found == at->object().end()) return nullptr;
    at = &found->second;
  }
  return at;
}

void Value::set(std::string_view path, Value value) {
  Value* at = this;
  while (!path.empty()) {
    const std::string_view step = next_step(path);
    at = &at->object().try_emplace(std::string(step)).first->second;
  }
  *at = std::move(value);
}

std::int64_t Value::int_at(std::string_view path, std::int64_t fallback) const {
  const Value* v = find(path);
  return v != nullptr && v->is_int() ? v->as_int() : fallback;
}

std::string Value::string_at(std::string_view path) const {
  const Value* v = find(path);
  return v != nullptr && v->is_string() ? v->as_string() : std::string();
}

bool Value::bool_at(std::string_view path, bool fallback) const {
  const Value* v = find(path);
  return v != nullptr && v->is_bool() ? v->as_bool() : fallback;
}

bool Value::operator==(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_array()) return array() == other.array();
  if (is_object()) return object() == other.object();
  return data_ == other.data_;
}

void append_quoted(std::string& out, std::string_view utf8) {
  if (first_bad_utf8(utf8) != std::string_view::npos) {
    throw Failure(Status::fault, "receipt: a text that is not UTF-8 cannot be sealed as a string");
  }
  out += '"';
  for (const char c : utf8) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\r':
        out += "\\r";
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

std::string canonical(const Value& value) {
  std::string out;
  write(out, value, 1);
  return out;
}

Value read_canonical(std::string_view text, const std::string& what, std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    throw Failure(Status::malformed,
                  fmt::format("{}: {} bytes, at most {} are read", what, text.size(), max_bytes));
  }
  Cursor cursor(text, what);
  Value value = read(cursor, 1);
  if (!cursor.at_end()) cursor.fail("something after the value");
  return value;
}

std::size_t first_bad_utf8(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = utf8_length(bytes, at);
    if (n == 0) return at;
    at += n;
  }
  return std::string_view::npos;
}

void Cursor::fail(const std::string& problem) const {
  throw Failure(Status::malformed, fmt::format("{}: byte {}: {}", what_, at_, problem));
}

void Cursor::expect(char c) {
  if (!accept(c)) {
    if (at_end()) fail(fmt::format("ends where '{}' is expected", c));
    fail(fmt::format("expected '{}', found byte 0x{:02x}", c, static_cast<unsigned char>(peek())));
  }
}

void Cursor::expect(std::string_view literal) {
  if (text_.substr(at_, literal.size()) != literal) {
    fail(fmt::format("expected {}", literal));
  }
  at_ += literal.size();
}

bool Cursor::accept(char c) {
  if (at_end() || text_[at_] != c) return false;
  ++at_;
  return true;
}

std::int64_t Cursor::integer() {
  const std::size_t start = at_;
  std::size_t end = at_;
  if (end < text_.size() && text_[end] == '-') ++end;
  const std::size_t digits = end;
  while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9' && end - digits < 17) ++end;
  if (end == digits) {
    if (at_end()) fail("ends where a value is expected");
    fail(fmt::format(
        "expected a value, found byte 0x{:02x}; null, NaN and white space have no place",
        static_cast<unsigned char>(text_[start])));
  }
  if (text_[digits] == '0' && (end - digits > 1 || digits > start)) {
    fail("an integer with a leading zero or minus zero");
  }
  if (end < text_.size() && (text_[end] == '.' || text_[end] == 'e' || text_[end] == 'E')) {
    fail("a number that is no integer");
  }
  std::int64_t value = 0;
  (void)std::from_chars(text_.data() + start, text_.data() + end, value);  // at most 17 digits
  if (value > kIntMax || value < -kIntMax) fail("an integer past 2^53-1");
  at_ = end;
  return value;
}

std::string Cursor::string() {
  expect('"');
  std::string out;
  while (true) {
    if (at_end()) fail("ends inside a string");
    const char c = text_[at_];
    if (c == '"') {
      ++at_;
      return out;
    }
    if (static_cast<unsigned char>(c) < 0x20) fail("a bare control character in a string");
    if (c != '\\') {
      const std::size_t n = utf8_length(text_, at_);
      if (n == 0) fail("a string that is not well-formed UTF-8");
      out.append(text_, at_, n);
      at_ += n;
      continue;
    }
    const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    constexpr std::string_view kShort = "\"\\btnfr", kMeaning = "\"\\\b\t\n\f\r";
    if (const std::size_t i = kShort.find(kind); kind != '\0' && i != std::string_view::npos) {
      out += kMeaning[i];
      at_ += 2;
      continue;
    }
    // \u00xx for the control characters that have no short form, and for nothing else.
    unsigned code = 0x20;
    const std::string_view digits = text_.substr(at_, 6);
    if (digits.size() == 6 && digits.substr(0, 4) == "\\u00") {
      const auto [end, error] = std::from_chars(digits.data() + 4, digits.data() + 6, code, 16);
      if (error != std::errc() || end != digits.data() + 6) code = 0x20;
    }
    const bool upper = digits.find_first_of("ABCDEF") != std::string_view::npos;
    if (code >= 0x20 || upper || code == '\b' || code == '\t' || code == '\n' || code == '\f' ||
        code == '\r') {
      fail("an escape that is not the canonical one");
    }
    out += static_cast<char>(code);
    at_ += 6;
  }
}

}  // namespace bolt::receipts
