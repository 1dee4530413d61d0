// Jinja's filters and tests, and the methods of Python's strings and dicts that templates call.
#pragma once

#include <string_view>

#include "core/text/jinja_value.h"

namespace bolt::jinja {

// value | name(arguments)
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments);
// value is name(arguments)
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments);
// value.name(arguments), where Python has such a method; `found` tells.
Value method(const Value& value, std::string_view name, bool& found);
// Python's `needle in haystack`.
bool contains(const Value& haystack, const Value& needle);
// What a loop over the value walks, as a list: items, keys, characters.
Value iterate(const Value& value);
// value.key or value["key"] of a dict, else undefined.
Value member(const Value& value, std::string_view key);
// len(value)
std::int64_t length(const Value& value);
// `n` characters (fewer where the text ends) from the one with index `begin` >= 0 on.
std::string_view characters(std::string_view text, std::int64_t begin, std::int64_t n);

}  // namespace bolt::jinja
