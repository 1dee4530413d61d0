#include "core/text/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "core/text/jinja_parser.h"
#include "core/text/utf8.h"

namespace bolt::jinja {
namespace {

// The arguments of one call, bound to parameter names.
class Bound {
 public:
  Bound(std::string_view function, const Arguments& arguments,
        std::initializer_list<std::string_view> parameters)
      : function_(function) {
    std::size_t n_positional = 0;
    for (const auto& [name, value] : arguments) {
      if (!name.empty()) {
        if (std::find(parameters.begin(), parameters.end(), name) == parameters.end()) {
          fail(fmt::format("gives {} an argument {} that is not supported", function, name));
        }
        values_.set(name, value);
      } else if (n_positional == parameters.size()) {
        fail(fmt::format("gives {} too many arguments", function));
      } else {
        values_.set(*(parameters.begin() + n_positional++), value);
      }
    }
  }
  bool has(std::string_view name) const { return values_.find(name) != nullptr; }
  Value get(std::string_view name, Value otherwise = {}) const {
    const Value* value = values_.find(name);
    return value != nullptr ? *value : std::move(otherwise);
  }
  std::string text(std::string_view name) const {
    const Value value = get(name);
    if (!value.is_string()) {
      fail(fmt::format("gives {} {} where a str is needed", function_, value.type_name()));
    }
    return value.string();
  }
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const {
    if (!has(name)) return otherwise;
    const Value value = get(name);
    if (!value.is_integer()) {
      fail(fmt::format("gives {} {} where an int is needed", function_, value.type_name()));
    }
    return value.integer();
  }

