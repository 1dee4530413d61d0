// Offline checks of one receipt: that nothing changed since sealing and that it agrees with itself.
// Whether it is true is replay's and score's to say; who says it, a signature's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "receipts/display.h"
#include "receipts/file.h"
#include "receipts/sign.h"
#include "receipts/status.h"

namespace bolt::receipts {

// What a verb answers: lines for people, one object for machines (whose "exit" is the status).
struct Answer {
  Status status = Status::holds;
  std::vector<Line> lines;
  Value json;
};

struct VerifyOptions {
  std::vector<PublicKey> keys;  // from the command line, never from a receipt
  bool require_signed = false;
  int threshold = 1;      // distinct keys that must have signed, once keys are given
  std::string challenge;  // hex; the receipt's must be this one
  std::optional<std::array<std::uint8_t, 32>> redaction_key;  // of a keyed receipt
  bool need_parents = false;         // a parent that is not found is Status::unmet
  std::vector<std::string> folders;  // where to look for parents, besides the receipt's own
};

// Throws Failure with the status where a check fails: malformed (seal, fields, invariants,
// attachments, a parent of the wrong kind), trust (signatures), unmet (challenge, parents).
Answer verify(const Receipt& receipt, const VerifyOptions& options);

// Reads FILE, FILE#N or a whole pack, then verifies.
Answer verify_file(const std::string& name, const VerifyOptions& options);

// The key that binds this receipt's digests: none if plain, the attached salt, or the given key if
// it is the one that redaction.key_id names. `known` says whether digests can be recomputed.
struct BinderChoice {
  Binder binder;
  bool known = true;
};
BinderChoice choose_binder(const Receipt& receipt,
                           const std::optional<std::array<std::uint8_t, 32>>& redaction_key);

}  // namespace bolt::receipts
