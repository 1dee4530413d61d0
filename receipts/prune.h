// Clears old receipts from a folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bolt::receipts {

struct Pruned {
  std::vector<std::string> names;  // removed, or to be removed on a dry run
  std::uint64_t bytes = 0;
  int kept = 0;
};

// Removes receipts, packs and temporary files that a crash left, when their mtime is more than
// `older_than_s` ago; nothing else, and nothing below. Throws Failure: unmet if there is no such
// folder, fault if one cannot be removed.
Pruned prune(const std::string& folder, std::int64_t older_than_s, bool dry_run);

// "30d", "12h", "90m", "45s", "2w"; Failure(usage) otherwise.
std::int64_t parse_age(const std::string& text);

}  // namespace bolt::receipts
