// What must hold within one body, whoever made it: nine counted invariants and the small rules of
// each section. Nothing here needs another file, the model or the clock.
#pragma once

#include <string>

#include "receipts/canonical.h"
#include "receipts/digest.h"

namespace bolt::receipts {

inline constexpr int kInvariants = 9;

struct InvariantCount {
  int held = 0;
  std::string unchecked;  // why fewer than all were checked; empty if all were
};

// Throws Failure(malformed) naming the invariant, expected and found. Without the key of a keyed or
// salted receipt the derived digests cannot be recomputed and are counted as not checked.
InvariantCount check_invariants(const Value& body, const Binder& binder, bool have_key,
                                const std::string& what);

}  // namespace bolt::receipts
