// Parsing by from_chars: strict, whole, and the same under every locale.
#include "cmd/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace bolt {
namespace {

// What was typed, with control characters and long tails taken out: it goes into an error line.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 40)) {
    out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f ? '?' : c;
  }
  if (text.size() > 40) out += "...";
  return out.empty() ? "an empty text" : out;
}

}  // namespace

std::string long_name(const std::string& names) {
  const std::size_t at = names.rfind("--");
  if (at == std::string::npos) return names;
  return names.substr(at, names.find(',', at) - at);
}

std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t low,
                           std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < low ||
      value > high) {
    const std::string range = high == std::numeric_limits<std::int64_t>::max()
                                  ? fmt::format("at least {}", low)
                                  : fmt::format("from {} to {}", low, high);
    throw Error(Exit::usage,
                fmt::format("{}: {} is not a whole number {}", option, shown(text), range));
  }
  return value;
}

float parse_float(std::string_view option, std::string_view text, float low, float high) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto narrow = static_cast<float>(value);
  // Asked this way round, a NaN fails too; a value that float32 cannot hold is out of range.
  const bool holds = !text.empty() && error == std::errc() && end == text.data() + text.size() &&
                     value >= static_cast<double>(low) && value <= static_cast<double>(high) &&
                     std::isfinite(narrow);
  if (!holds) {
    const std::string range = high == std::numeric_limits<float>::max()
                                  ? fmt::format("at least {}", low)
                                  : fmt::format("from {} to {}", low, high);
    throw Error(Exit::usage, fmt::format("{}: {} is not a number {}", option, shown(text), range));
  }
  return narrow == 0.0f ? 0.0f : narrow;  // -0 is 0
}

std::uint64_t parse_u64(std::string_view option, std::string_view text) {
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  const std::string_view digits = is_hex ? text.substr(2) : text;
  std::uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, is_hex ? 16 : 10);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
    throw Error(Exit::usage,
                fmt::format("{}: {} is not a whole number from 0 to 18446744073709551615, or 0x...",
                            option, shown(text)));
  }
  return value;
}

std::int64_t parse_bytes(std::string_view option, std::string_view text) {
  constexpr std::string_view kSuffixes = "kMGT";
  const std::size_t power = text.empty() ? std::string_view::npos : kSuffixes.find(text.back());
  const int shift = power == std::string_view::npos ? 0 : 10 * (static_cast<int>(power) + 1);
  if (shift > 0) text.remove_suffix(1);
  return parse_integer(option, text, 0, std::numeric_limits<std::int64_t>::max() >> shift) << shift;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string parse_hex(std::string_view option, std::string_view text, std::size_t max_bytes) {
  std::string hex;
  bool holds = text.size() % 2 == 0 && text.size() <= 2 * max_bytes && !text.empty();
  for (const char c : text) {
    const char low = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    holds = holds && ((low >= '0' && low <= '9') || (low >= 'a' && low <= 'f'));
    hex += low;
  }
  if (!holds) {
    throw Error(Exit::usage, fmt::format("{}: {} is not an even number of hex digits, at most {}",
                                         option, shown(text), 2 * max_bytes));
  }
  return hex;
}

void throw_unknown_name(std::string_view option, std::string_view text, const std::string& names) {
  throw Error(Exit::usage, fmt::format("{}: {} is not one of {}", option, shown(text), names));
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& target,
                      const std::string& type, const std::string& help) {
  return add_parsed(app, names, type, help,
                    [&target](const std::string&, const std::string& text) { target = text; });
}

}  // namespace bolt
