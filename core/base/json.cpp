// Reading JSON: simdjson's DOM with errors that name file and field. Writing is json_writer.cpp.
#include "core/base/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/printable.h"

namespace bolt {
namespace {

using simdjson::dom::element_type;

constexpr std::string_view kInfinity = "Infinity", kMinusInfinity = "-Infinity", kNan = "NaN";

// Puts quotes around Python's number tokens where they stand outside strings; JsonValue::number
// reads them back.
std::string quote_python_numbers(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 64);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string) {
      out += c;
      if (c == '\\' && i + 1 < text.size()) out += text[++i];
      if (c == '"') in_string = false;
      ++i;
      continue;
    }
    if (c == '"') in_string = true;
    bool replaced = false;
    for (const std::string_view token : {kMinusInfinity, kInfinity, kNan}) {
      if (text.substr(i).starts_with(token)) {
        out.append("\"").append(token).append("\"");
        i += token.size();
        replaced = true;
        break;
      }
    }
    if (replaced) continue;
    out += c;
    ++i;
  }
  return out;
}

// The first key that an object names twice, with the object's path; empty if there is none.
std::optional<std::string> repeated_key(simdjson::dom::element element, const std::string& path) {
  constexpr std::size_t kFew = 16;  // below, comparing all pairs beats a set
  if (element.is_array()) {
    const simdjson::dom::array array = element.get_array().value_unsafe();
    for (const auto item : array) {
      if (!item.is_array() && !item.is_object()) continue;
      if (auto found = repeated_key(item, path + "[]")) return found;
    }
  }
  if (!element.is_object()) return std::nullopt;
  const simdjson::dom::object object = element.get_object().value_unsafe();
  std::vector<std::string_view> few;
  std::unordered_set<std::string_view> many;
  for (const auto& [key, value] : object) {
    bool fresh = true;
    if (few.size() < kFew) {
      fresh = std::find(few.begin(), few.end(), key) == few.end();
      few.push_back(key);
    } else {
      if (many.empty()) many.insert(few.begin(), few.end());
      fresh = many.insert(key).second;
    }
    const std::string member = path.empty() ? std::string(key) : "";
    if (!fresh) return path.empty() ? member : fmt::format("{}.{}", path, key);
    if (!value.is_array() && !value.is_object()) continue;
    if (auto found = repeated_key(value, path.empty() ? member : fmt::format("{}.{}", path, key))) {
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace

struct JsonDocument::State {
  std::string name;
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  bool python_numbers = false;
};

namespace {

template <class Element>
simdjson::dom::element dom(const Element& element) {
  static_assert(sizeof(Element) == sizeof(simdjson::dom::element));
  return std::bit_cast<simdjson::dom::element>(element);
}

}  // namespace

JsonDocument::JsonDocument() : state_(std::make_unique<State>()) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;
const std::string& JsonDocument::name() const { return state_->name; }

JsonDocument JsonDocument::parse(std::string name, std::string_view text,
                                 const JsonOptions& options) {
  JsonDocument document;
  State& state = *document.state_;
  state.name = std::move(name);
  state.python_numbers = options.python_numbers;
  const simdjson::padded_string padded = options.python_numbers
                                             ? simdjson::padded_string(quote_python_numbers(text))
                                             : simdjson::padded_string(text);
  if (const auto error = state.parser.parse(padded).get(state.root)) {
    throw Error(Exit::input,
                fmt::format("{}: not valid JSON: {}", state.name, simdjson::error_message(error)));
  }
  if (options.unique_keys) {
    if (const auto key = repeated_key(state.root, "")) {
      throw Error(Exit::input, fmt::format("{}: field {} is given twice, expected once", state.name,
                                           '"' + printable(*key) + '"'));
    }
  }
  return document;
}

JsonDocument JsonDocument::load(const std::string& path, const JsonOptions& options) {
  return parse(path, read_file(path), options);
}

JsonValue JsonDocument::root() const {
  return JsonValue(state_.get(), std::bit_cast<JsonValue::Element>(state_->root), "");
}

bool JsonValue::is_null() const { return dom(element_).is_null(); }
bool JsonValue::is_object() const { return dom(element_).is_object(); }
bool JsonValue::is_array() const { return dom(element_).is_array(); }
bool JsonValue::is_string() const { return dom(element_).is_string(); }
bool JsonValue::is_bool() const { return dom(element_).is_bool(); }
bool JsonValue::is_number() const { return dom(element_).is_number(); }

const std::string& JsonValue::file() const {
  return static_cast<const JsonDocument::State*>(document_)->name;
}

std::string JsonValue::where() const {
  return path_.empty() ? file() : fmt::format("{}: field \"{}\"", file(), printable(path_));
}

std::string JsonValue::json() const { return simdjson::minify(dom(element_)); }

std::string JsonValue::shown() const {
  std::string text = json();
  constexpr std::size_t kShown = 60;
  if (text.size() <= kShown) return text;
  std::size_t end = kShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

void JsonValue::fail(std::string_view expected) const {
  throw Error(Exit::input, fmt::format("{} is {}, expected {}", where(), shown(), expected));
}

std::string_view JsonValue::string() const {
  if (!is_string()) fail("a string");
  return dom(element_).get_string().value_unsafe();
}

bool JsonValue::boolean() const {
  if (!is_bool()) fail("true or false");
  return dom(element_).get_bool().value_unsafe();
}

std::int64_t JsonValue::integer(std::int64_t min, std::int64_t max) const {
  std::int64_t x = 0;
  bool ok = false;
  if (dom(element_).is_int64()) {
    x = dom(element_).get_int64().value_unsafe();
    ok = true;
  } else if (dom(element_).is_double()) {
    const double d = dom(element_).get_double().value_unsafe();
    ok = d >= -0x1p53 && d <= 0x1p53 && d == std::floor(d);
    if (ok) x = static_cast<std::int64_t>(d);
  }
  if (ok && x >= min && x <= max) return x;
  if (min == std::numeric_limits<std::int64_t>::min() &&
      max == std::numeric_limits<std::int64_t>::max()) {
    fail("an integer");
  }
  fail(max == std::numeric_limits<std::int64_t>::max()
           ? fmt::format("an integer of at least {}", min)
           : fmt::format("an integer in [{}, {}]", min, max));
}

std::uint64_t JsonValue::unsigned_integer() const {
  if (!dom(element_).is_uint64() &&
      !(dom(element_).is_int64() && dom(element_).get_int64().value_unsafe() >= 0)) {
    fail("an integer of at least 0");
  }
  return dom(element_).is_uint64()
             ? dom(element_).get_uint64().value_unsafe()
             : static_cast<std::uint64_t>(dom(element_).get_int64().value_unsafe());
}

double JsonValue::number() const {
  if (static_cast<const JsonDocument::State*>(document_)->python_numbers && is_string()) {
    const std::string_view token = dom(element_).get_string().value_unsafe();
    if (token == kInfinity) return std::numeric_limits<double>::infinity();
    if (token == kMinusInfinity) return -std::numeric_limits<double>::infinity();
    if (token == kNan) return std::numeric_limits<double>::quiet_NaN();
  }
  if (!is_number()) fail("a number");
  return dom(element_).get_double().value_unsafe();
}

std::string JsonValue::member_path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

JsonValue JsonValue::at(std::string_view key) const {
  if (auto found = find(key)) return *found;
  throw Error(Exit::input,
              fmt::format("{}: field {} is missing", file(), json_quote(member_path(key))));
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!is_object()) fail("an object");
  simdjson::dom::element member;
  if (dom(element_).get_object().value_unsafe().at_key(key).get(member)) return std::nullopt;
  return JsonValue(document_, std::bit_cast<Element>(member), member_path(key));
}

std::optional<JsonValue> JsonValue::find_set(std::string_view key) const {
  auto found = find(key);
  if (found && found->is_null()) return std::nullopt;
  return found;
}

std::vector<std::pair<std::string_view, JsonValue>> JsonValue::members() const {
  if (!is_object()) fail("an object");
  std::vector<std::pair<std::string_view, JsonValue>> all;
  const simdjson::dom::object object = dom(element_).get_object().value_unsafe();
  all.reserve(object.size());
  for (const auto& [key, value] : object) {
    all.emplace_back(key, JsonValue(document_, std::bit_cast<Element>(value), member_path(key)));
  }
  return all;
}

void JsonValue::each_member(
    const std::function<void(std::string_view, const JsonValue&)>& visit) const {
  if (!is_object()) fail("an object");
  const simdjson::dom::object object = dom(element_).get_object().value_unsafe();
  for (const auto& [key, value] : object) {
    visit(key, JsonValue(document_, std::bit_cast<Element>(value), path_));
  }
}

std::vector<JsonValue> JsonValue::items() const {
  if (!is_array()) fail("an array");
  std::vector<JsonValue> all;
  const simdjson::dom::array array = dom(element_).get_array().value_unsafe();
  all.reserve(array.size());
  for (const auto item : array) {
    all.push_back(JsonValue(document_, std::bit_cast<Element>(item),
                            fmt::format("{}[{}]", path_, all.size())));
  }
  return all;
}

void JsonValue::only(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : members()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw Error(Exit::input, fmt::format("{} is not a known field", value.where()));
    }
  }
}

}  // namespace bolt
