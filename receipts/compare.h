// Two receipts side by side: same task, same tokens? Where not, the first difference is located.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "receipts/file.h"
#include "receipts/verify.h"

namespace bolt::receipts {

struct CompareOptions {
  std::optional<std::array<std::uint8_t, 32>> redaction_key;
};

enum class Tokens { same, differ, prefix, unknown };

// What compare() found, for audit() and replay() too.
struct Comparison {
  Status status = Status::holds;
  std::vector<std::string> other_task;  // T fields that differ: then nothing below was compared
  bool promised = true;                 // equality is promised here
  std::string not_promised;             // why not
  Tokens tokens = Tokens::unknown;
  std::int64_t first = 0, last = 0;  // tokens (from 1) within which the first difference lies
  std::int64_t agreed = 0;           // tokens that were found equal
  bool stop_same = false;
  std::string barred;  // why equality cannot hold whatever the tokens say
  std::optional<bool> text_same, state_same, logits_same, counters_same;
  std::int64_t logits_first = 0;  // first position whose logits differ, 0 if unknown
};

// Both must have been verified. Status: holds where tokens and stop are the same (or the shorter
// reply, ended by its own smaller limit, is a prefix), false_claim where something compared
// differs, unmet where the tasks differ, digests cannot be compared, or a reply was broken off.
Comparison compare_runs(const Receipt& a, const Receipt& b);

// Verifies both, compares, and says so. Kinds other than run: conversions by their package.
Answer compare(const Receipt& a, const Receipt& b, const CompareOptions& options);

}  // namespace bolt::receipts
