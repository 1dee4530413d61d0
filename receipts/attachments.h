// Lines after the seal: ids, texts and digest lists that the body binds by digest. Deleting one
// leaves rid and signature as they were.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "receipts/canonical.h"
#include "receipts/digest.h"
#include "receipts/facts.h"

namespace bolt::receipts {

inline constexpr std::size_t kLineBytesMax = 64 << 20;  // of an attachment or an envelope

struct Attachments {
  std::optional<std::string> salt;  // 32 bytes; of a salted receipt
  std::optional<std::vector<int>> prompt_ids, ids;
  std::optional<std::string> prompt_text, text;           // bytes
  std::optional<std::vector<std::string>> logits, state;  // hex digests

  // Kinds attached, in order, e.g. "prompt_ids, ids"; empty if none.
  std::string list() const;
};

// The lines for a run, each ending in LF, in their order.
std::string attachment_lines(const RunFacts& facts, std::string_view rid);

// Reads one line into `to`. Throws Failure(malformed) on a wrong form, another receipt's rid, a
// kind twice or out of order. `last_rank` starts at 0 and carries the order from line to line.
void read_attachment(std::string_view line, std::string_view rid, const std::string& what,
                     Attachments& to, int& last_rank);

// Checks every attachment's digest against the body, and the chain's marks against attached ids.
// Returns the kinds whose digests could not be checked for want of a key (empty: all were).
std::string check_attachments(const Value& body, const Attachments& attached, const Binder& binder,
                              bool have_key, const std::string& what);

}  // namespace bolt::receipts
