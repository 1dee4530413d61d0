// A batch's receipts against its input: every line answered once, by an intact run of that very
// line, whichever shard, session or machine it ran in.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "receipts/verify.h"

namespace bolt::receipts {

struct LinesAuditOptions {
  std::optional<std::array<std::uint8_t, 32>> redaction_key;  // of keyed receipts
  // Whether a line asks for no answer (a word to the server); what such a line looks like is the
  // caller's to know. Empty: there are none.
  std::function<bool(std::string_view)> is_word;
};

// Reads every pack of the folders, and the input, line by line; blank lines ask for nothing. A line
// is answered by one run that was not cut short (stop interrupted or cancelled). A second one is
// found fault with, unless the session of all but one was never closed (it was killed, and the line
// answered anew) and they agree where their tasks do. A line without a run must be among the
// failed lines of a closed session. Status: holds, false_claim (anything missing, twice, of another
// line, broken), unmet (no line, or no run).
Answer audit_lines(const std::vector<std::string>& folders, const std::string& input,
                   const LinesAuditOptions& options);

}  // namespace bolt::receipts
