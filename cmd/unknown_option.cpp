// CLI11 keeps what it could not place; its own message lists all of that, prompts included.
#include "cmd/unknown_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/base/printable.h"

namespace bolt {
namespace {

// Levenshtein: letters to insert, drop or change.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_option(const std::string& given, const std::vector<std::string>& known) {
  constexpr std::size_t kPrefixMin = 3;
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, given.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t shorter = std::min(given.size(), name.size());
    const bool extends = shorter >= kPrefixMin && given.compare(0, shorter, name, 0, shorter) == 0;
    const std::size_t far = extends ? 0 : distance(given, name);
    if (far >= least) continue;
    least = far;
    nearest = name;
  }
  return nearest;
}

std::string unknown_option(const CLI::App& app) {
  std::string command = "bolt";
  for (const CLI::App* level = &app;;) {
    for (const std::string& word : level->remaining()) {
      if (word.size() < 2 || word[0] != '-' || word == "--") continue;
      const std::string given = word.substr(0, word.find('='));
      std::vector<std::string> known;
      for (const CLI::Option* option : level->get_options()) {
        known.insert(known.end(), option->get_lnames().begin(), option->get_lnames().end());
      }
      const std::string nearest =
          given.starts_with("--") ? nearest_option(given.substr(2), known) : std::string();
      return fmt::format("{}: `{}` has no such option{}", printable(given), command,
                         nearest.empty() ? "" : "; perhaps --" + nearest);
    }
    if (level->get_subcommands().empty()) return {};
    level = level->get_subcommands().front();
    command += " " + level->get_name();
  }
}

}  // namespace bolt