 private:
  std::string function_;
  Dict values_;
};

std::string upper(std::string_view text, bool to_upper) {
  charge_work(text.size() / 16);
  std::string out(text);
  for (char& c : out) {
    // Case beyond ASCII would need the whole of Unicode's tables; no known template needs it.
    if (static_cast<unsigned char>(c) >= 0x80) {
      fail("changes the case of a text that is not ASCII, which is not supported");
    }
    if (to_upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    if (!to_upper && c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t count) {
  if (from.empty()) fail("replaces an empty text, which is not supported");
  std::string out;
  while (count != 0) {
    const std::size_t at = find_text(text, from);
    if (at == text.npos) break;
    need_room(out.size() + at + to.size());
    charge_work((at + to.size()) / 64);
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
    --count;
  }
  need_room(out.size() + text.size());
  return out += text;
}

List split(std::string_view text, const Value& separator, std::int64_t count) {
  List out;
  if (separator.is_undefined() || separator.is_none()) {
    text = strip(text, true, false);
    while (!text.empty()) {
      charge_work(1 + (count == 0 ? 0 : text.size() / 64));
      std::size_t end = 0;
      while (end < text.size() && count != 0) {
        std::size_t next = end;
        next_code_point(text, next);
        if (strip(text.substr(end, next - end), true, false).empty()) break;
        end = next;
      }
      if (count == 0) {
        out.push_back(text);
        break;
      }
      out.push_back(text.substr(0, end));
      text = strip(text.substr(end), true, false);
      --count;
    }
    return out;
  }
  const std::string& by = separator.string();
  if (by.empty()) fail("splits at an empty text");
  for (; count != 0; --count) {
    const std::size_t at = find_text(text, by);
    if (at == text.npos) break;
    out.push_back(text.substr(0, at));
    text.remove_prefix(at + by.size());
  }
  out.push_back(text);
  return out;
}

std::string join(const Value& value, std::string_view separator) {
  std::string out;
  bool first = true;
  const Value walked = iterate(value);
  for (const Value& item : walked.list()) {
    if (!first) out += separator;
    const std::string text = to_text(item);
    need_room(out.size() + text.size() + separator.size());
    charge_work(1 + (text.size() + separator.size()) / 64);
    out += text;
    first = false;
  }
  return out;
}

bool any_affix(const Value& affixes, const std::string& text, bool prefix) {
  charge_work(1);
  if (affixes.is_string()) {
    charge_work(affixes.string().size() / 64);
    return prefix ? text.starts_with(affixes.string()) : text.ends_with(affixes.string());
  }
  const Value all = iterate(affixes);
  return std::any_of(all.list().begin(), all.list().end(),
                     [&](const Value& one) { return any_affix(one, text, prefix); });
}

// select, reject, selectattr, rejectattr: (attribute,) test, arguments.
List choose(std::string_view name, const Value& value, const Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr"), keep = name.starts_with("select");
  Arguments rest = arguments;
  const auto take = [&](Value& into) {
    if (rest.empty()) return false;
    into = rest.front().second;
    rest.erase(rest.begin());
    return true;
  };
  Value attribute, test;
  if (by_attribute && !take(attribute)) fail(fmt::format("gives {} no attribute", name));
  const bool tested = take(test);
  if (tested && !is_known_test(to_text(test))) {
    fail(fmt::format("uses the test {}, which is not supported", to_text(test)));
  }
  List out;
  const Value walked = iterate(value);
  for (const Value& item : walked.list()) {
    charge_work(2);
    const Value looked_at = by_attribute ? member(item, to_text(attribute)) : item;
    const bool holds = tested ? apply_test(test.string(), looked_at, rest) : looked_at.truthy();
    if (holds == keep) out.push_back(item);
  }
  return out;
}

Value to_int(const Value& value, const Value& otherwise) {
  if (value.is_float()) {
    constexpr double kMax = 9.2e18;  // within int64
    if (!(value.number() > -kMax && value.number() < kMax))
      fail("makes an int of a float too large");
    return static_cast<std::int64_t>(value.number());
  }
  if (value.is_number()) return value.integer();
  if (value.is_string()) {
    const std::string_view digits = strip(value.string(), true, true);
    std::int64_t i = 0;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), i);
    if (problem == std::errc() && end == digits.data() + digits.size()) return i;
  }
  return otherwise;
}

constexpr std::string_view kFilters[] = {
    "trim",  "tojson",  "safe",   "string", "length",     "count",      "default", "d",
    "items", "list",    "join",   "first",  "last",       "replace",    "upper",   "lower",
    "int",   "reverse", "select", "reject", "selectattr", "rejectattr", "map",     "unique"};
constexpr std::string_view kTests[] = {"defined",  "undefined", "none",   "string",   "mapping",
                                       "iterable", "sequence",  "number", "integer",  "float",
                                       "boolean",  "true",      "false",  "callable", "in",
                                       "equalto",  "eq",        "ne",     "odd",      "even"};

}  // namespace

bool is_known_filter(std::string_view name) {
  return std::find(std::begin(kFilters), std::end(kFilters), name) != std::end(kFilters);
}
bool is_known_test(std::string_view name) {
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

Value member(const Value& value, std::string_view key) {
  if (!value.is_dict()) return {};
  const Value* found = value.dict().find(key);
  return found != nullptr ? *found : Value();
}

Value iterate(const Value& value) {
  if (value.is_list()) return value;
  List out;
  if (value.is_undefined()) return out;
  if (value.is_dict()) {
    for (const auto& item : value.dict().items()) out.push_back(item.first);
  } else if (value.is_string()) {
    for (std::size_t at = 0; at < value.string().size();) {
      const std::size_t start = at;
      next_code_point(value.string(), at);
      out.push_back(std::string_view(value.string()).substr(start, at - start));
    }
  } else {
    fail(fmt::format("loops over {}", value.type_name()));
  }
  return out;
}

std::int64_t length(const Value& value) {
  if (value.is_list()) return static_cast<std::int64_t>(value.list().size());
  if (value.is_dict()) return static_cast<std::int64_t>(value.dict().items().size());
  if (value.is_string()) {
    charge_work(value.string().size() / 64);
    return std::count_if(value.string().begin(), value.string().end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; });
  }
  if (value.is_undefined()) return 0;
  fail(fmt::format("takes the length of {}", value.type_name()));
}

std::string_view characters(std::string_view text, std::int64_t begin, std::int64_t n) {
  std::size_t at = 0;
  for (; begin > 0 && at < text.size(); --begin) next_code_point(text, at);
  const std::size_t start = at;
  for (; n > 0 && at < text.size(); --n) next_code_point(text, at);
  charge_work(at / 16);
  return text.substr(start, at - start);
}

bool contains(const Value& haystack, const Value& needle) {
  if (haystack.is_string()) {
    if (!needle.is_string()) fail(fmt::format("looks for {} in a str", needle.type_name()));
    return find_text(haystack.string(), needle.string()) != std::string::npos;
  }
  if (haystack.is_dict()) {
    return needle.is_string() && haystack.dict().find(needle.string()) != nullptr;
  }
  const Value items = iterate(haystack);
  return std::any_of(items.list().begin(), items.list().end(),
                     [&](const Value& item) { return equal(item, needle); });
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments) {
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return choose(name, value, arguments);
  }
  if (name == "trim") {
    const Bound bound(name, arguments, {"chars"});
    const std::string text = to_text(value);
    return strip(text, true, true, bound.has("chars") ? bound.text("chars") : std::string());
  }
  if (name == "tojson") {
    const Bound bound(name, arguments, {"indent"});
    if (bound.get("indent", None{}).is_none()) return to_json(value);
    const std::int64_t indent = bound.integer("indent", 0);
    if (indent < 0 || indent > 64) fail("indents JSON by less than 0 or more than 64");
    return to_json(value, static_cast<int>(indent));
  }
  if (name == "default" || name == "d") {
    const Bound bound(name, arguments, {"default_value", "boolean"});
    const bool replaces = bound.get("boolean").truthy() ? !value.truthy() : value.is_undefined();
    return replaces ? bound.get("default_value", "") : value;
  }
  if (name == "join") {
    const Bound bound(name, arguments, {"d"});
    return join(value, bound.has("d") ? bound.text("d") : std::string());
  }
  if (name == "replace") {
    const Bound bound(name, arguments, {"old", "new", "count"});
    return replace(to_text(value), bound.text("old"), bound.text("new"),
                   bound.integer("count", -1));
  }
  if (name == "int") {
    const Bound bound(name, arguments, {"default"});
    return to_int(value, bound.get("default", std::int64_t{0}));
  }
  if (name == "map") {
    const Bound bound(name, arguments, {"filter", "attribute"});
    List out;
    const Value walked = iterate(value);
    for (const Value& item : walked.list()) {
      charge_work(2);
      if (bound.has("attribute")) {
        out.push_back(member(item, bound.text("attribute")));
      } else if (is_known_filter(bound.text("filter"))) {
        out.push_back(apply_filter(bound.text("filter"), item, {}));
      } else {
        fail(fmt::format("maps the filter {}, which is not supported", bound.text("filter")));
      }
    }
    return out;
  }
  const Bound none(name, arguments, {});
  if (name == "safe") return value;
  if (name == "string") return to_text(value);
  if (name == "length" || name == "count") return length(value);
  if (name == "list") return iterate(value);
  if (name == "upper" || name == "lower") return upper(to_text(value), name == "upper");
  if (name == "items") {
    List out;
    if (value.is_undefined()) return out;
    if (!value.is_dict()) fail(fmt::format("takes the items of {}", value.type_name()));
    for (const auto& [key, item] : value.dict().items()) out.push_back(List{key, item});
    return out;
  }
  if (value.is_string() && (name == "first" || name == "last")) {
    if (value.string().empty()) return {};
    const std::string_view text = value.string();
    return name == "first" ? characters(text, 0, 1) : text.substr(last_character_at(text));
  }
  const Value walked = iterate(value);
  const List& all = walked.list();
  if (name == "first") return all.empty() ? Value() : all.front();
  if (name == "last") return all.empty() ? Value() : all.back();
  if (name == "reverse") {
    List items = all;
    std::reverse(items.begin(), items.end());
    if (!value.is_string()) return items;
    return join(std::move(items), "");
  }
  if (name == "unique") {
    List out;
    for (const Value& item : all) {
      if (std::none_of(out.begin(), out.end(), [&](const Value& x) { return equal(x, item); })) {
        out.push_back(item);
      }
    }
    return out;
  }
  fail(fmt::format("uses the filter {}, which is not supported", name));
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments) {
  if (name == "in" || name == "equalto" || name == "eq" || name == "ne") {
    const Bound bound(name, arguments, {"other"});
    const Value other = bound.get("other");
    if (name == "in") return contains(other, value);
    return equal(value, other) == (name != "ne");
  }
  const Bound none(name, arguments, {});
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_dict();
  if (name == "iterable" || name == "sequence") {
    return value.is_list() || value.is_dict() || value.is_string() || value.is_undefined();
  }
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is_integer();
  if (name == "float") return value.is_float();
  if (name == "boolean") return value.is_bool();
  if (name == "true") return value.is_bool() && value.boolean();
  if (name == "false") return value.is_bool() && !value.boolean();
  if (name == "callable") return value.is_function();
  if (name == "odd" || name == "even") {
    if (!value.is_integer()) fail(fmt::format("tests whether {} is odd", value.type_name()));
    return (value.integer() % 2 != 0) == (name == "odd");
  }
  fail(fmt::format("uses the test {}, which is not supported", name));
}

Value method(const Value& value, std::string_view name, bool& found) {
  found = true;
  const auto make = [](auto body) { return Value(Function(std::move(body))); };
  if (value.is_string()) {
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
      const bool left = name != "rstrip", right = name != "lstrip";
      return make([=](const Arguments& a) -> Value {
        const Bound bound("strip", a, {"chars"});
        const bool set = bound.has("chars") && !bound.get("chars").is_none();
        return strip(value.string(), left, right, set ? bound.text("chars") : std::string());
      });
    }
    if (name == "split") {
      return make([=](const Arguments& a) -> Value {
        const Bound bound("split", a, {"sep", "maxsplit"});
        if (bound.has("sep") && !bound.get("sep").is_none()) bound.text("sep");
        return split(value.string(), bound.get("sep"), bound.integer("maxsplit", -1));
      });
    }
    if (name == "replace") {
      return make([=](const Arguments& a) -> Value {
        const Bound bound("replace", a, {"old", "new", "count"});
        return replace(value.string(), bound.text("old"), bound.text("new"),
                       bound.integer("count", -1));
      });
    }
    if (name == "startswith" || name == "endswith") {
      const bool prefix = name == "startswith";
      return make([=](const Arguments& a) -> Value {
        return any_affix(Bound("startswith", a, {"affix"}).get("affix"), value.string(), prefix);
      });
    }
    if (name == "upper" || name == "lower") {
      const bool to_upper = name == "upper";
      return make([=](const Arguments&) -> Value { return upper(value.string(), to_upper); });
    }
    if (name == "join") {
      return make([=](const Arguments& a) -> Value {
        return join(Bound("join", a, {"iterable"}).get("iterable"), value.string());
      });
    }
    if (name == "count") {
      return make([=](const Arguments& a) -> Value {
        const Bound bound("count", a, {"sub"});
        return static_cast<std::int64_t>(split(value.string(), bound.text("sub"), -1).size()) - 1;
      });
    }
    if (name == "find") {
      return make([=](const Arguments& a) -> Value {
        const std::string& text = value.string();
        const std::size_t at = find_text(text, Bound("find", a, {"sub"}).text("sub"));
        return at == text.npos ? std::int64_t{-1} : length(text.substr(0, at));
      });
    }
  }
  if (value.is_dict()) {
    if (name == "items") {
      return make([=](const Arguments&) -> Value { return apply_filter("items", value, {}); });
    }
    if (name == "keys") return make([=](const Arguments&) -> Value { return iterate(value); });
    if (name == "values") {
      return make([=](const Arguments&) -> Value {
        List out;
        for (const auto& item : value.dict().items()) out.push_back(item.second);
        return out;
      });
    }
    if (name == "get") {
      return make([=](const Arguments& a) -> Value {
        const Bound bound("get", a, {"key", "default"});
        const Value* item = value.dict().find(to_text(bound.get("key")));
        return item != nullptr ? *item : bound.get("default", None{});
      });
    }
  }
  found = false;
  return {};
}

}  // namespace bolt::jinja
