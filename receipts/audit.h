// A whole series of runs against its plan: every cell exactly once, in order, and the same tokens.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "receipts/plan.h"
#include "receipts/verify.h"

namespace bolt::receipts {

struct AuditOptions {
  std::optional<std::array<std::uint8_t, 32>> redaction_key;
  int columns = 80;  // of the matrix
};

struct AuditResult {
  Answer answer;
  Value section;  // the audit section of a receipt of kind audit
};

// Reads every receipt and pack of the folders. Status: holds, false_claim (anything missing, extra,
// twice, broken, out of order, differing or not as planned), unmet (empty plan, nothing found,
// mixed tasks within a prompt). Before anything else a difference is planted and must be found; if
// it is not, the gate is broken: Failure(fault).
AuditResult audit(const std::vector<std::string>& folders, const Receipt& plan,
                  const AuditOptions& options);

// The body of a receipt of kind audit around that section.
Value audit_body(const Common& common, const Value& section);

}  // namespace bolt::receipts
