// Option values with their whole check beside the option: a number out of range, NaN, infinity or
// an unknown name is a usage error that names the option and what is allowed. Independent of the
// locale.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace bolt {

// The whole text as a number in [low, high]; Error(usage) naming `option` otherwise. Integers are
// decimal; parse_u64 takes 0x... too.
std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t low,
                           std::int64_t high);
float parse_float(std::string_view option, std::string_view text, float low, float high);
std::uint64_t parse_u64(std::string_view option, std::string_view text);
// A number of bytes, with a suffix k, M, G or T (powers of 1024) or none.
std::int64_t parse_bytes(std::string_view option, std::string_view text);
// "a,b" -> {"a", "b"}; empty parts are kept, for whoever reads them to refuse.
std::vector<std::string> split_list(std::string_view text);
// Lower-case hex of an even length up to max_bytes; upper case is lowered.
std::string parse_hex(std::string_view option, std::string_view text, std::size_t max_bytes);
// Error(usage): OPTION: TEXT is not one of NAMES.
[[noreturn]] void throw_unknown_name(std::string_view option, std::string_view text,
                                     const std::string& names);

// "-n,--max-tokens" -> "--max-tokens", the name that errors use.
std::string long_name(const std::string& names);

// An option whose text goes through `parse`. Given twice, the last one counts, so that an alias in
// a shell can be overridden.
template <class Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& names, const std::string& type,
                        const std::string& help, Parse parse) {
  auto store = [name = long_name(names), parse](const std::string& text) { parse(name, text); };
  return app.add_option_function<std::string>(names, store, help)->type_name(type)->take_last();
}

// Target is an integer type or an optional of one.
template <class Target>
CLI::Option* add_integer(CLI::App& app, const std::string& names, Target& target, std::int64_t low,
                         std::int64_t high, const std::string& help) {
  return add_parsed(app, names, "N", help,
                    [&target, low, high](const std::string& name, const std::string& text) {
                      const std::int64_t value = parse_integer(name, text, low, high);
                      if constexpr (std::is_integral_v<Target>) {
                        target = static_cast<Target>(value);
                      } else {
                        target = static_cast<typename Target::value_type>(value);
                      }
                    });
}

// Target is float or optional<float>.
template <class Target>
CLI::Option* add_float(CLI::App& app, const std::string& names, Target& target, float low,
                       float high, const std::string& help) {
  return add_parsed(app, names, "X", help,
                    [&target, low, high](const std::string& name, const std::string& text) {
                      target = parse_float(name, text, low, high);
                    });
}

template <class Value>
using Names = std::vector<std::pair<std::string_view, Value>>;

template <class Value>
std::string joined_names(const Names<Value>& names, std::string_view between) {
  std::string text;
  for (const auto& [name, value] : names) {
    if (!text.empty()) text += between;
    text += name;
  }
  return text;
}

template <class Value>
Value parse_name(std::string_view option, std::string_view text, const Names<Value>& names) {
  for (const auto& [name, value] : names) {
    if (name == text) return value;
  }
  throw_unknown_name(option, text, joined_names(names, ", "));
}

template <class Value>
CLI::Option* add_choice(CLI::App& app, const std::string& names, Value& target,
                        const Names<Value>& choices, const std::string& help) {
  return add_parsed(app, names, joined_names(choices, "|"), help,
                    [&target, choices](const std::string& name, const std::string& text) {
                      target = parse_name(name, text, choices);
                    });
}

// A plain text, kept as given.
CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& target,
                      const std::string& type, const std::string& help);

}  // namespace bolt
