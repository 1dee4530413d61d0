// Canonical JSON (JCS, RFC 8785, restricted): integers |n| <= 2^53-1, booleans, strings, arrays and
// objects with keys [a-z_][a-z0-9_]* in byte order; no floats, null, duplicates or white space.
// A text is read only if it equals what would be written for it, so equal facts have equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace bolt::receipts {

inline constexpr std::size_t kBodyBytesMax = 1 << 20;
inline constexpr int kDepthMax = 16;
inline constexpr std::int64_t kIntMax = (std::int64_t{1} << 53) - 1;

class Value {
 public:
  using Array = std::vector<Value>;
  using Object = std::map<std::string, Value, std::less<>>;

  Value() : data_(std::make_unique<Object>()) {}   // an empty object
  Value(bool b) : data_(b) {}                      // NOLINT: facts read best as plain assignments
  Value(std::int64_t n) : data_(n) {}              // NOLINT
  Value(int n) : data_(std::int64_t{n}) {}         // NOLINT
  Value(std::string s) : data_(std::move(s)) {}    // NOLINT
  Value(const char* s) : data_(std::string(s)) {}  // NOLINT
  Value(Array a) : data_(std::make_unique<Array>(std::move(a))) {}    // NOLINT
  Value(Object o) : data_(std::make_unique<Object>(std::move(o))) {}  // NOLINT
  Value(Value&&) noexcept = default;
  Value& operator=(Value&&) noexcept = default;
  Value(const Value& other) { *this = other; }
  Value& operator=(const Value& other);

  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_array() const { return std::holds_alternative<std::unique_ptr<Array>>(data_); }
  bool is_object() const { return std::holds_alternative<std::unique_ptr<Object>>(data_); }
  const char* type_name() const;

  bool as_bool() const { return std::get<bool>(data_); }
  std::int64_t as_int() const { return std::get<std::int64_t>(data_); }
  const std::string& as_string() const { return std::get<std::string>(data_); }
  const Array& array() const { return *std::get<std::unique_ptr<Array>>(data_); }
  Array& array() { return *std::get<std::unique_ptr<Array>>(data_); }
  const Object& object() const { return *std::get<std::unique_ptr<Object>>(data_); }
  Object& object() { return *std::get<std::unique_ptr<Object>>(data_); }

  // The field at a dotted path ("out.chain.marks"), or null where a step is absent.
  const Value* find(std::string_view path) const;
  // Sets it, making the objects on the way.
  void set(std::string_view path, Value value);
  // What stands there if it is of that type, else the fallback.
  std::int64_t int_at(std::string_view path, std::int64_t fallback = 0) const;
  std::string string_at(std::string_view path) const;
  bool bool_at(std::string_view path, bool fallback = false) const;

  bool operator==(const Value& other) const;

 private:
  std::variant<bool, std::int64_t, std::string, std::unique_ptr<Array>, std::unique_ptr<Object>>
      data_;
};

// The canonical text. Throws Failure(fault) for a value that has none (bad UTF-8, key or integer):
// only well-formed facts are sealed.
std::string canonical(const Value& value);
// A string in quotes, as canonical() writes it.
void append_quoted(std::string& out, std::string_view utf8);

// Reads a canonical text; throws Failure(malformed) naming `what` and the byte offset. Memory is at
// most about 60 times the text's length, and the text at most `max_bytes` long.
Value read_canonical(std::string_view text, const std::string& what,
                     std::size_t max_bytes = kBodyBytesMax);

// The offset of the first byte that is not well-formed UTF-8 (RFC 3629), or npos.
std::size_t first_bad_utf8(std::string_view bytes);

// The pieces of read_canonical, for lines that are better read without a tree (attachments).
class Cursor {
 public:
  Cursor(std::string_view text, std::string what) : text_(text), what_(std::move(what)) {}
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void expect(char c);
  void expect(std::string_view literal);
  bool accept(char c);
  std::int64_t integer();
  std::string string();
  std::size_t offset() const { return at_; }
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  std::string_view text_;
  std::string what_;
  std::size_t at_ = 0;
};

}  // namespace bolt::receipts
