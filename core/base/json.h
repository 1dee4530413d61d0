// JSON in and out: typed reads over simdjson's DOM whose errors name file and field, and a small
// ordered writer. What the fields mean is the callers' business.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace bolt {

struct JsonOptions {
  // Accept the bare tokens Infinity, -Infinity and NaN, as Python's json module writes them.
  bool python_numbers = false;
  // Refuse an object that names a key twice, at any depth.
  bool unique_keys = true;
};

// One value inside a JsonDocument, which must outlive it. Every refusal is an Error(input):
//   config.json: field "hidden_size" is "big", expected an integer in [1, 65536]
class JsonValue {
 public:
  bool is_null() const;
  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_bool() const;
  bool is_number() const;

  std::string_view string() const;
  bool boolean() const;
  // A JSON integer, or a float that is one (1e3), in [min, max].
  std::int64_t integer(std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  std::uint64_t unsigned_integer() const;
  // A number; infinities and NaN only where the document takes Python's tokens.
  double number() const;

  // Members of an object. `at` refuses absence, `find` answers it; `find_set` takes null as absent.
  JsonValue at(std::string_view key) const;
  std::optional<JsonValue> find(std::string_view key) const;
  std::optional<JsonValue> find_set(std::string_view key) const;
  std::vector<std::pair<std::string_view, JsonValue>> members() const;
  std::vector<JsonValue> items() const;  // of an array

  // Refuses members beyond `known`, naming the first.
  void only(std::initializer_list<std::string_view> known) const;

  // Where this value stands: `FILE: field "a.b[2]"`, or FILE alone for the root.
  std::string where() const;
  // The value as JSON text without spaces.
  std::string json() const;
  // The value as an error shows it: short, printable.
  std::string shown() const;
  [[noreturn]] void fail(std::string_view expected) const;

  // Calls visit(key, value) for every member of a large object, without making a path for each.
  void each_member(const std::function<void(std::string_view, const JsonValue&)>& visit) const;

 private:
  friend class JsonDocument;
  // A simdjson::dom::element, kept as bytes so that only json.cpp compiles that large header.
  struct Element {
    alignas(8) std::array<std::byte, 16> bytes;
  };
  JsonValue(const void* document, Element element, std::string path)
      : document_(document), element_(element), path_(std::move(path)) {}
  std::string member_path(std::string_view key) const;
  const std::string& file() const;

  const void* document_;  // a JsonDocument::State
  Element element_;
  std::string path_;
};

class JsonDocument {
 public:
  // `name` is the file's name, or what an error shall call the text.
  static JsonDocument parse(std::string name, std::string_view text,
                            const JsonOptions& options = {});
  static JsonDocument load(const std::string& path, const JsonOptions& options = {});
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  // Lent: the document must outlive every value taken from it, and may be moved meanwhile.
  JsonValue root() const;
  const std::string& name() const;

 private:
  friend class JsonValue;
  struct State;
  JsonDocument();
  std::unique_ptr<State> state_;  // stays where it is when the document moves
};

// Writes one JSON text, members in the order given. indent 0: one line, else spaces a level, and
// innermost arrays of numbers stay on one line. Strings that are not UTF-8 get U+FFFD for each bad
// sequence; doubles and floats are the shortest decimals that read back equal; a number that is not
// finite becomes null.
class JsonWriter {
 public:
  explicit JsonWriter(int indent = 0) : indent_(indent) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  // flat: the items stay on one line even when indenting.
  JsonWriter& begin_array(bool flat = false);
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool b) { return put(b ? "true" : "false"); }
  JsonWriter& value(double x);
  JsonWriter& value(float x);
  template <class T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) JsonWriter& value(T x) {
    return put(std::to_string(x));
  }
  template <class T>
  JsonWriter& value(const std::vector<T>& items) {
    begin_array(/*flat=*/true);
    for (const auto& item : items) value(item);
    return end_array();
  }
  JsonWriter& null() { return put("null"); }
  // JSON text as it stands.
  JsonWriter& raw(std::string_view json) { return put(json); }

  template <class T>
  JsonWriter& member(std::string_view name, const T& x) {
    key(name);
    return value(x);
  }

  // The finished text; everything opened must be closed.
  std::string take();

 private:
  struct Level {
    char close;
    bool empty = true, flat = false;
  };
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& put(std::string_view text);
  void separate();
  void new_line();

  std::string out_;
  std::vector<Level> levels_;
  int indent_;
  bool after_key_ = false;
};

// A JSON string literal, quotes included.
std::string json_quote(std::string_view text);

}  // namespace bolt
